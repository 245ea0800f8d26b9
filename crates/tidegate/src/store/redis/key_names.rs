//! The names of keys in Redis.
//!
//! ```text
//!   tg:2:{192.0.2.1}api/c1m     policy `api`, key 192.0.2.1, sliding-counter over a minute
//!   tg:2:{alice}l1h             key alice without a policy, sliding-log over an hour
//!   tg:2:{alice}w1m~            sliding-window; the state of a check that is only observed
//!   tg:2:{alice}#5f0c...        an idempotency id
//!   tg:2:nodes                  the nodes that share the store
//! ```
//!
//! The number after the prefix is the version of the formats in `lua/`. Nodes of different versions
//! use different names, so neither reads values that the other has written.
//!
//! The text in braces determines the slot of a cluster. It is only the key, not the policy, so all
//! limits of one caller are decided by one script on a cluster, too. Names are short, because a
//! name takes most of the memory of a counter, and readable where the key is. Other bytes are
//! escaped as `%XX`, and a text that would then be too long is replaced by a digest. So any bytes
//! can be a key, and no two keys share a name.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tidegate_core::{Algorithm, Limit};

/// The length of the longest key or policy that is part of a name; a longer one is replaced by a
/// digest. Addresses, users and API keys are far shorter, and Redis stores names of this length
/// easily.
const MAX_TEXT_BYTES: usize = 96;
/// The prefix of a digest. In an escape, a hexadecimal digit follows the first `%`.
const DIGEST: &str = "%%";
/// The text of an empty key, because empty braces would not determine the slot.
const EMPTY: &str = "%";
/// The size of a digest: 128 bits, so that collisions cannot be found.
const DIGEST_BYTES: usize = 16;
/// The suffix of the state of an observed check whose key and limit are also enforced.
const OBSERVER: u8 = b'~';

/// The version of the formats that states are stored in. It changes with any of them.
const FORMAT_VERSION: u32 = 2;

/// Builds names with a common prefix.
#[derive(Clone, Debug)]
pub struct KeyNames {
    prefix: Box<str>,
}

impl KeyNames {
    /// Creates names that begin with `prefix`, which must not contain braces.
    pub fn new(prefix: &str) -> Self {
        KeyNames { prefix: prefix.into() }
    }

    /// Returns the name of the state of a key under a limit. A NUL, which the gate puts into keys,
    /// separates the policy from the key that is counted.
    pub fn state(&self, key: &[u8], limit: &Limit) -> Vec<u8> {
        let (policy, bare_key) = split(key);
        let mut name = self.tagged(bare_key);
        if let Some(policy) = policy {
            write_text(&mut name, policy, b"{}%/");
            name.push('/');
        }
        write_shape(&mut name, limit);
        name.into_bytes()
    }

    /// Returns the name of the state of an observed check whose request also enforces the same key
    /// and limit.
    pub fn observed(&self, key: &[u8], limit: &Limit) -> Vec<u8> {
        let mut name = self.state(key, limit);
        name.push(OBSERVER);
        name
    }

    /// The name of the table of nodes. No state has it, because their names have braces.
    pub(super) fn nodes(&self) -> Vec<u8> {
        format!("{}:{FORMAT_VERSION}:nodes", self.prefix).into_bytes()
    }

    /// A name with the prefix of all names, which no state has.
    pub(super) fn sample(&self) -> Vec<u8> {
        self.tagged(b"").into_bytes()
    }

    fn tagged(&self, bare_key: &[u8]) -> String {
        let mut name = String::with_capacity(self.prefix.len() + bare_key.len() + 32);
        name.push_str(&self.prefix);
        let _ = write!(name, ":{FORMAT_VERSION}:{{");
        match bare_key {
            [] => name.push_str(EMPTY),
            _ => write_text(&mut name, bare_key, b"{}%"),
        }
        name.push('}');
        name
    }
}

/// Describes a key for a log: its policy, and the beginning of a digest of its name in Redis.
/// The key itself may be a credential.
pub(super) fn describe(key: &[u8], name: &[u8]) -> String {
    const SHOWN_BYTES: usize = 8;
    let mut text = match split(key).0 {
        Some(policy) if !policy.is_empty() => {
            format!("policy `{}`, ", String::from_utf8_lossy(policy).escape_debug())
        }
        _ => String::new(),
    };
    text.push_str("key with SHA-256 ");
    write_hex(&mut text, &Sha256::digest(name)[..SHOWN_BYTES]);
    text
}

/// The digest that identifies an idempotency id together with `states`, which are sorted names.
pub(super) fn id_digest<'a>(states: impl Iterator<Item = &'a [u8]>, id: &[u8]) -> String {
    let mut digest = Sha256::new();
    for state in states {
        // Names do not contain NUL, so different lists have different bytes.
        digest.update(state);
        digest.update([0]);
    }
    // An empty name ends the list, so a further name differs from an id.
    digest.update([0]);
    digest.update(id);
    let mut text = String::new();
    write_hex(&mut text, &digest.finalize()[..DIGEST_BYTES]);
    text
}

/// The name of the key of an idempotency id, in the slot of a state.
pub(super) fn id_name(state: &[u8], id_digest: &str) -> Vec<u8> {
    let tag_end = state.iter().position(|&byte| byte == b'}').map_or(0, |at| at + 1);
    [&state[..tag_end], b"#", id_digest.as_bytes()].concat()
}

/// Returns the part of a name that determines its slot: the text in the first braces, or the whole
/// name if they are missing or empty.
pub fn slot_key(name: &[u8]) -> &[u8] {
    let Some(open) = name.iter().position(|&byte| byte == b'{') else { return name };
    match name[open + 1..].iter().position(|&byte| byte == b'}') {
        None | Some(0) => name,
        Some(length) => &name[open + 1..open + 1 + length],
    }
}

/// The policy, if the key has one, and the key that is counted.
fn split(key: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match key.iter().position(|&byte| byte == 0) {
        Some(nul) => (Some(&key[..nul]), &key[nul + 1..]),
        None => (None, key),
    }
}

/// Writes bytes injectively: printable ASCII as it is, other bytes and those in `reserved`, which
/// have a meaning in a name, as escapes; and long texts as a digest.
fn write_text(name: &mut String, bytes: &[u8], reserved: &[u8]) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !reserved.contains(&byte);
    let escaped = bytes.iter().filter(|&&byte| !is_plain(byte)).count();
    if bytes.len() + 2 * escaped > MAX_TEXT_BYTES {
        name.push_str(DIGEST);
        write_hex(name, &Sha256::digest(bytes)[..DIGEST_BYTES]);
        return;
    }
    for &byte in bytes {
        if is_plain(byte) {
            name.push(char::from(byte));
        } else {
            name.push('%');
            write_hex(name, &[byte]);
        }
    }
}

fn write_hex(name: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
}

/// Writes the algorithm and the window, which [`Limit::id`] identifies, in readable form.
fn write_shape(name: &mut String, limit: &Limit) {
    let letter = match limit.algorithm() {
        Algorithm::SlidingLog => 'l',
        Algorithm::SlidingWindow => 'w',
        Algorithm::SlidingCounter => 'c',
        Algorithm::FixedWindow => 'f',
        Algorithm::TokenBucket => 't',
        // Each permit is stored with its lease, so the name does not contain it, and permits are
        // found after the lease of the limit has changed.
        Algorithm::Concurrency => return name.push('p'),
    };
    let (count, unit) = limit.window_in_units();
    let _ = write!(name, "{letter}{count}{unit}");
}
