//! Writes policies as a config that people can read and edit.

use std::fmt::Write as _;

use super::super::error::printable;
use super::super::fields::UNLIMITED;
use super::flatten::FlatPolicy;
use super::tree::{Domain, ValueMatch};
use crate::policy::SHARED_KEY;

/// Writes the whole file.
pub(super) fn write<'n>(
    files: impl Iterator<Item = &'n str>,
    domains: &[Domain],
    policies: &[FlatPolicy<'_>],
) -> String {
    let files: Vec<String> = files.map(printable).collect();
    let mut out = String::from("# Converted from envoyproxy/ratelimit: ");
    out.push_str(&files.join(", "));
    out.push_str("\npolicies:\n");
    for policy in policies {
        // Writing to memory cannot fail.
        let _ = write_policy(policy, policies, &mut out);
    }
    if policies.is_empty() {
        let domains: Vec<String> = domains.iter().map(|domain| scalar(&domain.name)).collect();
        let _ = write!(
            out,
            "  # There was no limit in them.\n  - name: nothing\n    match: {{ domain: {} }}\n    \
             key: {SHARED_KEY}\n    limits: {UNLIMITED}\n",
            one_or_list(&domains)
        );
    }
    out
}

fn write_policy(
    policy: &FlatPolicy<'_>,
    all: &[FlatPolicy<'_>],
    out: &mut String,
) -> std::fmt::Result {
    let entries = policy.path.iter().map(|node| match &node.value {
        ValueMatch::Any => scalar(&node.key),
        ValueMatch::Exact(value) | ValueMatch::Wild(value) => {
            format!("{{ {}: {} }}", scalar(&node.key), scalar(value))
        }
    });
    let entries: Vec<String> = entries.collect();
    writeln!(out, "  - name: {}", scalar(&policy.name))?;
    let domain = scalar(policy.domain);
    writeln!(out, "    match: {{ domain: {domain}, descriptors: [{}] }}", entries.join(", "))?;
    writeln!(out, "    key: {}", scalar(&policy.key))?;
    match &policy.limit {
        None => writeln!(out, "    limits: {UNLIMITED}")?,
        Some(limit) => writeln!(out, "    limits: {limit}")?,
    }
    if policy.is_observed {
        writeln!(out, "    mode: observe")?;
    }
    if policy.quota {
        writeln!(out, "    quota: true")?;
    }
    if !policy.exempt.is_empty() {
        let parts = policy.exempt.iter().map(|(part, values)| {
            let name = part.strip_prefix("descriptor:").unwrap_or(part);
            let values: Vec<String> = values.iter().map(|value| scalar(value)).collect();
            format!("{}: {}", scalar(name), one_or_list(&values))
        });
        let parts: Vec<String> = parts.collect();
        writeln!(out, "    exempt: {{ descriptors: {{ {} }} }}", parts.join(", "))?;
    }
    if !policy.replaces.is_empty() {
        let names: Vec<String> =
            policy.replaces.iter().map(|index| scalar(&all[*index].name)).collect();
        writeln!(out, "    replaces: [{}]", names.join(", "))?;
    }
    Ok(())
}

fn one_or_list(values: &[String]) -> String {
    match values {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// Returns a text as a YAML scalar, in quotes unless it is unambiguous without them.
fn scalar(text: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "_/".contains(c));
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.iter().any(|word| word.eq_ignore_ascii_case(text));
    let is_number = text.parse::<f64>().is_ok() || text.starts_with("0x") || text.starts_with("0o");
    if begins && text.chars().all(is_allowed) && !is_word && !is_number {
        return text.to_owned();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        let code = u32::from(c);
        // Writing to memory cannot fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            ' '..='~' => write!(out, "{c}"),
            c if c.is_alphanumeric() => write!(out, "{c}"),
            _ if code <= 0xff => write!(out, "\\x{code:02x}"),
            _ if code <= 0xffff => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push('"');
    out
}
