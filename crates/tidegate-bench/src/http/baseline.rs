//! The baseline: axum handlers with constant answers, without decisions.
//!
//! `/v1/check` is what tidegate is compared with: a POST handler that reads the body and answers
//! JSON of the same size as tidegate's. `/v1/forward-auth` answers with the header fields and body
//! of a real answer, which separates the cost of rendering them from the cost of sending them.
//! The runtime is built like tidegate's.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::routing::{any, post};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Arguments of the baseline process.
#[derive(Args, Clone, Debug)]
pub struct BaselineArgs {
    pub address: SocketAddr,
    /// File with the answers, as JSON.
    pub answers: PathBuf,
}

/// The constant answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answers {
    pub check: String,
    pub auth_fields: Vec<(String, String)>,
    pub auth_body: String,
}

impl Answers {
    /// Returns answers of typical size, for runs without tidegate.
    pub fn usual() -> Self {
        let limit = "\"limit\":1000000,\"remaining\":999999";
        Answers {
            check: format!(
                "{{\"allowed\":true,\"policy\":\"check-loose\",{limit},\"retry_after_ms\":0,\
                 \"reset_after_ms\":3600000,\"decided\":\"exact\",\"limits\":[{{\"policy\":\"check-loose\",\
                 {limit},\"window_ms\":3600000,\"algorithm\":\"sliding-counter\",\"allowed\":true,\
                 \"retry_after_ms\":0}}]}}"
            ),
            auth_fields: vec![
                ("ratelimit-policy".into(), "\"forward-auth-loose\";q=1000000;w=3600".into()),
                ("ratelimit".into(), "\"forward-auth-loose\";r=999999;t=3600".into()),
            ],
            auth_body: String::new(),
        }
    }
}

/// Serves until the process is killed.
pub fn serve(args: &BaselineArgs) -> io::Result<()> {
    let answers: Answers = serde_json::from_str(&std::fs::read_to_string(&args.answers)?)?;
    let fields = auth_fields(&answers)?;
    let auth_body = Bytes::from(answers.auth_body);
    let check = Bytes::from(answers.check);
    let app = Router::new()
        .route(
            "/v1/check",
            post(move |body: Bytes| async move {
                drop(body);
                ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], check)
            }),
        )
        .route("/v1/forward-auth", any(move || async move { (fields, auth_body) }));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(args.address).await?;
        axum::serve(listener, app).await
    })
}

fn auth_fields(answers: &Answers) -> io::Result<HeaderMap> {
    let mut fields = HeaderMap::new();
    for (name, value) in &answers.auth_fields {
        let name: HeaderName = name.parse().map_err(io::Error::other)?;
        fields.append(name, value.parse().map_err(io::Error::other)?);
    }
    Ok(fields)
}
