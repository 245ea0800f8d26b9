//! Names for policies: the limit's own where it has one to itself, else the way to it, as
//! envoyproxy/ratelimit names its statistics: `messaging.message_type_marketing.to_number`.
//!
//! Counts are kept under a policy's name, so it should not change because something else does.
//! A name that had to be altered, or that two would share, ends in a digest of the way.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::super::reader::{Reader, shown};
use super::flatten::Flat;
use super::tree::Wanted;
use crate::policy::{MAX_NAME_BYTES, Policy};

/// How many bytes of the digest a name shows, in hex.
const DIGEST_BYTES: usize = 4;

/// Gives each a name of its own.
pub(super) fn assign(readers: &[Reader<'_>], policies: &mut [Flat<'_>]) {
    let mut own: HashMap<String, usize> = HashMap::new();
    let mut ways: HashMap<String, usize> = HashMap::new();
    for flat in &*policies {
        *ways.entry(plain(&way(flat))).or_default() += 1;
        if let Some(name) = own_name(flat) {
            *own.entry(name.to_owned()).or_default() += 1;
        }
    }
    let mut taken = HashSet::new();
    for flat in policies.iter_mut() {
        let by_way = plain(&way(flat));
        flat.name = match own_name(flat) {
            Some(name) if own[name] == 1 && !ways.contains_key(name) => name.to_owned(),
            _ if ways[&by_way] == 1 && Policy::is_name(&by_way) => by_way,
            _ => with_digest(&by_way, flat),
        };
        // Digests are short; should two be alike, the later one is counted on.
        let mut number = 2;
        while !taken.insert(flat.name.clone()) {
            flat.name = with_end(&flat.name, &format!("-{number}"));
            number += 1;
        }
        if let (Some(name), Some(at)) =
            (flat.rate().and_then(|rate| rate.name.as_deref()), flat.at())
            && name != flat.name
        {
            let message =
                format!("the policy of the limit `{}` is named {}", shown(name), flat.name);
            let help = "two limits share that name, or a policy cannot have it; answers and metrics show the policy's";
            readers[at.file].notice(at.span.clone(), &at.path, message, help);
        }
    }
}

/// The name a limit has itself, if a policy can have it.
fn own_name<'f>(flat: &'f Flat<'_>) -> Option<&'f str> {
    flat.rate()?.name.as_deref().filter(|name| Policy::is_name(name))
}

fn way(flat: &Flat<'_>) -> String {
    let mut out = flat.domain.to_owned();
    for node in &flat.way {
        out.push('.');
        out.push_str(&node.composite());
    }
    out
}

/// The same with `-` for what a name cannot have.
fn plain(text: &str) -> String {
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

fn with_digest(name: &str, flat: &Flat<'_>) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    };
    add(flat.domain);
    for node in &flat.way {
        add(&node.key);
        add(match &node.value {
            Wanted::Any => "",
            Wanted::Exact(value) | Wanted::Wild(value) => value,
        });
    }
    let mut end = String::from("-");
    for byte in hash.finalize().iter().take(DIGEST_BYTES) {
        // Writing to memory cannot fail.
        let _ = write!(end, "{byte:02x}");
    }
    with_end(name, &end)
}

/// A name, cut so that it ends so. Names are ASCII.
fn with_end(name: &str, end: &str) -> String {
    let most = MAX_NAME_BYTES.saturating_sub(end.len());
    format!("{}{end}", &name[..name.floor_char_boundary(most)])
}
