//! Abusive clients do not block the server, and do not make its memory grow.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::{POLICIES, RespClient, assert_answers, run, start};
use crate::serve::{IDLE, IDLE_TURN, may_open_idle};
use crate::server_harness::{Server, wait_for};

/// Far more than a buffer, and far less than the declared lengths.
const LITTLE: u64 = 16 * 1024 * 1024;

#[track_caller]
fn grew_little(server: &Server, before: u64) {
    let grown = server.resident().saturating_sub(before);
    assert!(grown < LITTLE, "the server grew by {grown} bytes");
}

#[test]
fn declared_lengths_do_not_allocate() {
    let server = run("declared");
    assert_answers(&server);
    let before = server.resident();
    let mut open = Vec::new();
    for _ in 0..200 {
        for (sent, reply) in [
            ("*2\r\n$4\r\nECHO\r\n$2147483648\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            ("*1000000\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        ] {
            let mut client = RespClient::connect(server.resp());
            client.send(sent);
            assert_eq!(client.rest(), reply);
        }
        // The maximum length is declared, but nothing is sent.
        let mut client = RespClient::connect(server.resp());
        client.expect_reply("PING\r\n*1024\r\n$32768\r\n", "+PONG\r\n");
        open.push(client);
    }
    grew_little(&server, before);
    assert_answers(&server);
}

#[test]
fn protocol_error_is_sent_to_pipelining_client() {
    let server = run("goes-on");
    for _ in 0..20 {
        let mut client = RespClient::connect(server.resp());
        // Everything is sent before anything is read.
        let _ = client.0.write_all(&[b"*z\r\n".as_slice(), &vec![b'x'; 1024 * 1024]].concat());
        assert_eq!(client.rest(), "-ERR Protocol error: invalid multibulk length\r\n");
    }
}

#[test]
fn closes_stalled_connections_and_keeps_idle_ones() {
    let server = start("let-go").config(POLICIES).env("TIDEGATE_TOKENS", "s3cret").run();
    let known = || {
        let mut client = RespClient::connect(server.resp());
        client.expect_reply("AUTH s3cret\r\n", "+OK\r\n");
        client
    };
    let (mut silent, mut guessing) =
        (RespClient::connect(server.resp()), RespClient::connect(server.resp()));
    let (mut pooled, mut half) = (known(), known());
    half.expect_reply("*2\r\n$4\r\nECHO\r\n$32000\r\nhe", "");
    let before = server.resident();
    for _ in 0..20 {
        let mut flood = RespClient::connect(server.resp());
        let _ = flood.0.write_all(&b"AUTH guess\r\n".repeat(10_000));
        assert_eq!(flood.rest().matches("-WRONGPASS").count(), 16);
    }
    // Clients that send commands, and never read a reply.
    let mut deaf: Vec<RespClient> = (0..16).map(|_| known()).collect();
    let pipeline = b"COMMAND DOCS\r\n".repeat(4000);
    for client in &mut deaf {
        client.0.set_nonblocking(true).expect("an option");
        let full = (0..10_000).find_map(|_| client.0.write(&pipeline).err());
        assert_eq!(
            full.map(|error| error.kind()),
            Some(WouldBlock),
            "the server never stopped reading"
        );
    }
    grew_little(&server, before);

    // Sending a little now and then keeps neither unauthenticated clients nor slow commands alive.
    let gone = |error: std::io::Error| matches!(error.kind(), ConnectionReset | BrokenPipe);
    let mut closed = [false, false];
    wait_for(|| {
        closed[0] = closed[0] || guessing.0.write_all(b"PING\r\n").is_err_and(gone);
        closed[1] = closed[1] || half.0.write_all(b"l").is_err_and(gone);
        std::thread::sleep(Duration::from_millis(200));
        works_for(&mut pooled);
        (closed == [true, true]).then_some(())
    });
    assert_eq!(silent.rest(), "");
    for client in &mut deaf {
        wait_for(|| client.0.write(b"PING\r\n").is_err_and(gone).then_some(()));
    }
    works_for(&mut pooled);
}

#[track_caller]
fn works_for(client: &mut RespClient) {
    client.expect_reply("PING\r\n", "+PONG\r\n");
}

#[test]
fn idle_connections_use_little_memory() {
    let _turn = IDLE_TURN.lock();
    let wanted = if may_open_idle() { IDLE } else { 500 };
    // With a low limit of open files, the fronts share it.
    let server = start("idle").config(POLICIES).args(&["--http", "off"]).run();
    assert_answers(&server);
    let before = server.resident();
    let connect = |_| TcpStream::connect(server.resp()).expect("the server listens");
    let mut idle: Vec<TcpStream> = (0..wanted).map(connect).collect();
    // Each connection has sent a command, so its buffers have been released.
    for stream in &mut idle {
        stream.write_all(b"TG.CHECK api a\r\n").expect("the peer reads");
    }
    let held = || {
        server.metric("tidegate_connections{front=\"resp\"}").filter(|held| *held >= wanted as u64)
    };
    wait_for(held);
    assert_answers(&server);
    let each = server.resident().saturating_sub(before) / wanted as u64;
    assert!(each < 4 * 1024, "{each} bytes for each of {wanted} connections");
    drop(idle);
    assert_answers(&server);
}
