//! `/`, and the links between the pages of the fronts.

use crate::server_harness::{Client, Reply, Start, request};

fn get(server: &crate::server_harness::Server, path: &str, headers: &[(&str, &str)]) -> Reply {
    server.ask("GET", path, headers, "")
}

#[test]
fn front_page_links_to_every_page() {
    let server = Start::new("front-page").run();
    let browser = ("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
    let html = get(&server, "/", &[browser]);
    assert_eq!((html.status, html.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(html.header("content-security-policy").is_some());
    for accept in [&[("accept", "*/*")][..], &[("accept", "text/html;q=0")], &[]] {
        let text = get(&server, "/", accept);
        let kind = text.header("content-type");
        assert_eq!((text.status, kind), (200, Some("text/plain; charset=utf-8")), "{accept:?}");
        assert_eq!(text.header("vary"), Some("accept"));
        for page in ["playground", "dashboard", "openapi.json", "docs"] {
            assert!(text.text().contains(&format!("/{page} ")), "{page}: {}", text.text());
            assert!(html.text().contains(&format!("href=\"{page}\"")), "{page}: {}", html.text());
            let status = get(&server, &format!("/{page}"), &[]).status;
            assert!(matches!(status, 200 | 303), "{page}: {status}");
        }
    }
    server.ask("POST", "/", &[], "").refuses(405, None, "use GET, HEAD");
}

#[test]
fn pages_link_to_each_other_across_fronts() {
    let server = Start::new("page-links").run();
    let dashboard = format!("http://{}/dashboard", server.admin());
    let playground = format!("http://{}/playground", server.http());
    let to_dashboard = get(&server, "/dashboard", &[]);
    assert_eq!((to_dashboard.status, to_dashboard.header("location")), (303, Some(&*dashboard)));
    let to_playground = server.admin_get("/playground");
    assert_eq!((to_playground.status, to_playground.header("location")), (303, Some(&*playground)));
    let to_docs = server.admin_get("/docs");
    let docs = format!("http://{}/docs", server.http());
    assert_eq!((to_docs.status, to_docs.header("location")), (303, Some(&*docs)));
    let page = get(&server, "/playground", &[]).text();
    assert!(page.contains("href=\"dashboard\"") && page.contains("href=\"docs\""));
    let page = server.admin_get("/dashboard").text();
    assert!(page.contains("href=\"playground\"") && page.contains("href=\"docs\""));
}

#[test]
fn docs_page_names_every_page_of_the_documentation() {
    let server = Start::new("docs-page").run();
    let browser = ("accept", "text/html");
    let pages = [get(&server, "/docs", &[]), get(&server, "/docs", &[browser])];
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("the documentation") {
        let name = entry.expect("a file").file_name().into_string().expect("UTF-8");
        if name.ends_with(".md") {
            count += 1;
            for page in &pages {
                assert!(page.text().contains(&format!("docs/{name}")), "{name}: {}", page.text());
            }
        }
    }
    assert_eq!(pages[0].text().matches("docs/").count(), count + 1, "the tutorial is named twice");
    assert!(!pages[1].text().contains("://"), "no link leads outside");
    for link in ["playground", "dashboard", "openapi.json"] {
        assert!(pages[1].text().contains(&format!("href=\"{link}\"")), "{link}");
    }
}

#[test]
fn links_of_open_fronts_keep_the_host_name() {
    let start = Start::new("page-links-open").args(&["--admin", "0.0.0.0:0"]);
    let server = start.env("TIDEGATE_ADMIN_TOKEN", "hush").run();
    let port = server.admin().port();
    let mut client = Client::connect(server.http());
    let asked = String::from_utf8(request("GET", "/dashboard", &[], "")).expect("UTF-8");
    let host = asked.lines().find(|line| line.starts_with("host: ")).expect("a host").to_owned();
    client.send(asked.replace(&host, "host: limits.internal:8080").as_bytes());
    let expected = format!("http://limits.internal:{port}/dashboard");
    assert_eq!(client.reply("GET").header("location"), Some(&*expected));
    let off = Start::new("page-links-off").args(&["--admin", "off"]).run();
    get(&off, "/dashboard", &[]).refuses(404, None, "not found; see /");
    assert!(!get(&off, "/", &[]).text().contains("dashboard"));
    get(&off, "/metrics", &[]).refuses(404, None, "at the address of --admin");
    get(&off, "/admin/v1/policies", &[]).refuses(404, None, "at the address of --admin");
}
