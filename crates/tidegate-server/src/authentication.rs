//! Authentication: which callers a front accepts.
//!
//! A front that other machines can reach requires a secret. A caller sends it as `Authorization:
//! Bearer SECRET`; as the password of `Authorization: Basic`, for gateways that can only put
//! credentials into a URL; or as `x-tidegate-token`, if the `Authorization` header of the end user
//! must be passed through. A secret is compared with every configured one, in full and in constant
//! time, so neither the response nor its timing reveals how much of a guess was right.
//!
//! A front on a loopback address requires no secret, because only this machine can reach it.
//! However, a web page of another site can run in a browser on this machine. With DNS rebinding,
//! its author points a name at 127.0.0.1, and the browser sends the requests of the page to the
//! front. The page cannot choose two headers that the browser sends: `Host` holds the name, and
//! `Origin` the site of the page (for every method except GET and HEAD). Requests whose headers
//! name another site are rejected. Programs that are not browsers send no `Origin`.
//!
//! The secrets are in environment variables, or in files that the variables name ([`Secrets`]).

use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use http::{HeaderMap, Uri};
use subtle::{Choice, ConstantTimeEq};
use tidegate::unstable::config::{StoreUrl, StoreUrlError};
use tidegate::unstable::stats::{MaskSecret, SecretTooShort};

use crate::error::{ErrorKind, RequestError};
use crate::logs::LogThrottle;

/// The header for a secret when `Authorization` belongs to the end user.
pub const TOKEN_HEADER: &str = "x-tidegate-token";

/// The callers that a front accepts.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Callers that send one of the secrets.
    Secrets(Tokens),
    /// Programs on this machine, which alone can reach the front. Web pages of other sites are
    /// rejected, although a browser on this machine sends their requests.
    #[default]
    Local,
    /// Every caller that can reach the front; the operator has set `--insecure-no-auth`.
    Unrestricted,
}

/// Why a caller is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The secret is missing or wrong.
    MissingSecret,
    /// A browser sent the request for a page of a site that is not on this machine.
    ForeignSite,
}

impl AuthError {
    /// Creates the error response. `secret_location` is where a secret is sent, and `origin_name`
    /// is the header with the site of the page.
    pub fn error(self, secret_location: &str, origin_name: &str) -> RequestError {
        match self {
            AuthError::MissingSecret => RequestError::new(
                ErrorKind::Unauthenticated,
                format!(
                    "authentication required: the secret is missing or wrong; send one of \
                     TIDEGATE_TOKENS as {secret_location}"
                ),
            ),
            AuthError::ForeignSite => RequestError::new(
                ErrorKind::Forbidden,
                format!(
                    "the request comes from a web page of another site ({origin_name}), and no \
                     token is configured: set TIDEGATE_TOKENS and send one as {secret_location}"
                ),
            ),
        }
    }
}

impl Access {
    /// Checks whether a caller with these headers is accepted.
    #[inline]
    pub fn authorize(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        match self {
            Access::Secrets(tokens) if !tokens.authorize(headers) => {
                tokens.log_rejection();
                Err(AuthError::MissingSecret)
            }
            Access::Local if !origin_is_local(headers) => Err(AuthError::ForeignSite),
            _ => Ok(()),
        }
    }

    /// Returns whether a caller with this secret is accepted, for protocols without headers.
    pub fn accepts_secret(&self, presented: &[u8]) -> bool {
        match self {
            Access::Secrets(tokens) => tokens.contains(presented),
            Access::Local | Access::Unrestricted => true,
        }
    }

    /// Logs that a caller was rejected because of its secret; see [`Tokens::log_rejection`].
    pub fn log_rejection(&self) {
        if let Access::Secrets(tokens) = self {
            tokens.log_rejection();
        }
    }

    /// Checks whether a gateway with these headers is accepted. `Host` and `Origin` are ignored,
    /// because a gateway passes on those of its client.
    pub fn authorize_gateway(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        match self {
            Access::Secrets(_) => self.authorize(headers),
            Access::Local | Access::Unrestricted => Ok(()),
        }
    }

    /// Checks whether an operator's request is accepted. With DNS rebinding, a page can send a GET
    /// to its own site without an `Origin` and read the response, so the host name is checked as
    /// well.
    pub fn authorize_operator(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AuthError> {
        match self {
            Access::Local if !host_is_local(uri, headers) => Err(AuthError::ForeignSite),
            _ => self.authorize(headers),
        }
    }
}

/// The secrets that a front accepts.
#[derive(Clone, Default)]
pub struct Tokens {
    all: Box<[Box<str>]>,
    /// The names of the front and of the variable with its secrets, for the log.
    front: &'static str,
    variable: &'static str,
    /// Limits how often rejected callers are logged.
    rejections: Arc<LogThrottle>,
}

impl Tokens {
    pub fn new(tokens: impl IntoIterator<Item = String>) -> Self {
        let all = tokens.into_iter().map(String::into_boxed_str).collect();
        Tokens { all, ..Tokens::default() }
    }

    /// Returns the secrets for one front, which logs its rejected callers separately.
    pub fn for_front(&self, front: &'static str, variable: &'static str) -> Self {
        Tokens { all: self.all.clone(), front, variable, ..Tokens::default() }
    }

    /// Returns whether one of the secrets is so short that it can be guessed.
    pub fn can_be_guessed(&self) -> bool {
        self.all.iter().any(|token| token.len() < MIN_TOKEN_BYTES)
    }

    /// Returns whether one of the secrets begins with the scheme that callers send before it.
    pub fn include_scheme(&self) -> bool {
        let mut starts = self.all.iter().filter_map(|token| token.get(..SCHEME.len()));
        starts.any(|start| start.eq_ignore_ascii_case(SCHEME))
    }

    /// Logs that a caller was rejected, at most once in ten seconds: a gateway that sends no secret
    /// fails for all of its clients, and hides the reason from them.
    #[cold]
    pub fn log_rejection(&self) {
        if let Some(suppressed) = self.rejections.should_log(Instant::now()) {
            tracing::warn!(
                front = self.front,
                suppressed,
                "rejected a caller: its secret is missing or wrong; it must send that of {}",
                self.variable
            );
        }
    }

    /// Returns whether the list is empty. No secret is accepted then.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether these headers hold one of the secrets.
    pub fn authorize(&self, headers: &HeaderMap) -> bool {
        if let Some(token) = headers.get(TOKEN_HEADER) {
            return self.contains(token.as_bytes());
        }
        let Some(presented) = headers.get(AUTHORIZATION) else { return false };
        let Some((scheme, presented)) = split_scheme(presented.as_bytes()) else { return false };
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.contains(presented);
        }
        scheme.eq_ignore_ascii_case(b"basic")
            && password(presented).is_some_and(|presented| self.contains(&presented))
    }

    fn contains(&self, presented: &[u8]) -> bool {
        let each = self.all.iter().map(|token| token.as_bytes().ct_eq(presented));
        each.fold(Choice::from(0), |any, one| any | one).into()
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.all.len())
    }
}

fn split_scheme(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    Some((&value[..space], value[space..].trim_ascii()))
}

/// The encoding of `Basic` credentials. Clients differ in padding and in unused bits.
const BASIC_ENCODING: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Extracts the password from `Basic` credentials.
fn password(credentials: &[u8]) -> Option<Vec<u8>> {
    let plain = BASIC_ENCODING.decode(credentials).ok()?;
    let colon = plain.iter().position(|byte| *byte == b':')?;
    Some(plain[colon + 1..].to_vec())
}

/// Whether the `Origin` of a request, if it has one, is on this machine.
fn origin_is_local(headers: &HeaderMap) -> bool {
    // Most requests have none, so this lookup is the whole cost of the check.
    !headers.contains_key(ORIGIN) || headers.get_all(ORIGIN).iter().all(is_local_site)
}

/// Whether every host name of the request means this machine. A request without any, which HTTP/1.0
/// allows, was not sent by a browser.
fn host_is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = uri.authority().is_none_or(|authority| is_local(authority.as_str()));
    named && headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_local))
}

/// Whether an `Origin` is on this machine. `null`, the origin of pages without a site, is not.
fn is_local_site(origin: &HeaderValue) -> bool {
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    site.is_some_and(|(_, host)| is_local(host))
}

/// Whether a host, with or without a port, is this machine regardless of DNS: an address of the
/// loopback range, or `localhost`, which browsers do not resolve.
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

/// Whether the text is a port. It may be empty, because `localhost:` is valid in a URI.
fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit())
}

/// The secrets of `/v1`, gRPC and RESP. There can be several, so that one can be replaced while
/// another still works.
const TOKENS_VARIABLE: &str = "TIDEGATE_TOKENS";
/// The secret of the admin front.
const ADMIN_TOKEN_VARIABLE: &str = "TIDEGATE_ADMIN_TOKEN";

/// The URL of the store, which may hold a password.
const STORE_VARIABLE: &str = "TIDEGATE_STORE";

/// The secret that keys in logs are masked with.
const MASK_SECRET_VARIABLE: &str = "TIDEGATE_MASK_SECRET";

/// All environment variables that hold or name a secret.
pub const SECRET_VARIABLES: [&str; 8] = [
    TOKENS_VARIABLE,
    "TIDEGATE_TOKENS_FILE",
    ADMIN_TOKEN_VARIABLE,
    "TIDEGATE_ADMIN_TOKEN_FILE",
    STORE_VARIABLE,
    "TIDEGATE_STORE_FILE",
    MASK_SECRET_VARIABLE,
    "TIDEGATE_MASK_SECRET_FILE",
];

/// The length below which a secret can be guessed: 64 random bits as hexadecimal digits.
const MIN_TOKEN_BYTES: usize = 16;

/// The scheme that callers send before a secret.
const SCHEME: &str = "Bearer ";

/// The maximum number of bytes read from a file of secrets.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// All secrets of a server.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The secrets of the HTTP, gRPC and RESP fronts.
    pub tokens: Tokens,
    /// The secret of the admin front.
    pub admin: Tokens,
    /// The URL of the store; overrides the config.
    pub store: Option<StoreUrl>,
    /// The secret that keys in logs are masked with; overrides the config.
    pub mask: Option<MaskSecret>,
}

impl Secrets {
    /// Reads all secrets from the environment.
    ///
    /// # Errors
    /// When a secret is empty, set twice, not printable ASCII or too short, when its file cannot be
    /// read, or when the URL of the store is invalid.
    pub fn from_env() -> Result<Self, SecretError> {
        let tokens =
            read_secret(TOKENS_VARIABLE)?.map_or_else(Tokens::default, |text| split_tokens(&text));
        let admin = read_secret(ADMIN_TOKEN_VARIABLE)?
            .map_or_else(Tokens::default, |text| Tokens::new([text]));
        let store = read_secret(STORE_VARIABLE)?.map(|text| text.parse()).transpose();
        let mask = read_secret(MASK_SECRET_VARIABLE)?.map(|text| text.parse()).transpose();
        let (store, mask) = (store.map_err(SecretError::Store)?, mask.map_err(SecretError::Mask)?);
        Ok(Secrets { tokens, admin, store, mask })
    }
}

/// A secret that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Both the variable and its `_FILE` companion are set.
    #[error("{0} and {0}_FILE are both set: keep one")]
    Twice(&'static str),
    /// The variable is empty.
    #[error("{0} is set but empty: unset it, or set a secret")]
    Empty(String),
    /// The file is empty, or has only separators.
    #[error("{0} is empty: write a secret into it")]
    EmptyFile(String),
    /// The secret is not printable ASCII without spaces, so it cannot be sent in a header.
    #[error(
        "{0} contains a space or a character that is not printable ASCII: create a secret with \
         `openssl rand -hex \
         32`"
    )]
    NotText(String),
    /// Its file cannot be read.
    #[error("{0} cannot be read: {1}")]
    File(String, io::Error),
    /// The URL of the store is invalid.
    #[error("{STORE_VARIABLE}: {0}")]
    Store(StoreUrlError),
    /// The mask secret is too short, so it could be guessed.
    #[error("{MASK_SECRET_VARIABLE}: {0}")]
    Mask(SecretTooShort),
}

/// Reads a secret from the variable `name`, or from the file that `{name}_FILE` names.
fn read_secret(name: &'static str) -> Result<Option<String>, SecretError> {
    let in_file = format!("{name}_FILE");
    let (source, text, empty): (_, _, fn(String) -> SecretError) =
        match (std::env::var(name), std::env::var_os(&in_file)) {
            (Err(VarError::NotPresent), None) => return Ok(None),
            (Ok(_) | Err(VarError::NotUnicode(_)), Some(_)) => {
                return Err(SecretError::Twice(name));
            }
            (Err(VarError::NotUnicode(_)), None) => return Err(SecretError::NotText(name.into())),
            (Ok(text), None) => (name.to_owned(), text, SecretError::Empty),
            (_, Some(path)) if path.is_empty() => return Err(SecretError::Empty(in_file)),
            (Err(VarError::NotPresent), Some(path)) => {
                let path = Path::new(&path);
                // A secret that was set here by mistake is not shown.
                let source = if path.is_absolute() || path.exists() {
                    format!("{in_file}: the file {}", path.display())
                } else {
                    format!("the file that {in_file} names")
                };
                let mut text = String::new();
                let read = File::open(path)
                    .and_then(|file| file.take(MAX_SECRET_BYTES).read_to_string(&mut text));
                read.map_err(|error| SecretError::File(source.clone(), error))?;
                (source, text, SecretError::EmptyFile)
            }
        };
    let text = text.trim();
    if text.split([',', '\n']).all(|token| token.trim().is_empty()) {
        return Err(empty(source));
    }
    let printable = |byte: u8| {
        byte.is_ascii_graphic() || (name == TOKENS_VARIABLE && byte.is_ascii_whitespace())
    };
    // A store URL is never sent in a header, and its parser reports its own errors.
    if name != STORE_VARIABLE && !text.bytes().all(printable) {
        return Err(SecretError::NotText(source));
    }
    Ok(Some(text.to_owned()))
}

/// Splits a list of secrets at commas and newlines.
fn split_tokens(text: &str) -> Tokens {
    let each = text.split([',', '\n']).map(str::trim).filter(|token| !token.is_empty());
    Tokens::new(each.map(str::to_owned))
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
            assert_eq!(tokens.authorize(&headers), admitted, "{value}");
            assert!(!Tokens::default().authorize(&headers), "there is none to show: {value}");
        }
    }

    #[test]
    fn only_loopback_names_and_addresses_are_local() {
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
        // Over HTTP/2, or with a request target in absolute form.
        assert!(!host_is_local(&Uri::from_static("http://evil.example/"), &HeaderMap::new()));
        assert!(host_is_local(&Uri::from_static("http://[::1]:90/"), &HeaderMap::new()));
        assert!(host_is_local(&Uri::from_static("/"), &HeaderMap::new()), "HTTP/1.0");
    }
}
