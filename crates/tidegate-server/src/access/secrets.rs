//! Reads the secrets from environment variables, or from files that they name.

use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};

use tidegate::unstable::config::{StoreUrl, StoreUrlError};
use tidegate::unstable::stats::{MaskSecret, SecretTooShort};

use super::Tokens;

/// The secrets of `/v1`, gRPC and RESP. There can be several, so that one can be replaced while
/// another still works.
const TOKENS: &str = "TIDEGATE_TOKENS";
/// The secret of the admin front.
const ADMIN_TOKEN: &str = "TIDEGATE_ADMIN_TOKEN";

/// The URL of the store, which may hold a password.
const STORE: &str = "TIDEGATE_STORE";

/// The secret that keys in logs are masked with.
const MASK_SECRET: &str = "TIDEGATE_MASK_SECRET";

/// All environment variables that hold or name a secret.
pub const SECRET_VARIABLES: [&str; 8] = [
    TOKENS,
    "TIDEGATE_TOKENS_FILE",
    ADMIN_TOKEN,
    "TIDEGATE_ADMIN_TOKEN_FILE",
    STORE,
    "TIDEGATE_STORE_FILE",
    MASK_SECRET,
    "TIDEGATE_MASK_SECRET_FILE",
];

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
        let tokens = read(TOKENS)?.map_or_else(Tokens::default, |text| split(&text));
        let admin = read(ADMIN_TOKEN)?.map_or_else(Tokens::default, |text| Tokens::new([text]));
        let store = read(STORE)?.map(|text| text.parse()).transpose();
        let mask = read(MASK_SECRET)?.map(|text| text.parse()).transpose();
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
    /// The variable or its file is empty.
    #[error("{0} is set but empty: unset it, or set a secret")]
    Empty(String),
    /// The secret is not printable ASCII without spaces, so it cannot be sent in a header.
    #[error(
        "{0} contains a space or a character that is not printable ASCII: create a secret with \
         `openssl rand -hex \
         32`"
    )]
    NotText(String),
    /// Its file cannot be read.
    #[error("cannot read the file that {0} names: {1}")]
    File(String, io::Error),
    /// The URL of the store is invalid.
    #[error("{STORE}: {0}")]
    Store(StoreUrlError),
    /// The mask secret is too short, so it could be guessed.
    #[error("{MASK_SECRET}: {0}")]
    Mask(SecretTooShort),
}

/// Reads a secret from the variable `name`, or from the file that `{name}_FILE` names.
fn read(name: &'static str) -> Result<Option<String>, SecretError> {
    let in_file = format!("{name}_FILE");
    let (source, text) = match (std::env::var(name), std::env::var_os(&in_file)) {
        (Err(VarError::NotPresent), None) => return Ok(None),
        (Ok(_) | Err(VarError::NotUnicode(_)), Some(_)) => return Err(SecretError::Twice(name)),
        (Err(VarError::NotUnicode(_)), None) => return Err(SecretError::NotText(name.into())),
        (Ok(text), None) => (name.to_owned(), text),
        (Err(VarError::NotPresent), Some(path)) => {
            let mut text = String::new();
            let read = File::open(path)
                .and_then(|file| file.take(MAX_SECRET_BYTES).read_to_string(&mut text));
            read.map_err(|error| SecretError::File(in_file.clone(), error))?;
            (in_file, text)
        }
    };
    let text = text.trim();
    if text.split([',', '\n']).all(|token| token.trim().is_empty()) {
        return Err(SecretError::Empty(source));
    }
    let printable =
        |byte: u8| byte.is_ascii_graphic() || (name == TOKENS && byte.is_ascii_whitespace());
    // A store URL is never sent in a header, and its parser reports its own errors.
    if name != STORE && !text.bytes().all(printable) {
        return Err(SecretError::NotText(source));
    }
    Ok(Some(text.to_owned()))
}

/// Splits a list of secrets at commas and newlines.
fn split(text: &str) -> Tokens {
    let each = text.split([',', '\n']).map(str::trim).filter(|token| !token.is_empty());
    Tokens::new(each.map(str::to_owned))
}
