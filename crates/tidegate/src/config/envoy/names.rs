//! Names of converted policies.
//!
//! A policy has the `name` of its limit, if that is valid and unique, else a name that is made from
//! the path to the limit. Counts are stored under names, so a name must not depend on other limits.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::model::DescriptorConfig;
use crate::policy::{MAX_NAME_BYTES, Policy};
use crate::text::floor_char_boundary;

/// The number of bytes of the digest in a name, written in hex.
const DIGEST_BYTES: usize = 4;

/// The names that a policy can have.
pub(super) struct NameChoice<'c> {
    /// The `name` of the limit; empty if it has none.
    pub(super) own: &'c str,
    /// The name that is made from the path.
    pub(super) by_path: String,
}

/// Returns a unique name for each policy.
pub(super) fn unique_names(choices: &[&NameChoice<'_>]) -> Vec<String> {
    let mut own: HashMap<&str, usize> = HashMap::new();
    let mut path_names: HashSet<&str> = HashSet::new();
    for choice in choices {
        path_names.insert(&choice.by_path);
        *own.entry(choice.own).or_default() += 1;
    }
    let mut taken = HashSet::new();
    let unique = |choice: &&NameChoice<'_>| {
        let is_unique = own[choice.own] == 1 && !path_names.contains(choice.own);
        let mut name = match is_unique && Policy::is_name(choice.own) {
            true => choice.own.to_owned(),
            false => choice.by_path.clone(),
        };
        // Digests are short, so two may be equal. The later policy then gets a number.
        let mut number = 2;
        while !taken.insert(name.clone()) {
            name = with_suffix(&name, &format!("-{number}"));
            number += 1;
        }
        name
    };
    choices.iter().map(unique).collect()
}

/// Returns the name that is made from the path to a limit.
pub(super) fn path_name<'c>(
    domain: &str,
    path: impl Iterator<Item = &'c DescriptorConfig> + Clone,
) -> String {
    let mut name = domain.to_owned();
    for config in path.clone() {
        name.push('.');
        name.push_str(&config.composite());
    }
    if Policy::is_name(&name) && !domain.contains('.') && path.clone().all(is_unambiguous) {
        name
    } else {
        with_digest(sanitize(&name).trim_end_matches('-'), domain, path)
    }
}

/// Returns whether a descriptor can be recognized in the name of a path. Descriptors are separated
/// by dots, so no key may contain one. A value may contain dots if no key can follow them, as in
/// addresses. (Key and value are joined by `_`. Siblings with the same joined text are rejected.)
fn is_unambiguous(config: &DescriptorConfig) -> bool {
    let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let mut after_dots = config.value.split('.').skip(1);
    let is_key = !config.key.contains('.') && !starts_with_digit(&config.key);
    is_key && after_dots.all(starts_with_digit)
}

/// Replaces each run of characters that a name cannot contain with `-`.
fn sanitize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || "._-".contains(c) => out.push(c),
            _ if out.ends_with('-') => {}
            _ => out.push('-'),
        }
    }
    out
}

fn with_digest<'c>(
    name: &str,
    domain: &str,
    path: impl Iterator<Item = &'c DescriptorConfig>,
) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    };
    add(domain);
    for config in path {
        add(&config.key);
        add(&config.value);
    }
    let mut suffix = String::from("-");
    for byte in hash.finalize().iter().take(DIGEST_BYTES) {
        // Writing to memory cannot fail.
        let _ = write!(suffix, "{byte:02x}");
    }
    with_suffix(name, &suffix)
}

/// Appends `suffix` to a name, which is truncated if the result would be too long. Names are ASCII.
fn with_suffix(name: &str, suffix: &str) -> String {
    let most = MAX_NAME_BYTES.saturating_sub(suffix.len());
    format!("{}{suffix}", &name[..floor_char_boundary(name, most)])
}
