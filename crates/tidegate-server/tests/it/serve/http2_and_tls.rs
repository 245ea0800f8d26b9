//! HTTP/2 and TLS.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use tidegate_testkit::Authority;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

use super::TWO_PER_HOUR;
use crate::http2_frames::{Connection, Frames};
use crate::server_harness::{PATIENCE, Reply, Server, Start, read_reply, request};

const ASK: &str = r#"{"policy":"login","key":"a","cost":0}"#;

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        tokio::time::timeout(PATIENCE, future).await.expect("within the deadline")
    })
}

async fn connect(
    address: SocketAddr,
) -> (h2::client::SendRequest<Bytes>, tokio::task::JoinHandle<Result<(), h2::Error>>) {
    let stream = tokio::net::TcpStream::connect(address).await.expect("the server listens");
    let (send, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    (send, tokio::spawn(connection))
}

fn post(path: &str) -> http::Request<()> {
    http::Request::post(format!("http://tidegate{path}")).body(()).expect("a request")
}

#[test]
fn accepts_http2_with_prior_knowledge() {
    let server = Start::new("h2").config(TWO_PER_HOUR).run();
    let (status, body) = run(async {
        let (send, _connection) = connect(server.http()).await;
        let mut send = send.ready().await.expect("a free stream");
        let (response, mut stream) = send.send_request(post("/v1/check"), false).expect("sent");
        stream.send_data(Bytes::from_static(ASK.as_bytes()), true).expect("sent");
        let response = response.await.expect("a response");
        let status = response.status();
        let body = response.into_body().data().await.expect("a body").expect("a body");
        (status, body)
    });
    assert_eq!(status, 200);
    let answer: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(answer["remaining"], 2);
}

/// A request that is rejected before its body was read gets a response, and its stream is not
/// reset, which some clients treat as a broken response.
#[test]
fn drains_unwanted_body_before_rejecting() {
    let server = Start::new("h2-unwanted").config(TWO_PER_HOUR).run();
    run(async {
        let (mut send, _connection) = connect(server.http()).await;
        let rows =
            [("/nothing", 404), ("/v1/check", 415), ("/v1/permits", 415), ("/openapi.json", 405)];
        for (path, status) in rows.into_iter().cycle().take(40) {
            let mut request = post(path);
            let kind = http::HeaderValue::from_static("text/plain");
            request.headers_mut().insert("content-type", kind);
            send = send.ready().await.expect("a free stream");
            let (response, mut stream) = send.send_request(request, false).expect("sent");
            for last in [false, false, false, true] {
                stream.send_data(Bytes::from_static(&[b'x'; 2048]), last).expect("sent");
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let response = response.await.expect("a response");
            assert_eq!(response.status(), status, "{path}");
            let mut body = response.into_body();
            while let Some(bytes) = body.data().await {
                bytes.expect("a body");
            }
            // Another request, after which all frames of this one have arrived.
            send = send.ready().await.expect("a free stream");
            let (response, _) = send.send_request(post("/openapi.json"), true).expect("sent");
            assert_eq!(response.await.expect("a response").status(), 405);
            let reset = std::future::poll_fn(|context| {
                std::task::Poll::Ready(stream.poll_reset(context).is_ready())
            });
            assert!(!reset.await, "{path} was reset");
        }
    });
}

#[test]
fn rapid_resets_do_not_grow_memory() {
    let server = Start::new("h2-resets").config(TWO_PER_HOUR).run();
    let before = server.resident();
    run(async {
        for _ in 0..5 {
            let (send, connection) = connect(server.http()).await;
            let mut sender = Some(send);
            for _ in 0..2_000 {
                let Some(send) = sender.take() else { break };
                let Ok(mut ready) = send.ready().await else { break };
                let Ok((_, mut stream)) = ready.send_request(post("/v1/check"), false) else {
                    break;
                };
                stream.send_reset(h2::Reason::CANCEL);
                sender = Some(ready);
                tokio::task::yield_now().await;
            }
            drop(sender);
            connection.abort();
        }
    });
    assert_eq!(server.check(ASK).status, 200);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 32 * 1024 * 1024, "the server grew by {grown} bytes");
}

/// Every invalid request is answered with a reset. The server stops reading from a client that does
/// not read them, so that they cannot accumulate.
#[test]
fn unread_resets_do_not_grow_memory() {
    let server = Start::new("h2-unread-resets").config(TWO_PER_HOUR).run();
    let before = server.resident();
    let mut connection =
        Connection::begin(TcpStream::connect(server.http()).expect("the server listens"));
    let mut stream = 1;
    let refused = loop {
        let mut frames = Frames::default();
        for _ in 0..1_000 {
            frames = frames.post(stream, "", &[], true);
            stream += 2;
        }
        if let Err(error) = connection.try_send(&frames) {
            break error.kind();
        }
        let grown = server.resident().saturating_sub(before);
        assert!(grown < 32 * 1024 * 1024, "the server grew by {grown} bytes after {stream}");
    };
    assert!(matches!(refused, ConnectionReset | BrokenPipe), "{refused}");
    assert_eq!(server.check(ASK).status, 200);
}

/// Connects with TLS as a client that trusts this authority, with or without a certificate.
pub fn connect_tls(
    authority: &Authority,
    address: SocketAddr,
    own: Option<&(String, String)>,
) -> StreamOwned<ClientConnection, TcpStream> {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM");
    roots.add(root).expect("a certificate");
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(chain, key).expect("a certificate")
        }
    };
    let name = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    StreamOwned::new(session, stream)
}

/// Sends a check over TLS, with an optional client certificate. Returns `None` if the connection is
/// rejected.
fn ask_tls(server: &Server, trusted: &Authority, own: Option<&(String, String)>) -> Option<Reply> {
    let mut tls = connect_tls(trusted, server.http(), own);
    tls.write_all(&request("POST", "/v1/check", &[crate::server_harness::JSON], ASK)).ok()?;
    let mut first = [0];
    tls.read_exact(&mut first).ok()?;
    Some(read_reply(&mut first.chain(tls), "POST"))
}

#[test]
fn serves_tls_and_requires_client_certificates() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (certificate, key) = ours.sign("localhost");
    let config = |client_ca: &str| {
        format!("tls: {{ http: {{ cert: cert.pem, key: key.pem{client_ca} }} }}\n{TWO_PER_HOUR}")
    };
    let start = |test: &str, client_ca: &str| {
        let start = Start::new(test);
        start.files().write("cert.pem", &certificate);
        start.files().write("key.pem", &key);
        start.files().write("ca.pem", theirs.pem());
        start.config(&config(client_ca)).run()
    };
    let open = start("tls", "");
    assert!(open.printed.contains("  http   https://127.0.0.1:"), "{}", open.printed);
    assert_eq!(ask_tls(&open, &ours, None).map(|reply| reply.status), Some(200));
    assert!(
        ask_tls(&open, &theirs, None).is_none(),
        "a client that trusts another authority must fail"
    );

    let closed = start("tls-clients", ", client_ca: ca.pem");
    assert!(ask_tls(&closed, &ours, None).is_none());
    assert!(ask_tls(&closed, &ours, Some(&ours.sign("localhost"))).is_none());
    let known = ask_tls(&closed, &ours, Some(&theirs.sign("localhost")));
    assert_eq!(known.map(|reply| reply.status), Some(200));
    // Plain text is rejected, and the next connection works.
    let mut plain = TcpStream::connect(closed.http()).expect("the server listens");
    plain.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    plain.write_all(&request("GET", "/v1/forward-auth", &[], "")).expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    closed.logged("a client connected without TLS to a front with TLS: use https://");
    assert!(ask_tls(&closed, &ours, Some(&theirs.sign("localhost"))).is_some());
}

#[test]
fn client_certificate_does_not_replace_secret() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let start = Start::new("tls-exposed").args(&["--http", "0.0.0.0:0"]);
    start.files().write("cert.pem", certificate);
    start.files().write("key.pem", key);
    let config = format!("tls: {{ http: {{ cert: cert.pem, key: key.pem }} }}\n{TWO_PER_HOUR}");
    let (code, message) = start.config(&config).fails();
    assert_eq!(code, 1);
    assert!(message.contains("TIDEGATE_TOKENS is not set"), "{message}");
}
