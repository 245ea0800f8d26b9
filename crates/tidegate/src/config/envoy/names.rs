//! Names for policies: the limit's own where it has one to itself, else the way to it, as
//! envoyproxy/ratelimit names its statistics: `messaging.message_type_marketing.to_number`.
//!
//! Counts are kept under a policy's name, so it must not change because something else does.
//! What a limit is named by its way depends on that way alone: where the name had to be altered,
//! or could be read as another way, it ends in a digest of the way.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::super::reader::{Reader, shown};
use super::flatten::Flat;
use super::tree::{Descriptor, Wanted};
use crate::char_boundary::floor_char_boundary;
use crate::policy::{MAX_NAME_BYTES, Policy};

/// How many bytes of the digest a name shows, in hex.
const DIGEST_BYTES: usize = 4;

/// Gives each a name of its own.
pub(super) fn assign(readers: &[Reader<'_>], policies: &mut [Flat<'_>]) {
    let mut own: HashMap<String, usize> = HashMap::new();
    let mut ways: HashSet<String> = HashSet::new();
    for flat in &*policies {
        ways.insert(by_way(flat));
        if let Some(name) = own_name(flat) {
            *own.entry(name.to_owned()).or_default() += 1;
        }
    }
    let mut taken = HashSet::new();
    for flat in policies.iter_mut() {
        flat.name = match own_name(flat) {
            Some(name) if own[name] == 1 && !ways.contains(name) => name.to_owned(),
            _ => by_way(flat),
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

/// The name that the way gives.
fn by_way(flat: &Flat<'_>) -> String {
    let mut way = flat.domain.to_owned();
    for node in &flat.way {
        way.push('.');
        way.push_str(&node.composite());
    }
    if Policy::is_name(&way) && is_clear(flat) {
        way
    } else {
        with_digest(plain(&way).trim_end_matches('-'), flat)
    }
}

/// Whether no other way reads the same. Dots stand between the names on a way, so none may
/// stand in a name; in a value they may where no name can follow, as in addresses. (What `_`
/// joins is told apart when files are read: two that read the same cannot be side by side.)
fn is_clear(flat: &Flat<'_>) -> bool {
    let is_key = |key: &str| !key.contains('.') && !key.starts_with(|c: char| c.is_ascii_digit());
    let is_value = |value: &str| {
        let mut behind_dots = value.split('.').skip(1);
        behind_dots.all(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_clear = |node: &Descriptor| match &node.value {
        Wanted::Any => is_key(&node.key),
        Wanted::Exact(value) | Wanted::Wild(value) => is_key(&node.key) && is_value(value),
    };
    !flat.domain.contains('.') && flat.way.iter().all(|node| is_clear(node))
}

/// A text with `-` for what a name cannot have.
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
    format!("{}{end}", &name[..floor_char_boundary(name, most)])
}
