//! A typed client of the tidegate server: checks, batches and permits.
//!
//! A denial is a value. An error means that the server did not decide, because it could not be
//! reached or rejected the request; the caller chooses whether to fail open or closed.
//! `on_store_failure` is the same choice for the server's store.
//!
//! Checks are not retried, because one whose answer was lost may have been charged. A check
//! with an [id](Check::id) can be repeated safely.
//!
//! - `check.rs`: the requests;
//! - `answer.rs`: the answers;
//! - `permit.rs`: permits, renewed while they are held;
//! - `error.rs`: the errors.

mod answer;
mod check;
mod error;
mod permit;

pub use answer::{Answer, Denial, LimitAnswer};
pub use check::{Attributes, Check};
pub use error::{Error, Problem};
pub use permit::{Permit, Taken};

use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The default time for an answer, in addition to the wait of a check.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The largest answer that is read. A batch of 1,000 checks is far smaller.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A client of one server. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<HeaderValue>,
    answer_within: Duration,
}

impl Client {
    /// Creates a client of the server at an address such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    ///
    /// The address is not an http or https URL, or has a query or a fragment.
    pub fn new(address: &str) -> Result<Self, Error> {
        Client::with(reqwest::Client::new(), address)
    }

    /// Creates a client that uses a given reqwest client, for TLS, proxies and connection
    /// settings.
    ///
    /// # Errors
    ///
    /// The address is not an http or https URL, or has a query or a fragment.
    pub fn with(http: reqwest::Client, address: &str) -> Result<Self, Error> {
        // The paths of the API are appended. The error does not show the address, because a query
        // may have a secret.
        if address.contains(['?', '#']) {
            let reason = "the address must not have a query or a fragment: remove the `?` or `#` \
                          and what follows it; `Client::token` sets a secret";
            return Err(Error::Address(reason.to_owned()));
        }
        // Without a password.
        let shown = address.rsplit('@').next().unwrap_or_default();
        let invalid = |reason: &str| Error::Address(format!("address `{shown}`: {reason}"));
        let mut base = Url::parse(address).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(invalid("expected a URL such as http://127.0.0.1:8080"));
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Client { http, base, token: None, answer_within: ANSWER_WITHIN })
    }

    /// Sets the secret to send, one of the server's `TIDEGATE_TOKENS`.
    ///
    /// # Errors
    ///
    /// The secret is empty, has characters other than printable ASCII characters, or begins or
    /// ends with a space. The error does not show it.
    pub fn token(mut self, token: &str) -> Result<Self, Error> {
        let is_printable = token.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let value = HeaderValue::try_from(format!("Bearer {token}")).ok();
        let value = value.filter(|_| is_printable && !token.is_empty() && token.trim() == token);
        let mut value = value.ok_or_else(|| {
            Error::Address(
                "the token must not be empty and may have only printable ASCII characters, without \
                 a space at either end; if it was read from a file, remove the line break at its \
                 end"
                    .to_owned(),
            )
        })?;
        value.set_sensitive(true);
        self.token = Some(value);
        Ok(self)
    }

    /// Sets the time for an answer, in addition to the wait of a check. Default: 5 s.
    #[must_use]
    pub fn answer_within(mut self, time: Duration) -> Self {
        self.answer_within = time;
        self
    }

    /// Sends a check. The server charges it if it is allowed.
    ///
    /// # Errors
    ///
    /// The server did not decide: see [`Error`].
    pub async fn check(&self, check: &Check) -> Result<Answer, Error> {
        let response = self.send(Method::POST, "v1/check", check, check.wait()).await?;
        read(response).await
    }

    /// Sends up to 1,000 independent checks. The answers are in the same order. A check whose id
    /// was used before with another cost gets a problem.
    ///
    /// # Errors
    ///
    /// The server did not decide: see [`Error`].
    pub async fn batch(&self, checks: &[Check]) -> Result<Vec<Result<Answer, Problem>>, Error> {
        #[derive(serde::Serialize)]
        struct Batch<'a> {
            checks: &'a [Check],
        }
        #[derive(serde::Deserialize)]
        struct Answers {
            answers: Vec<Value>,
        }
        let batch = Batch { checks };
        let response = self.send(Method::POST, "v1/check/batch", &batch, Duration::ZERO).await?;
        let url = response.url().clone();
        let Answers { answers } = read(response).await?;
        if answers.len() != checks.len() {
            let counts = format!("{} answers to {} checks", answers.len(), checks.len());
            return Err(error::unreadable(&url, counts));
        }
        answers.into_iter().map(|value| answer::one_of_batch(&url, value)).collect()
    }

    /// Acquires a permit under a concurrency limit. It is renewed while it is held, and released
    /// when it is dropped or by [`Permit::release`].
    ///
    /// # Errors
    ///
    /// The server did not decide: see [`Error`].
    pub async fn permit(&self, check: &Check, ttl: Option<Duration>) -> Result<Taken, Error> {
        let mut body = serde_json::to_value(check)
            .map_err(|error| Error::Unreadable(format!("the check: {error}")))?;
        if let (Some(ttl), Value::Object(body)) = (ttl, &mut body) {
            let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            body.insert("ttl_ms".to_owned(), ms.into());
        }
        let sent = Instant::now();
        let response = self.send(Method::POST, "v1/permits", &body, Duration::ZERO).await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            return Ok(Taken::Denied(answer::denial(response).await));
        }
        let held: permit::Held = read(response).await?;
        Ok(Taken::Held(Permit::hold(self.clone(), held, sent)))
    }

    /// Sends a request. Any status but a success and 429 is an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl serde::Serialize,
        wait: Duration,
    ) -> Result<Response, Error> {
        let url = self.base.join(path).map_err(|error| Error::Address(error.to_string()))?;
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::Unreadable(format!("the request: {error}")))?;
        let mut request = self.http.request(method, url).body(body);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let response = request.timeout(self.answer_within + wait).send().await?;
        let status = response.status();
        if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
            return Ok(response);
        }
        Err(error::refused(response).await)
    }
}

/// Reads an answer as JSON.
async fn read<T: DeserializeOwned>(response: Response) -> Result<T, Error> {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        return Err(error::refused(response).await);
    }
    let url = response.url().clone();
    serde_json::from_slice(&bytes(response).await?).map_err(|error| error::unreadable(&url, error))
}

/// Reads the body of a response, up to [`MAX_ANSWER_BYTES`].
async fn bytes(mut response: Response) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > MAX_ANSWER_BYTES {
            let reason = format!("more than {MAX_ANSWER_BYTES} bytes");
            return Err(error::unreadable(response.url(), reason));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}
