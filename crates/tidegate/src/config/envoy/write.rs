//! Writes policies as a config that people can read and edit.
//!
//! Only the fields that converted policies have are written.

use std::fmt::Write as _;

use super::super::schema::UNLIMITED;
use super::super::yaml::MAX_CONFIG_BYTES;
use crate::policy::{Condition, Conditions, DescriptorEntry, Mode, Policies, Policy, SHARED_KEY};

/// Writes the whole file. Returns `None` if it would be larger than a config may be.
pub(super) fn write(sources: &[String], policies: &Policies) -> Option<String> {
    let mut out = String::from("# Converted from envoyproxy/ratelimit: ");
    out.push_str(&sources.join(", "));
    out.push_str("\npolicies:\n");
    for policy in policies {
        // Writing to memory cannot fail.
        let _ = write_policy(policy, &mut out);
        if out.len() > MAX_CONFIG_BYTES {
            return None;
        }
    }
    if policies.is_empty() {
        // A config has at least one policy.
        let _ = write!(
            out,
            "  # There was no limit in them.\n  - name: nothing\n    key: {SHARED_KEY}\n    \
             limits: {UNLIMITED}\n    mode: {}\n",
            Mode::Off
        );
    }
    Some(out)
}

fn write_policy(policy: &Policy, out: &mut String) -> std::fmt::Result {
    writeln!(out, "  - name: {}", scalar(policy.name()))?;
    let matching: Vec<String> = policy.matching().iter().map(match_condition).collect();
    writeln!(out, "    match: {{ {} }}", matching.join(", "))?;
    writeln!(out, "    key: {}", scalar(policy.key_template().as_str()))?;
    match policy.limits().first() {
        None => writeln!(out, "    limits: {UNLIMITED}")?,
        Some(limit) => writeln!(out, "    limits: {limit}")?,
    }
    if policy.mode() != Mode::Enforce {
        writeln!(out, "    mode: {}", policy.mode())?;
    }
    if policy.is_quota() {
        writeln!(out, "    quota: true")?;
    }
    write_exempt(policy.exempt(), out)?;
    if !policy.replaces().is_empty() {
        let names: Vec<String> = policy.replaces().iter().map(|name| scalar(name)).collect();
        writeln!(out, "    replaces: [{}]", names.join(", "))?;
    }
    Ok(())
}

/// Returns a condition of `match`: a list of descriptors, or the values of another field.
fn match_condition(condition: &Condition) -> String {
    match condition.exact_entries() {
        Some(entries) => {
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("descriptors: [{}]", entries.join(", "))
        }
        None => format!("{}: {}", condition.field(), one_or_list(&condition.text_values())),
    }
}

fn entry(entry: &DescriptorEntry) -> String {
    match entry.values() {
        None => scalar(entry.name()),
        Some(values) => {
            format!("{{ {}: {} }}", scalar(entry.name()), one_or_list(&values.collect::<Vec<_>>()))
        }
    }
}

fn write_exempt(exempt: &Conditions, out: &mut String) -> std::fmt::Result {
    if exempt.is_empty() {
        return Ok(());
    }
    let descriptors = exempt.iter().map(|condition| {
        let field = condition.field().to_string();
        let name = field.strip_prefix("descriptor:").unwrap_or(&field);
        format!("{}: {}", scalar(name), one_or_list(&condition.text_values()))
    });
    let descriptors: Vec<String> = descriptors.collect();
    writeln!(out, "    exempt: {{ descriptors: {{ {} }} }}", descriptors.join(", "))
}

fn one_or_list(values: &[&str]) -> String {
    let values: Vec<String> = values.iter().map(|value| scalar(value)).collect();
    match &values[..] {
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
