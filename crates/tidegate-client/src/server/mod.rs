//! A typed client of the tidegate server: checks, batches and permits.
//!
//! A denial is a value, an error means that nobody decided: the server could not be
//! reached, or did not understand. Which of the two lets a request through is for the
//! caller to say; `on_store_failure` says the same for the server's own store.
//!
//! Checks are not repeated: one whose answer was lost may have been charged. Give it an
//! [id](Check::id), and ask again as often as you like.
//!
//! - `check.rs`: what is asked;
//! - `answer.rs`: what is answered;
//! - `permit.rs`: a place that is held;
//! - `error.rs`: what goes wrong.

mod answer;
mod check;
mod error;
mod permit;

pub use answer::{Answer, Denial, LimitAnswer};
pub use check::{Attributes, Check};
pub use error::{Error, Problem};
pub use permit::{Permit, Taken};

use std::time::Duration;

use http::StatusCode;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How long an answer may take, besides what a check is willing to wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The most bytes of an answer that are read: a batch of 1,000 is well within it.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A client of one server. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<HeaderValue>,
    answer_within: Duration,
}

impl Client {
    /// A client of the server at this address, such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    ///
    /// The address makes no sense.
    pub fn new(address: &str) -> Result<Self, Error> {
        Client::with(reqwest::Client::new(), address)
    }

    /// The same with a reqwest client of your own: TLS, proxies, connections.
    ///
    /// # Errors
    ///
    /// The address makes no sense.
    pub fn with(http: reqwest::Client, address: &str) -> Result<Self, Error> {
        let unfit = |why: &str| Error::Address(format!("`{address}`: {why}"));
        let mut base = Url::parse(address).map_err(|error| unfit(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(unfit("write it as http://127.0.0.1:8080"));
        }
        base.set_query(None);
        base.set_fragment(None);
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Client { http, base, token: None, answer_within: ANSWER_WITHIN })
    }

    /// Shows a secret of `TIDEGATE_TOKENS`.
    ///
    /// # Errors
    ///
    /// The secret has characters that no field can carry.
    pub fn token(mut self, token: &str) -> Result<Self, Error> {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value = value.map_err(|_| {
            Error::Address("the token has characters that a header field cannot carry".to_owned())
        })?;
        value.set_sensitive(true);
        self.token = Some(value);
        Ok(self)
    }

    /// How long an answer may take, besides what a check is willing to wait. 5 s by default.
    #[must_use]
    pub fn answer_within(mut self, time: Duration) -> Self {
        self.answer_within = time;
        self
    }

    /// Asks whether something may happen, and charges it if so.
    ///
    /// # Errors
    ///
    /// Nobody decided.
    pub async fn check(&self, check: &Check) -> Result<Answer, Error> {
        let response = self.send(Method::POST, "v1/check", check, check.wait()).await?;
        read(response).await
    }

    /// Asks up to 1,000 checks, each decided on its own. The answers are in their order; in
    /// the place of a check whose id came before with another cost stands a problem.
    ///
    /// # Errors
    ///
    /// Nobody decided.
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
        let Answers { answers } = read(response).await?;
        if answers.len() != checks.len() {
            let counts = format!("{} answers to {} checks", answers.len(), checks.len());
            return Err(Error::Unreadable(counts));
        }
        answers.into_iter().map(answer::one_of_batch).collect()
    }

    /// Takes a place under a policy with a concurrency limit. It is renewed while it is
    /// held and given back when it is dropped or [released](Permit::release).
    ///
    /// # Errors
    ///
    /// Nobody decided.
    pub async fn permit(&self, check: &Check, ttl: Option<Duration>) -> Result<Taken, Error> {
        let mut body = serde_json::to_value(check).map_err(error::unreadable)?;
        if let (Some(ttl), Value::Object(body)) = (ttl, &mut body) {
            let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            body.insert("ttl_ms".to_owned(), ms.into());
        }
        let response = self.send(Method::POST, "v1/permits", &body, Duration::ZERO).await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            return Ok(Taken::Denied(answer::denial(response).await));
        }
        let held: permit::Held = read(response).await?;
        Ok(Taken::Held(Permit::hold(self.clone(), held)))
    }

    /// Sends a request and takes anything that is no success, but for a 429, as an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl serde::Serialize,
        wait: Duration,
    ) -> Result<Response, Error> {
        let url = self.base.join(path).map_err(|error| Error::Address(error.to_string()))?;
        let body = serde_json::to_vec(body).map_err(error::unreadable)?;
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

/// Reads an answer as what it should be.
async fn read<T: DeserializeOwned>(response: Response) -> Result<T, Error> {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        return Err(error::refused(response).await);
    }
    serde_json::from_slice(&bytes(response).await?).map_err(error::unreadable)
}

/// The body of an answer, as far as that is reasonable.
async fn bytes(mut response: Response) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(Error::Unreadable(format!("more than {MAX_ANSWER_BYTES} bytes")));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}
