//! Authentication: which callers a front answers.
//!
//! A front that others can reach requires a secret. It is sent as
//! `Authorization: Bearer SECRET`; as the password of `Authorization: Basic`, for
//! gateways that can only put credentials into an address; or as
//! `x-tidegate-token`, where the `Authorization` of the end user must pass through.
//! Every secret is compared in full, in constant time, so that neither the answer
//! nor its time says how much of a guess was right.
//!
//! A front on loopback requires no secret, because only this machine reaches it. But a
//! web page from elsewhere runs on this machine too: its author points a name of
//! theirs at 127.0.0.1 (DNS rebinding) and the browser sends what the page requests.
//! What the page cannot choose is what the browser sends about it: the name in
//! `Host`, and in `Origin` the site it came from, with every method but GET and
//! HEAD. Such requests are rejected. Programs that are not browsers send no `Origin`.

mod secrets;

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
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
pub enum AuthError {
    /// None of the secrets was shown.
    MissingSecret,
    /// A browser asks for a site that is not of this machine.
    ForeignSite,
}

impl AuthError {
    /// The error of a front where a secret goes `there` and `origin` names a page's site.
    pub fn error(self, there: &str, origin: &str) -> RequestError {
        match self {
            AuthError::MissingSecret => RequestError::new(
                ErrorKind::Unauthenticated,
                format!("a secret is wanted: send one of TIDEGATE_TOKENS as {there}"),
            ),
            AuthError::ForeignSite => RequestError::new(
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
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        match self {
            Access::Secrets(tokens) if !tokens.admit(headers) => Err(AuthError::MissingSecret),
            Access::Local if !origin_is_local(headers) => Err(AuthError::ForeignSite),
            _ => Ok(()),
        }
    }

    /// Whether a caller who shows this secret may ask, where there are no headers.
    pub fn accepts_secret(&self, shown: &[u8]) -> bool {
        match self {
            Access::Secrets(tokens) => tokens.contains(shown),
            Access::Local | Access::Everybody => true,
        }
    }

    /// The same for a gateway: what it says about names and sites is its client's,
    /// for whom it asks, so nothing follows from it.
    pub fn authorize_gateway(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        match self {
            Access::Secrets(_) => self.admit(headers),
            Access::Local | Access::Everybody => Ok(()),
        }
    }

    /// The same for an operator. A page may read what its own site answers without
    /// saying where it came from, so here the name it asks under counts too.
    pub fn authorize_operator(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AuthError> {
        match self {
            Access::Local if !host_is_local(uri, headers) => Err(AuthError::ForeignSite),
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
            return self.contains(token.as_bytes());
        }
        let Some(shown) = headers.get(AUTHORIZATION) else { return false };
        let Some((scheme, shown)) = split_scheme(shown.as_bytes()) else { return false };
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.contains(shown);
        }
        scheme.eq_ignore_ascii_case(b"basic")
            && password(shown).is_some_and(|shown| self.contains(&shown))
    }

    fn contains(&self, shown: &[u8]) -> bool {
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

/// Whether the site a page came from, if there is one, is on this machine.
fn origin_is_local(headers: &HeaderMap) -> bool {
    // Mostly there is none: this is all that a check pays.
    !headers.contains_key(ORIGIN) || headers.get_all(ORIGIN).iter().all(is_local_site)
}

/// Whether every name the request calls us by means this machine. One without any,
/// as HTTP/1.0 has it, is from no browser.
fn host_is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = uri.authority().is_none_or(|authority| is_local(authority.as_str()));
    named && headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_local))
}

/// `null`, for pages of no site, is none of ours.
fn is_local_site(origin: &HeaderValue) -> bool {
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    site.is_some_and(|(_, host)| is_local(host))
}

/// Whether a host, with or without a port, is this machine whatever DNS says:
/// an address of the loopback range, or `localhost`, which browsers do not look up.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inside, "")) => inside,
            Some((inside, port)) if port.strip_prefix(':').is_some_and(is_port) => inside,
            _ => return false,
        },
        None => match host.split_once(':') {
            None => host,
            Some((name, port)) if is_port(port) => name,
            Some(_) => return false,
        },
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Digits, or nothing: `localhost:` is how a URI may write it.
fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_secrets_in_three_headers() {
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

    #[test]
    fn recognizes_local_hosts() {
        #[rustfmt::skip]
        let rows = [
            ("localhost", true), ("localhost:8080", true), ("LocalHost.", true), ("a.b.localhost:1", true),
            ("127.0.0.1", true), ("127.9.8.7:65535", true), ("[::1]", true), ("[::1]:9090", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("", false), ("evil.example", false), ("evil.example:8080", false), ("localhost.evil.example", false),
            ("notlocalhost", false), ("127.0.0.1.evil.example", false), ("127.1", false), ("0.0.0.0", false),
            ("192.168.0.1:8080", false), ("[::]:80", false), ("[::1", false), ("[::1]x", false), ("::1]", false),
            ("localhost@evil.example", false), ("evil@localhost", false), ("localhost:", true), ("[::1]:", true),
            ("localhost:80@evil.example", false), ("localhost:x", false), ("127.0.0.1:80:80", false),
            ("localhost:80/", false), ("[::1]:x", false), ("[::1]:80@evil.example", false), ("localhost:+80", false),
        ];
        for (host, expected) in rows {
            assert_eq!(is_local(host), expected, "{host}");
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            assert_eq!(host_is_local(&Uri::from_static("/admin/v1"), &headers), expected, "{host}");
            let origin = format!("https://{host}").parse().expect("a value");
            let headers = HeaderMap::from_iter([(ORIGIN, origin)]);
            assert_eq!(origin_is_local(&headers), expected, "{host}");
        }
        for origin in ["null", "localhost", "http:localhost", "\u{e9}"] {
            let origin = HeaderValue::from_bytes(origin.as_bytes()).expect("a value");
            assert!(!origin_is_local(&HeaderMap::from_iter([(ORIGIN, origin)])));
        }
        assert!(origin_is_local(&HeaderMap::new()));
    }

    #[test]
    fn requires_every_host_to_be_local() {
        let mut headers = HeaderMap::new();
        for host in ["localhost", "evil.example"] {
            headers.append(HOST, HeaderValue::from_static(host));
        }
        assert!(!host_is_local(&Uri::from_static("/"), &headers));
        // Over HTTP/2, and where the target is a whole address.
        assert!(!host_is_local(&Uri::from_static("http://evil.example/"), &HeaderMap::new()));
        assert!(host_is_local(&Uri::from_static("http://[::1]:90/"), &HeaderMap::new()));
        assert!(host_is_local(&Uri::from_static("/"), &HeaderMap::new()), "HTTP/1.0");
    }
}
