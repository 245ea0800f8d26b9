//! Policies: the requests they match, the keys they make, and the selection with its reasons.

mod descriptors;
mod keys;
mod matching;
mod select;

use std::borrow::Cow;

use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::config::Config;

type Pairs = Vec<(Cow<'static, str>, Cow<'static, str>)>;

/// A request as text: `POST /login?x=1 host=a ip=1.2.3.4 x-org:acme domain=d @tenant=b`.
#[derive(Debug, Default)]
pub struct TestRequest {
    method: Option<String>,
    path: Option<String>,
    query: Option<String>,
    host: Option<String>,
    ip: Option<String>,
    domain: Option<String>,
    headers: Pairs,
    descriptors: Pairs,
}

impl TestRequest {
    pub fn new(words: &str) -> Self {
        let mut request = TestRequest::default();
        for word in words.split_whitespace() {
            if let Some(host) = word.strip_prefix("host=") {
                request.host = Some(host.into());
            } else if let Some(domain) = word.strip_prefix("domain=") {
                request.domain = Some(domain.into());
            } else if let Some(ip) = word.strip_prefix("ip=") {
                request.ip = Some(ip.into());
            } else if let Some((name, value)) =
                word.strip_prefix('@').and_then(|w| w.split_once('='))
            {
                request.descriptors.push((name.to_owned().into(), value.to_owned().into()));
            } else if word.starts_with('/') {
                let (path, query) =
                    word.split_once('?').map_or((word, None), |(p, q)| (p, Some(q)));
                request.path = Some(path.into());
                request.query = query.map(Into::into);
            } else if let Some((name, value)) = word.split_once(':') {
                request.headers.push((name.to_owned().into(), value.to_owned().into()));
            } else {
                request.method = Some(word.into());
            }
        }
        request
    }

    pub fn attributes(&self) -> Attributes<'_> {
        Attributes {
            method: self.method.as_deref(),
            path: self.path.as_deref(),
            query: self.query.as_deref(),
            host: self.host.as_deref(),
            client_ip: self.ip.as_ref().map(|ip| ip.parse().expect("an address")),
            headers: Headers::Pairs(&self.headers),
            domain: self.domain.as_deref(),
            descriptors: &self.descriptors,
        }
    }
}

pub fn config(text: &str) -> Config {
    Config::parse(text, "config.yaml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns a config of one policy that matches everything, with this key.
pub fn with_key(template: &str) -> Config {
    config(&format!("policies: [{{ name: p, key: '{template}', limits: 1 per 1s }}]"))
}

/// Returns the key that a template makes of a request.
pub fn key(template: &str, attributes: &Attributes<'_>) -> Vec<u8> {
    let config = with_key(template);
    let selected = config.policies.select(attributes).expect("no cost");
    selected[0].key.as_ref().to_vec()
}
