//! `/` and `/docs`: the pages of the server and of the documentation, as HTML for browsers and as
//! text for other clients.

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION, VARY};
use http::{HeaderMap, Response, StatusCode};

use super::response::{HttpResponse, content};
use crate::web_pages::{self, HTML, TEXT};

/// The links of the page: the path, and what is there.
const LINKS: [(&str, &str); 4] = [
    ("/playground", "try limits and algorithms"),
    ("/dashboard", "what this server decides now"),
    ("/openapi.json", "the HTTP API"),
    ("/docs", "the documentation"),
];

/// The pages of the documentation, and what they are about.
const DOCS: [(&str, &str); 31] = [
    ("docs/tutorial.md", "from a policy to an enforced limit, in ten minutes"),
    ("docs/troubleshooting.md", "when a limit does not do what you expect"),
    ("docs/gateways.md", "behind nginx, Caddy, Traefik or Envoy"),
    ("docs/envoy.md", "Envoy's rate limit filter, in place of envoyproxy/ratelimit"),
    ("docs/envoy-gateway.md", "in place of the rate limit service of Envoy Gateway"),
    ("docs/resp.md", "checks with a Redis client, in place of redis-cell"),
    ("docs/tower.md", "limits in an axum, tonic or hyper service"),
    ("docs/library.md", "limits inside a Rust program"),
    ("docs/clients.md", "checks from Python, TypeScript or Rust"),
    ("docs/llm-budgets.md", "budgets of LLM tokens"),
    ("docs/redis.md", "limits that nodes share"),
    ("docs/replay.md", "a limit on recorded traffic"),
    ("docs/simulate.md", "a limit on generated traffic"),
    ("docs/migration.md", "from nginx, express-rate-limit, Upstash, Kong or bucket4j"),
    ("docs/deploy.md", "systemd, Docker, monitoring"),
    ("docs/kubernetes.md", "Kubernetes"),
    ("docs/sizing.md", "memory, cores and Redis"),
    ("docs/operations.md", "metrics, alerts, the admin API, logs"),
    ("docs/dashboard.md", "the dashboard"),
    ("docs/playground.md", "the playground"),
    ("docs/limits.md", "limits as text"),
    ("docs/config.md", "policies, conditions, keys, settings"),
    ("docs/server.md", "flags, environment, secrets, TLS, reloads"),
    ("docs/http-api.md", "the HTTP API"),
    ("docs/headers.md", "RateLimit, Retry-After, the body of a 429"),
    ("docs/glossary.md", "terms, and what other systems call them"),
    ("docs/algorithms.md", "which algorithm to choose"),
    ("docs/accuracy.md", "how close each algorithm comes to the exact log"),
    ("docs/client-identity.md", "the address that a request is counted under"),
    ("docs/proof.md", "which test supports which claim"),
    ("docs/benchmarks.md", "figures, and how they are measured"),
];

/// A page of text and links.
struct Page<'a> {
    title: &'a str,
    before: &'a str,
    /// Paths of pages, or of files of the source code, and what they are about.
    rows: &'a [(&'a str, &'a str)],
    after: &'a str,
}

/// Creates the response of `/`. The dashboard is listed if its front is on.
pub fn page(headers: &HeaderMap, has_dashboard: bool) -> HttpResponse {
    let links = links(has_dashboard);
    let after = "POST /v1/check decides about a request.";
    respond(headers, &Page { title: "tidegate", before: "", rows: &links, after })
}

/// The pages of the server. Those of fronts that are off are left out.
fn links(has_dashboard: bool) -> Vec<(&'static str, &'static str)> {
    let is_listed = |(path, _): &(&str, &str)| *path != "/dashboard" || has_dashboard;
    LINKS.into_iter().filter(is_listed).collect()
}

/// Creates the response of `/docs`. The documentation is a part of the source code, and the server
/// does not contain it. Without the outside, the page can only name its files.
pub fn docs(headers: &HeaderMap, has_dashboard: bool) -> HttpResponse {
    let pages = links(has_dashboard).into_iter().filter(|(path, _)| *path != "/docs");
    let rows: Vec<(&str, &str)> = DOCS.into_iter().chain(pages).collect();
    let page = Page {
        title: "Documentation of tidegate",
        before: "The documentation is in the source code, in files of the same version. \
                 Begin with docs/tutorial.md. docs/README.md is the index.",
        rows: &rows,
        after: "The program has help too: tidegate help, tidegate help serve, tidegate config schema, \
                tidegate man.",
    };
    respond(headers, &page)
}

fn respond(headers: &HeaderMap, page: &Page<'_>) -> HttpResponse {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_html = accepted.flat_map(|value| value.split(',')).any(|kind| {
        let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
        kind.trim().eq_ignore_ascii_case("text/html") && parameters.trim() != "q=0"
    });
    let (kind, text) = if is_html { (HTML, page.html()) } else { (TEXT, page.text()) };
    let mut response = Response::new(content(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    web_pages::harden(headers);
    response
}

impl Page<'_> {
    fn text(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let Page { title, before, rows, after } = self;
        let before = if before.is_empty() { String::new() } else { format!("{before}\n\n") };
        let width = rows.iter().map(|(path, _)| path.len()).max().unwrap_or(0) + 1;
        let row = |(path, about): &(&str, &str)| format!("{path:<width$} {about}\n");
        let rows: String = rows.iter().map(row).collect();
        format!("{title} {version}\n\n{before}{rows}\n{after}\n")
    }

    /// All texts are constants of this module and contain no markup.
    fn html(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let Page { title, before, rows, after } = self;
        let row = |(path, about): &(&str, &str)| match path.strip_prefix('/') {
            Some(href) => format!("      <li><a href=\"{href}\">{path}</a>: {about}</li>\n"),
            None => format!("      <li><code>{path}</code>: {about}</li>\n"),
        };
        let rows: String = rows.iter().map(row).collect();
        let before =
            if before.is_empty() { String::new() } else { format!("    <p>{before}</p>\n") };
        format!(
            "<!doctype html>
<html lang=\"en\">
<head>
  <meta charset=\"utf-8\">
  <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
  <meta name=\"color-scheme\" content=\"light dark\">
  <title>{title}</title>
  <link rel=\"icon\" href=\"playground/icon.svg\" type=\"image/svg+xml\">
  <link rel=\"stylesheet\" href=\"playground/playground.css\">
</head>
<body>
  <main>
    <h1>{title} {version}</h1>
{before}    <ul>
{rows}    </ul>
    <p>{after}</p>
  </main>
</body>
</html>
"
        )
    }
}

/// Creates a redirect to another page.
pub fn redirect(url: &str) -> HttpResponse {
    let mut response = Response::new(content(format!("see {url}\n")));
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    if let Ok(url) = HeaderValue::from_str(url) {
        headers.insert(LOCATION, url);
    }
    web_pages::harden(headers);
    response
}
