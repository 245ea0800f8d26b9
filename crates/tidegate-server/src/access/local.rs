//! Whether a request without a secret comes from this machine's own programs.
//!
//! A front on loopback needs no secret, because only this machine reaches it. But a
//! web page from elsewhere runs on this machine too: its author points a name of
//! theirs at 127.0.0.1 (DNS rebinding) and the browser sends what the page asks
//! for. What the page cannot choose is what the browser says about it: the name in
//! `Host`, and in `Origin` the site it came from, with every method but GET and
//! HEAD. Programs that are no browsers send no `Origin`.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, HeaderValue, ORIGIN};
use http::uri::Uri;

/// Whether the site a page came from, if there is one, is on this machine.
pub fn origin_is_local(headers: &HeaderMap) -> bool {
    // Mostly there is none: this is all that a check pays.
    !headers.contains_key(ORIGIN) || headers.get_all(ORIGIN).iter().all(is_local_site)
}

/// Whether every name the request calls us by means this machine. One without any,
/// as HTTP/1.0 has it, is from no browser.
pub fn host_is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = uri.authority().is_none_or(|authority| is_local(authority.as_str()));
    named && headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_local))
}

/// `null`, for pages of no site, is none of ours.
fn is_local_site(origin: &HeaderValue) -> bool {
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    site.is_some_and(|(_, host)| is_local(host))
}

/// Whether a host, with or without a port, is this machine whatever DNS says:
/// an address of the loopback range, or `localhost`, which browsers do not look up.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inside, "")) => inside,
            Some((inside, port)) if port.strip_prefix(':').is_some_and(is_port) => inside,
            _ => return false,
        },
        None => match host.split_once(':') {
            None => host,
            Some((name, port)) if is_port(port) => name,
            Some(_) => return false,
        },
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Digits, or nothing: `localhost:` is how a URI may write it.
fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_names() {
        #[rustfmt::skip]
        let rows = [
            ("localhost", true), ("localhost:8080", true), ("LocalHost.", true), ("a.b.localhost:1", true),
            ("127.0.0.1", true), ("127.9.8.7:65535", true), ("[::1]", true), ("[::1]:9090", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("", false), ("evil.example", false), ("evil.example:8080", false), ("localhost.evil.example", false),
            ("notlocalhost", false), ("127.0.0.1.evil.example", false), ("127.1", false), ("0.0.0.0", false),
            ("192.168.0.1:8080", false), ("[::]:80", false), ("[::1", false), ("[::1]x", false), ("::1]", false),
            ("localhost@evil.example", false), ("evil@localhost", false), ("localhost:", true), ("[::1]:", true),
            ("localhost:80@evil.example", false), ("localhost:x", false), ("127.0.0.1:80:80", false),
            ("localhost:80/", false), ("[::1]:x", false), ("[::1]:80@evil.example", false), ("localhost:+80", false),
        ];
        for (host, expected) in rows {
            assert_eq!(is_local(host), expected, "{host}");
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            assert_eq!(host_is_local(&Uri::from_static("/admin/v1"), &headers), expected, "{host}");
            let origin = format!("https://{host}").parse().expect("a value");
            let headers = HeaderMap::from_iter([(ORIGIN, origin)]);
            assert_eq!(origin_is_local(&headers), expected, "{host}");
        }
        for origin in ["null", "localhost", "http:localhost", "\u{e9}"] {
            let origin = HeaderValue::from_bytes(origin.as_bytes()).expect("a value");
            assert!(!origin_is_local(&HeaderMap::from_iter([(ORIGIN, origin)])));
        }
        assert!(origin_is_local(&HeaderMap::new()));
    }

    #[test]
    fn every_name_must_be_this_machines() {
        let mut headers = HeaderMap::new();
        for host in ["localhost", "evil.example"] {
            headers.append(HOST, HeaderValue::from_static(host));
        }
        assert!(!host_is_local(&Uri::from_static("/"), &headers));
        // Over HTTP/2, and where the target is a whole address.
        assert!(!host_is_local(&Uri::from_static("http://evil.example/"), &HeaderMap::new()));
        assert!(host_is_local(&Uri::from_static("http://[::1]:90/"), &HeaderMap::new()));
        assert!(host_is_local(&Uri::from_static("/"), &HeaderMap::new()), "HTTP/1.0");
    }
}
