//! Free addresses.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns a free port on 127.0.0.1.
///
/// The port is below the range that the system uses for outgoing connections. Otherwise such a
/// connection could take the port before the server of the test does, or while that server
/// restarts.
pub fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Several test runs on one machine begin at different numbers.
    let start = u16::try_from(std::process::id() * 97 % u32::from(COUNT)).expect("below COUNT");
    (0..COUNT)
        .map(|_| FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port")
}

/// Returns a free address on 127.0.0.1.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}
