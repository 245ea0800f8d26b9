//! The dashboard page: complete, safe against the text it shows, and consistent.

use std::collections::BTreeSet;

use super::POLICIES;
use super::server::Server;

const HTML: &str = include_str!("../../../src/admin/assets/dashboard.html");
const SCRIPT: &str = include_str!("../../../src/admin/assets/dashboard.js");
const MODULES: [(&str, &str); 5] = [
    ("dashboard.js", SCRIPT),
    ("api.js", include_str!("../../../src/admin/assets/api.js")),
    ("charts.js", include_str!("../../../src/admin/assets/charts.js")),
    ("format.js", include_str!("../../../src/admin/assets/format.js")),
    ("intervals.js", include_str!("../../../src/admin/assets/intervals.js")),
];
const STYLE: &str = include_str!("../../../src/admin/assets/dashboard.css");

#[test]
fn page_files_have_strict_content_policy() {
    let server = Server::start("dashboard", POLICIES);
    let mut rows = vec![
        ("/dashboard".to_owned(), "text/html; charset=utf-8", HTML),
        ("/dashboard/dashboard.css".to_owned(), "text/css; charset=utf-8", STYLE),
    ];
    for (name, text) in MODULES {
        rows.push((format!("/dashboard/{name}"), "text/javascript; charset=utf-8", text));
    }
    for (path, kind, text) in &rows {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, *kind));
        assert_eq!(answer.body, *text, "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cache-control"), "no-store");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
    }
    assert_eq!(server.get("/dashboard/icon.svg").header("content-type"), "image/svg+xml");
    assert!(server.get("/dashboard/uplot.js").body.contains("uPlot"));
    assert_eq!(server.get("/dashboard/uplot.css").status, 200);
    assert!(server.get("/dashboard/uplot.txt").body.contains("The MIT License"));
}

#[test]
fn page_loads_nothing_external_or_inline() {
    for (name, text) in [("html", HTML), ("style", STYLE)].into_iter().chain(MODULES) {
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !elsewhere.contains("//www") && !elsewhere.contains("://"),
            "{name} loads an external resource"
        );
    }
    assert_eq!(HTML.matches("<script").count(), HTML.matches("<script src=\"dashboard/").count());
    for inline in
        [" style=", " onclick=", " onload=", " onsubmit=", " onerror=", "javascript:", "<style"]
    {
        assert!(!HTML.contains(inline), "{inline} is inline");
    }
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ] {
        let makes_markup = MODULES.iter().any(|(_, text)| text.contains(way));
        assert!(!makes_markup, "{way} would insert a key as markup");
    }
    let keeps = |place| MODULES.iter().any(|(_, text)| text.contains(place));
    assert!(keeps("sessionStorage") && !keeps("localStorage"));
}

/// Returns the texts between `start` and the next quote.
fn between<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    text.split(start).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn script_elements_exist_in_page() {
    let ids = between(HTML, " id=\"");
    assert_eq!(ids.len(), HTML.matches(" id=\"").count(), "an id is used twice");
    for start in ["$(\"", "put(\"", "fill(\"", "options(\""] {
        for id in between(SCRIPT, start) {
            assert!(ids.contains(id), "{start}{id}\"");
        }
    }
    // Every input has a label.
    for id in between(HTML, "<input id=\"").union(&between(HTML, "<select id=\"")) {
        assert!(HTML.contains(&format!("<label for=\"{id}\"")), "{id}");
    }
}
