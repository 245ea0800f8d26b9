//! What keys are called in Redis.
//!
//! ```text
//!   tg:1:{192.0.2.1}api/c1m     policy `api`, key 192.0.2.1, sliding-counter over a minute
//!   tg:1:{alice}l1h             key alice without a policy, sliding-log over an hour
//!   tg:1:{alice}w1m~            sliding-window; the state of a check that is only observed
//!   tg:1:{alice}#5f0c...        an idempotency id
//! ```
//!
//! The number after the prefix is the version of the formats below `lua/`. Nodes of two
//! versions use different names, so neither reads what the other has written.
//!
//! What is in braces decides the slot, and it is the key alone, not the policy:
//! all limits of one caller are decided in one script on a Cluster, too. Names are
//! short, because a name is most of what a counter weighs, and readable where the
//! key is. Whatever is not is spelt in `%XX`, and what would then be long is a
//! digest, so that any bytes are a key and no two keys share a name.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tidegate_core::{Algorithm, Limit};

/// The longest text of a key or policy in a name: longer ones are a digest. Far
/// more than an address, user or API key takes, and little for Redis to carry.
const MAX_TEXT_BYTES: usize = 96;
/// Begins a digest: an escape has a hexadecimal digit here.
const DIGEST: &str = "%%";
/// Stands for an empty key: empty braces would not decide the slot.
const EMPTY: &str = "%";
/// Bytes of a digest: 128 bits, which nobody finds two keys for.
const DIGEST_BYTES: usize = 16;
/// Behind the name of a state that is only watched, beside the one in force.
const OBSERVER: u8 = b'~';

/// The version of the formats that states are stored in. It changes with any of them.
const FORMAT_VERSION: u32 = 1;

/// Makes names that begin alike.
#[derive(Clone, Debug)]
pub struct KeyNames {
    prefix: Box<str>,
}

impl KeyNames {
    /// Names that begin with `prefix`, which has no braces in it.
    pub fn new(prefix: &str) -> Self {
        KeyNames { prefix: prefix.into() }
    }

    /// The state a key counts in under a limit. A key that has a NUL, as the gate
    /// makes them, is a policy and who is counted within it.
    pub fn state(&self, key: &[u8], limit: &Limit) -> Vec<u8> {
        let (policy, who) = split(key);
        let mut name = self.tagged(who);
        if let Some(policy) = policy {
            write_text(&mut name, policy, b"{}%/");
            name.push('/');
        }
        write_shape(&mut name, limit);
        name.into_bytes()
    }

    /// The state of a check that is only watched, where one with the same key and
    /// limit is in force beside it.
    pub fn observed(&self, key: &[u8], limit: &Limit) -> Vec<u8> {
        let mut name = self.state(key, limit);
        name.push(OBSERVER);
        name
    }

    /// What all names begin with, and nobody's.
    pub(super) fn sample(&self) -> Vec<u8> {
        self.tagged(b"").into_bytes()
    }

    fn tagged(&self, who: &[u8]) -> String {
        let mut name = String::with_capacity(self.prefix.len() + who.len() + 32);
        name.push_str(&self.prefix);
        let _ = write!(name, ":{FORMAT_VERSION}:{{");
        match who {
            [] => name.push_str(EMPTY),
            _ => write_text(&mut name, who, b"{}%"),
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

/// What tells an idempotency id over `states`, which are sorted, from others.
pub(super) fn id_digest<'a>(states: impl Iterator<Item = &'a [u8]>, id: &[u8]) -> String {
    let mut digest = Sha256::new();
    for state in states {
        // Names have no NUL, so no two lists of them read alike.
        digest.update(state);
        digest.update([0]);
    }
    // Nor does a name that follows read as an id.
    digest.update([0]);
    digest.update(id);
    let mut text = String::new();
    write_hex(&mut text, &digest.finalize()[..DIGEST_BYTES]);
    text
}

/// The name an id is remembered under, in the slot of a state.
pub(super) fn id_name(state: &[u8], id_digest: &str) -> Vec<u8> {
    let tag_end = state.iter().position(|&byte| byte == b'}').map_or(0, |at| at + 1);
    [&state[..tag_end], b"#", id_digest.as_bytes()].concat()
}

/// The part of a name that decides its slot: what is between the braces.
pub fn slot_key(name: &[u8]) -> &[u8] {
    let Some(open) = name.iter().position(|&byte| byte == b'{') else { return name };
    match name[open + 1..].iter().position(|&byte| byte == b'}') {
        None | Some(0) => name,
        Some(length) => &name[open + 1..open + 1 + length],
    }
}

/// The policy, if the key has one, and who is counted.
fn split(key: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match key.iter().position(|&byte| byte == 0) {
        Some(nul) => (Some(&key[..nul]), &key[nul + 1..]),
        None => (None, key),
    }
}

/// Writes bytes so that they read as themselves where they can, and no two alike;
/// what is `reserved` means something in a name.
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

/// What [`Limit::id`] stands for, to be read: algorithm and window.
fn write_shape(name: &mut String, limit: &Limit) {
    let letter = match limit.algorithm() {
        Algorithm::SlidingLog => 'l',
        Algorithm::SlidingWindow => 'w',
        Algorithm::SlidingCounter => 'c',
        Algorithm::FixedWindow => 'f',
        Algorithm::TokenBucket => 't',
        // Permits carry their own lease, so a changed lease finds them again.
        Algorithm::Concurrency => return name.push('p'),
    };
    let (count, unit) = limit.window_in_units();
    let _ = write!(name, "{letter}{count}{unit}");
}
