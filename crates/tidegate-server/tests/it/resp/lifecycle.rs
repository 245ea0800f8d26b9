//! Secrets, TLS and shutdown.

use std::io::{Read, Write};

use tidegate_testkit::Authority;

use super::{POLICIES, RespClient, assert_answers, run, start};
use crate::serve::connect_tls;

#[test]
fn public_address_requires_secret() {
    let open = |test: &str| start(test).config(POLICIES).args(&["--resp", "0.0.0.0:0"]);
    let (code, message) = open("open").fails();
    assert_eq!(code, 1);
    assert!(
        message.starts_with(
            "error: --resp 0.0.0.0:0 is reachable from other machines, and TIDEGATE_TOKENS is not set"
        ),
        "{message}"
    );
    let server = open("secret").env("TIDEGATE_TOKENS", "one,two").run();
    let mut client = RespClient::connect(([127, 0, 0, 1], server.resp().port()).into());
    client.expect_reply(
        "PING\r\nAUTH two\r\nPING\r\n",
        "-NOAUTH Authentication required.\r\n+OK\r\n+PONG\r\n",
    );
}

#[test]
fn port_in_use_error_names_the_flag() {
    let server = run("taken");
    let taken = server.resp().to_string();
    let (code, message) = start("taken-twice").args(&["--resp", &taken]).fails();
    let expected = format!(
        "error: --resp {taken}: the address is in use: stop the other program, or choose another port (--resp 127.0.0.1:0 takes a free one)\n"
    );
    assert_eq!((code, message), (1, expected));
}

#[test]
fn serves_tls() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let start = start("tls");
    start.files().write("cert.pem", certificate);
    start.files().write("key.pem", key);
    let config = format!("tls: {{ resp: {{ cert: cert.pem, key: key.pem }} }}\n{POLICIES}");
    let server = start.config(&config).run();
    assert!(server.printed.contains("  resp   rediss://127.0.0.1:"), "{}", server.printed);
    let mut tls = connect_tls(&authority, server.resp(), None);
    for _ in 0..3 {
        // More than fits a TLS record, so that it is sent in parts.
        tls.write_all(&b"PING\r\n".repeat(10_000)).expect("the peer reads");
        let mut replies = vec![0; 70_000];
        tls.read_exact(&mut replies).expect("replies");
        assert!(replies == b"+PONG\r\n".repeat(10_000));
    }
    let mut plain = RespClient::connect(server.resp());
    plain.send("PING\r\n");
    assert!(!plain.rest().contains("PONG"));
}

#[test]
fn shutdown_answers_received_commands() {
    let mut server = run("drain");
    let mut idle = RespClient::connect(server.resp());
    idle.expect_reply("PING\r\n", "+PONG\r\n");
    let mut silent = RespClient::connect(server.resp());
    let mut half = RespClient::connect(server.resp());
    half.expect_reply("PING\r\n*1\r\n$4\r\nPI", "+PONG\r\n");
    assert_answers(&server);
    server.signal("-TERM");
    for client in [&mut idle, &mut silent, &mut half] {
        assert_eq!(client.rest(), "");
    }
    assert_eq!(server.ended(), 0);
    assert!(!server.log().contains("out of patience"), "{}", server.log());
}

#[test]
fn counts_replies_by_code() {
    let server = run("counted");
    let mut client = RespClient::connect(server.resp());
    // Denied and rejected commands, and some without a reply.
    client.send("TG.CHECK login a COST 3\r\n\r\nTG.CHECK login a\r\nTG.CHECK nobody a\r\n*0\r\nnonsense\r\n");
    client.send(
        "MULTI\r\nPING\r\nTG.PEEK nobody a\r\nEXEC\r\nMULTI\r\nno\r\nEXEC\r\nHELLO 9\r\n*x\r\n",
    );
    assert!(client.rest().ends_with("-ERR Protocol error: invalid multibulk length\r\n"));
    let count =
        |code: &str| server.metric(&format!("tidegate_resp_requests_total{{code=\"{code}\"}}"));
    let counts = ["OK", "ERR", "EXECABORT", "NOPROTO", "NOAUTH"].map(count);
    assert_eq!(counts, [Some(8), Some(5), Some(1), Some(1), None]);
}

#[test]
fn reload_applies_to_open_connections() {
    let server = run("reload");
    let mut client = RespClient::connect(server.resp());
    client.expect_reply(
        "TG.PEEK login a\r\n",
        "*7\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
    );
    server.files.write("tidegate.yaml", POLICIES.replace("2 per 1h", "3 per 1h"));
    server.signal("-HUP");
    crate::server_harness::wait_for(|| {
        client.send("TG.PEEK login a\r\n");
        client.read(46).contains(":3\r\n:3\r\n").then_some(())
    });
}
