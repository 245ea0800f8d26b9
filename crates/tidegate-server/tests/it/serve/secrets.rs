//! Who may ask.

use super::TWO_PER_HOUR;
use crate::served::{JSON, Start};

const ASK: &str = r#"{"policy":"login","key":"a","cost":0}"#;

#[test]
fn callers_show_one_of_the_secrets() {
    let start = Start::new("tokens").config(TWO_PER_HOUR);
    let file = start.files().write("admin-token", "the-admin\n");
    let server =
        start.env("TIDEGATE_TOKENS", "first, second").env("TIDEGATE_ADMIN_TOKEN_FILE", &file).run();
    #[rustfmt::skip]
    let rows: [(&[(&str, &str)], u16); 7] = [
        (&[JSON, ("authorization", "Bearer first")], 200),
        (&[JSON, ("authorization", "Bearer second")], 200),
        (&[JSON, ("authorization", "Basic dGc6c2Vjb25k")], 200),
        (&[JSON, ("x-tidegate-token", "first"), ("authorization", "Bearer the-users-own")], 200),
        (&[JSON, ("authorization", "Bearer third")], 401),
        (&[JSON, ("authorization", "Bearer the-admin")], 401),
        (&[JSON], 401),
    ];
    for (headers, status) in rows {
        let reply = server.ask("POST", "/v1/check", headers, ASK);
        assert_eq!(reply.status, status, "{headers:?}");
        if status == 401 {
            reply.refuses(401, None, "send one of TIDEGATE_TOKENS as `Authorization: Bearer ...`");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
    }
    for path in
        ["/v1/check/batch", "/v1/permits", "/v1/forward-auth", "/v1/permits/x", "/v1/nothing"]
    {
        assert_eq!(server.ask("POST", path, &[JSON], ASK).status, 401, "{path}");
    }
    assert_eq!(server.ask("GET", "/openapi.json", &[], "").status, 200);
    assert_eq!(server.admin_get("/admin/v1/policies").status, 401);
    assert_eq!(server.admin_get("/readyz").status, 200);
    let said = format!("{}{}", server.printed, server.log());
    assert!(!said.contains("first") && !said.contains("the-admin"), "{said}");
}

#[test]
fn whoever_insists_is_served_and_warned() {
    let start = Start::new("insecure").args(&["--http", "0.0.0.0:0"]).args(&["--insecure-no-auth"]);
    let server = start.run();
    let port = server.http().port();
    let log = server.log();
    assert!(
        log.contains("WARNING: --insecure-no-auth: whoever can reach --http needs no secret"),
        "{log}"
    );
    let mut client = crate::served::Client::connect(([127, 0, 0, 1], port).into());
    client.send(&crate::served::request("GET", "/v1/forward-auth", &[], ""));
    assert_eq!(client.reply("GET").status, 200);
}
