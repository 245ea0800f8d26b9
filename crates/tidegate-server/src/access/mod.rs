//! Who may ask.
//!
//! A front that others can reach wants a secret. It comes as
//! `Authorization: Bearer SECRET`; as the password of `Authorization: Basic`, for
//! gateways that can only put credentials into an address; or as
//! `x-tidegate-token`, where the `Authorization` of the end user must pass through.
//! Every secret is compared in full, in constant time, so that neither the answer
//! nor its time says how much of a guess was right.
//!
//! A front that only this machine reaches may do without; then `local.rs` keeps web
//! pages of other sites out.

mod local;
mod secrets;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Uri};
use subtle::{Choice, ConstantTimeEq};

pub use secrets::{SECRET_VARIABLES, SecretError, Secrets};

use crate::error::{ErrorKind, RequestError};

/// The header for a secret beside the end user's own `Authorization`.
pub const TOKEN_HEADER: &str = "x-tidegate-token";

/// Who may ask on one front.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Whoever shows one of the secrets.
    Secrets(Tokens),
    /// The programs of this machine, which alone reach the front. Not web pages of
    /// other sites, though a browser of this machine would ask for them.
    #[default]
    Local,
    /// Whoever reaches the front: the operator insists.
    Everybody,
}

/// Why somebody may not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// None of the secrets was shown.
    NoSecret,
    /// A browser asks for a site that is not of this machine.
    Foreign,
}

impl NotAdmitted {
    /// The error of a front where a secret goes `there` and `origin` names a page's site.
    pub fn error(self, there: &str, origin: &str) -> RequestError {
        match self {
            NotAdmitted::NoSecret => RequestError::new(
                ErrorKind::Unauthenticated,
                format!("a secret is wanted: send one of TIDEGATE_TOKENS as {there}"),
            ),
            NotAdmitted::Foreign => RequestError::new(
                ErrorKind::Forbidden,
                format!(
                    "this comes from a web page of another site ({origin}), and no secret is set: set \
                     TIDEGATE_TOKENS and send one as {there}"
                ),
            ),
        }
    }
}

impl Access {
    /// Whether a caller with these headers may ask.
    #[inline]
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), NotAdmitted> {
        match self {
            Access::Secrets(tokens) if !tokens.admit(headers) => Err(NotAdmitted::NoSecret),
            Access::Local if !local::origin_is_local(headers) => Err(NotAdmitted::Foreign),
            _ => Ok(()),
        }
    }

    /// Whether a caller who shows this secret may ask, where there are no headers.
    pub fn admit_secret(&self, shown: &[u8]) -> bool {
        match self {
            Access::Secrets(tokens) => tokens.is_one(shown),
            Access::Local | Access::Everybody => true,
        }
    }

    /// The same for a gateway: what it says about names and sites is its client's,
    /// for whom it asks, so nothing follows from it.
    pub fn admit_gateway(&self, headers: &HeaderMap) -> Result<(), NotAdmitted> {
        match self {
            Access::Secrets(_) => self.admit(headers),
            Access::Local | Access::Everybody => Ok(()),
        }
    }

    /// The same for an operator. A page may read what its own site answers without
    /// saying where it came from, so here the name it asks under counts too.
    pub fn admit_operator(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), NotAdmitted> {
        match self {
            Access::Local if !local::host_is_local(uri, headers) => Err(NotAdmitted::Foreign),
            _ => self.admit(headers),
        }
    }
}

/// The secrets a front takes.
#[derive(Clone, Default)]
pub struct Tokens(Box<[Box<str>]>);

impl Tokens {
    /// These secrets.
    pub fn new(tokens: impl IntoIterator<Item = String>) -> Self {
        Tokens(tokens.into_iter().map(String::into_boxed_str).collect())
    }

    /// Whether there are none, so that nobody could show one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these headers show one of the secrets.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        if let Some(token) = headers.get(TOKEN_HEADER) {
            return self.is_one(token.as_bytes());
        }
        let Some(shown) = headers.get(AUTHORIZATION) else { return false };
        let Some((scheme, shown)) = split_scheme(shown.as_bytes()) else { return false };
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.is_one(shown);
        }
        scheme.eq_ignore_ascii_case(b"basic")
            && password(shown).is_some_and(|shown| self.is_one(&shown))
    }

    fn is_one(&self, shown: &[u8]) -> bool {
        let each = self.0.iter().map(|token| token.as_bytes().ct_eq(shown));
        each.fold(Choice::from(0), |any, one| any | one).into()
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

fn split_scheme(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    Some((&value[..space], value[space..].trim_ascii()))
}

/// The password in the credentials of `Basic`.
fn password(credentials: &[u8]) -> Option<Vec<u8>> {
    let plain = decode_base64(credentials)?;
    let colon = plain.iter().position(|byte| *byte == b':')?;
    Some(plain[colon + 1..].to_vec())
}

fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xfff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_secrets_is_wanted_in_one_of_three_places() {
        let tokens = Tokens::new(["first".into(), "s3cret:/+".into()]);
        #[rustfmt::skip]
        let rows = [
            ("authorization", "Bearer first", true),
            ("authorization", "bearer   s3cret:/+", true),
            ("authorization", "Bearer firs", false),
            ("authorization", "Bearer first2", false),
            ("authorization", "Bearer ", false),
            ("authorization", "Bearer", false),
            ("authorization", "first", false),
            // "tidegate:s3cret:/+", then "x:first" and "first" alone.
            ("authorization", "Basic dGlkZWdhdGU6czNjcmV0Oi8r", true),
            ("authorization", "Basic eDpmaXJzdA==", true),
            ("authorization", "Basic Zmlyc3Q=", false),
            ("authorization", "Basic ????", false),
            ("x-tidegate-token", "first", true),
            ("x-tidegate-token", "second", false),
            ("x-other", "first", false),
        ];
        for (name, value, admitted) in rows {
            let name: http::HeaderName = name.parse().expect("a name");
            let headers = HeaderMap::from_iter([(name, value.parse().expect("a value"))]);
            assert_eq!(tokens.admit(&headers), admitted, "{value}");
            assert!(!Tokens::default().admit(&headers), "there is none to show: {value}");
        }
    }
}
