//! `/`: links to the pages of the server, as HTML for browsers and as text for other clients.

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION, VARY};
use http::{HeaderMap, Response, StatusCode};

use super::response::{HttpResponse, content};
use crate::web_pages::DOCS_URL;
use crate::web_pages::{self, HTML, TEXT};

/// The links of the page: the path, and what is there.
const LINKS: [(&str, &str); 4] = [
    ("/playground", "try limits and algorithms"),
    ("/dashboard", "what this server decides now"),
    ("/openapi.json", "the HTTP API"),
    ("/docs", "the documentation"),
];

/// Creates the response of `/`. The dashboard is listed if its front is on.
pub fn page(headers: &HeaderMap, has_dashboard: bool) -> HttpResponse {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_html = accepted.flat_map(|value| value.split(',')).any(|kind| {
        let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
        kind.trim().eq_ignore_ascii_case("text/html") && parameters.trim() != "q=0"
    });
    let links: Vec<(&str, &str)> =
        LINKS.into_iter().filter(|(path, _)| *path != "/dashboard" || has_dashboard).collect();
    let (kind, text) = if is_html { (HTML, html(&links)) } else { (TEXT, text(&links)) };
    let mut response = Response::new(content(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    web_pages::harden(headers);
    response
}

fn text(links: &[(&str, &str)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let links: String = links.iter().map(|(path, about)| format!("{path:<14} {about}\n")).collect();
    format!("tidegate {version}\n\n{links}\nPOST /v1/check decides about a request.\n")
}

fn html(links: &[(&str, &str)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let link = |(path, about): &(&str, &str)| {
        let href = path.trim_start_matches('/');
        format!("      <li><a href=\"{href}\">{path}</a>: {about}</li>\n")
    };
    let links: String = links.iter().map(link).collect();
    format!(
        "<!doctype html>
<html lang=\"en\">
<head>
  <meta charset=\"utf-8\">
  <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
  <meta name=\"color-scheme\" content=\"light dark\">
  <title>tidegate</title>
  <link rel=\"icon\" href=\"playground/icon.svg\" type=\"image/svg+xml\">
  <link rel=\"stylesheet\" href=\"playground/playground.css\">
</head>
<body>
  <main>
    <h1>tidegate {version}</h1>
    <ul>
{links}    </ul>
    <p><code>POST /v1/check</code> decides about a request.</p>
  </main>
</body>
</html>
"
    )
}

/// Creates a redirect to the documentation.
pub fn docs() -> HttpResponse {
    redirect(DOCS_URL)
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
