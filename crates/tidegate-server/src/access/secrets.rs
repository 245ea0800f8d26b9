//! Where the secrets come from: the environment, or files it names.

use std::env::VarError;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use tidegate::unstable::config::{NotAStore, StoreUrl};
use tidegate::unstable::stats::{MaskSecret, SecretTooShort};

use super::Tokens;

/// For `/v1`, gRPC and RESP. Several, so that one can be replaced while
/// the other still works.
const TOKENS: &str = "TIDEGATE_TOKENS";
/// For the admin front.
const ADMIN_TOKEN: &str = "TIDEGATE_ADMIN_TOKEN";

/// Where counts are kept: a URL, which may hold a password.
const STORE: &str = "TIDEGATE_STORE";

/// What keys in logs are masked with.
const MASK_SECRET: &str = "TIDEGATE_MASK_SECRET";

/// All variables that secrets come from.
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

/// The most that is read of a file of secrets.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// All secrets of a server.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// Who may ask for decisions.
    pub tokens: Tokens,
    /// Who may look inside.
    pub admin: Tokens,
    /// Where counts are kept, whatever the config says.
    pub store: Option<StoreUrl>,
    /// What keys in logs are masked with, whatever the config says.
    pub mask: Option<MaskSecret>,
}

impl Secrets {
    /// Reads the environment.
    ///
    /// # Errors
    /// When a secret is empty, named twice, not text, too short, or its file cannot be read;
    /// and when the store's URL is none.
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
#[derive(Debug)]
pub enum SecretError {
    /// Both the variable and its `_FILE` companion are set.
    Twice(&'static str),
    /// There is nothing in it.
    Empty(String),
    /// It cannot go into a header.
    NotText(String),
    /// Its file cannot be read.
    File(String, io::Error),
    /// It names no store.
    Store(NotAStore),
    /// It can be guessed.
    Mask(SecretTooShort),
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretError::Twice(name) => write!(f, "{name} and {name}_FILE are both set: keep one"),
            SecretError::Empty(name) => {
                write!(f, "{name} is set but holds no secret: unset it, or put one in")
            }
            SecretError::NotText(name) => {
                write!(
                    f,
                    "{name} holds more than printable ASCII without spaces: make a secret with `openssl rand -hex 32`"
                )
            }
            SecretError::File(name, error) => write!(f, "the file that {name} names: {error}"),
            SecretError::Store(error) => write!(f, "{STORE}: {error}"),
            SecretError::Mask(error) => write!(f, "{MASK_SECRET}: {error}"),
        }
    }
}

impl std::error::Error for SecretError {}

/// The text of a secret, from the variable or the file its companion names.
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
    // A store's URL never goes into a header, and says itself what is wrong with it.
    if name != STORE && !text.bytes().all(printable) {
        return Err(SecretError::NotText(source));
    }
    Ok(Some(text.to_owned()))
}

/// Secrets separated by commas or lines.
fn split(text: &str) -> Tokens {
    let each = text.split([',', '\n']).map(str::trim).filter(|token| !token.is_empty());
    Tokens::new(each.map(str::to_owned))
}
