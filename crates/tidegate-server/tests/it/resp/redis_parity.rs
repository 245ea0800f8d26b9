//! Replies that clients of Redis expect, compared with a `redis-server` byte by byte.

use std::net::SocketAddr;

use super::{RespClient, start};
use crate::server_harness::Start;
use crate::shared_store::redis_servers::{PASSWORD, start_redis};

/// Commands. Each ends with `QUIT` or a protocol error, so that the reply can be read to its end.
#[rustfmt::skip]
const OPEN: [&str; 72] = [
    "PING\r\n", "ping hi\r\n", "PiNg 'a b'\r\n", "PING a b\r\n", "ECHO\r\n", "ECHO a\r\n", "*2\r\n$4\r\necho\r\n$0\r\n\r\n",
    "nothing\r\n", "nothing a b\r\n", "*2\r\n$3\r\nfoo\r\n$3\r\n\r\na\r\n", "tg\r\n", "*1\r\n$0\r\n\r\n",
    "SELECT 0\r\n", "SELECT\r\n", "SELECT 99\r\n", "SELECT x\r\n", "SELECT -1\r\n", "SELECT 01\r\n",
    "RESET\r\nPING\r\n", "RESET a\r\n", "QUIT a\r\n", "AUTH a b c\r\n", "AUTH\r\n",
    "HELLO 4\r\n", "HELLO x\r\n", "HELLO 3 FOO\r\n", "HELLO 2 AUTH a\r\n", "HELLO 3 SETNAME\r\n", "HELLO 3 SETNAME 'a b'\r\n",
    "CLIENT\r\n", "CLIENT FOO\r\n", "CLIENT GETNAME\r\n", "CLIENT GETNAME a\r\n", "CLIENT SETNAME\r\n", "CLIENT SETNAME 'a b'\r\n",
    "CLIENT SETNAME x\r\nCLIENT GETNAME\r\nCLIENT SETNAME ''\r\nCLIENT GETNAME\r\n",
    "CLIENT NO-EVICT on\r\n", "CLIENT NO-EVICT x\r\n", "CLIENT NO-EVICT\r\n", "CLIENT REPLY ON\r\n",
    "COMMAND FOO\r\n", "COMMAND DOCS nope\r\n", "COMMAND INFO nope\r\n", "CONFIG\r\n", "CONFIG FOO\r\n", "CONFIG GET\r\n",
    "CONFIG GET save\r\n", "CONFIG GET nope\r\n", "INFO nope\r\n",
    "ECHO \"\\x41\\n\\r\\t\\a\\b\\q\\\"\\x4\\xzz\"\r\n", "ECHO 'a\\'b\\n'\r\n", "ECHO a\"b c\"\r\n", "PING\n\nPING\n",
    "*0\r\n*-1\r\n\r\nPING\r\n", "*1\r\n$4\r\nPING__", "*1\r\n$4\r\nPINGxxPING\r\n", "  PING   \t x  \r\n",
    "CONFIG GET sa*e\r\n", "CONFIG GET SA?E\r\n", "CONFIG GET sav**\r\n", "CONFIG GET sa*f\r\n", "CONFIG GET save?\r\n",
    "MULTI\r\nPING\r\nECHO 'a b'\r\nEXEC\r\nPING\r\n", "MULTI\r\nEXEC\r\n", "EXEC\r\nDISCARD\r\n", "EXEC a\r\nMULTI a\r\nDISCARD a\r\n",
    "MULTI\r\nMULTI\r\nPING\r\nEXEC\r\n", "MULTI\r\nPING\r\nnothing a\r\nPING\r\nEXEC\r\nEXEC\r\n",
    "MULTI\r\nECHO\r\nDISCARD\r\nEXEC\r\n", "MULTI\r\nPING\r\nEXEC a\r\nEXEC\r\n", "MULTI\r\nDISCARD a\r\nEXEC\r\n", "MULTI\r\nPING a b\r\nSELECT x\r\nPING\r\nRESET\r\nEXEC\r\n",
];

/// Violations of the protocol.
#[rustfmt::skip]
const BROKEN: [&str; 16] = [
    "*x\r\n", "*01\r\n", "*+1\r\n", "*\r\n", "*3000000000\r\n", "*1\r\n+PING\r\n", "*1\r\nPING\r\n", "*1\r\n$-1\r\n", "*1\r\n$x\r\n", "*1\r\n$\r\n",
    "*1\r\n$600000000\r\n", "*2\r\n$4\r\nPING\r\n*1\r\n", "\"PING\r\n", "'PING'x\r\n", "PING \"\r\n", "PING\r\n*1\r\n$4\r\nPING\r\n*z\r\n",
];

/// Commands of unauthenticated clients to a server that requires a secret.
#[rustfmt::skip]
const STRANGE: [&str; 13] = [
    "PING\r\n", "nothing\r\n", "ECHO\r\n", "AUTH wrong\r\n", "AUTH default wrong\r\nPING\r\n", "AUTH s3cr3t-p4ssw0rd\r\nPING\r\n",
    "AUTH default s3cr3t-p4ssw0rd\r\nRESET\r\nPING\r\n", "HELLO\r\n", "HELLO 3\r\n", "HELLO 3 AUTH default wrong\r\n", "HELLO 4\r\n",
    "COMMAND\r\n", "RESET\r\n",
];

const STRANGE_AND_BROKEN: [&str; 3] = ["*11\r\n", "*1\r\n$16385\r\n", "*1\r\nx\r\n"];

/// Returns everything that the server replies.
fn replies(address: SocketAddr, sent: &str) -> String {
    let mut client = RespClient::connect(address);
    client.send(sent);
    client.rest()
}

#[test]
fn replies_match_redis() {
    let redis = start_redis();
    let theirs_at: SocketAddr = redis.address().parse().expect("an address");
    let authed = |row: &str| format!("AUTH {PASSWORD}\r\n{row}");
    let server = Start::env(start("same"), "TIDEGATE_TOKENS", PASSWORD).run();
    let quitting = |row: &str| format!("{row}QUIT\r\n");
    let rows = OPEN.iter().map(|row| quitting(&authed(row)));
    let rows = rows.chain(BROKEN.iter().map(|row| authed(row)));
    let rows = rows.chain(STRANGE.iter().map(|row| quitting(row)));
    let rows: Vec<String> = rows.chain(STRANGE_AND_BROKEN.map(str::to_owned)).collect();
    for row in rows {
        let (theirs, ours) = (replies(theirs_at, &row), replies(server.resp(), &row));
        assert_eq!(ours, theirs, "{row:?}");
        assert!(!ours.is_empty());
    }
    // With RESP3. The reply to HELLO names the server, so only the replies after it are compared.
    for row in [
        "CLIENT GETNAME\r\n",
        "CONFIG GET save\r\n",
        "CONFIG GET nope\r\n",
        "INFO nope\r\n",
        "COMMAND DOCS nope\r\n",
    ] {
        let row = quitting(&authed(&format!("HELLO 3\r\n{row}")));
        let behind = |reply: String| {
            reply.split_once("$7\r\nmodules\r\n*0\r\n").map(|(_, rest)| rest.to_owned())
        };
        let (theirs, ours) = (replies(theirs_at, &row), replies(server.resp(), &row));
        assert_eq!(behind(ours), behind(theirs), "{row:?}");
    }
}
