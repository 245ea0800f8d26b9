//! The address that a request is counted under, and that a client cannot choose it.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tidegate::unstable::attributes::Headers;
use tidegate::unstable::identity::{Identity, MAX_HOPS, Source};

const XFF: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";
/// The peer in most tests, a trusted proxy.
const PEER: &str = "10.0.0.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn identity() -> Identity {
    let nets: [&str; 3] = ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"];
    Identity::trusting(nets).expect("networks")
}

fn map(fields: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let value = HeaderValue::from_bytes(value).expect("a value");
        map.append(HeaderName::from_static(name), value);
    }
    map
}

fn client(identity: &Identity, peer: &str, fields: &[(&'static str, &[u8])]) -> String {
    let found = identity.client_ip(Some(ip(peer)), &Headers::Map(&map(fields)));
    found.expect("a peer has an address").to_string()
}

/// Rows of `(description, X-Forwarded-For, client)` behind one trusted peer.
#[test]
fn x_forwarded_for_is_walked_from_the_right() {
    let rows: &[(&str, &str, &str)] = &[
        ("one hop", "198.51.100.7", "198.51.100.7"),
        ("the client's claim stays out", "6.6.6.6, 198.51.100.7", "198.51.100.7"),
        ("trusted hops are passed", "6.6.6.6, 198.51.100.7, 10.9.9.9,10.0.0.2", "198.51.100.7"),
        ("all trusted: the leftmost", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("a trusted address claimed", "10.0.0.3, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("blanks and tabs", " \t198.51.100.7\t ,\t10.0.0.2 ", "198.51.100.7"),
        // Ports as part of the key made every connection a new client (express-rate-limit #234).
        ("a port", "198.51.100.7:51234", "198.51.100.7"),
        ("another port", "198.51.100.7:80, 10.0.0.2:65535", "198.51.100.7"),
        ("IPv6", "2001:db8::7", "2001:db8::7"),
        ("IPv6, long form", "2001:0DB8:0:0:0:0:0:7", "2001:db8::7"),
        ("IPv6 in brackets", "[2001:db8::7]", "2001:db8::7"),
        ("IPv6 with a port", "[2001:db8::7]:443, fd00::2", "2001:db8::7"),
        ("a zone", "fe80::1%eth0", "fe80::1"),
        ("a zone, brackets, a port", "[fe80::1%25eth0]:80", "fe80::1"),
        // Mapped addresses shared one IPv6 bucket (CVE-2026-30827).
        ("mapped IPv4", "::ffff:198.51.100.7", "198.51.100.7"),
        ("mapped IPv4 in hexadecimal", "[::ffff:c633:6407]:80", "198.51.100.7"),
        ("a trusted hop, mapped", "198.51.100.7, ::ffff:10.0.0.2", "198.51.100.7"),
        ("no address", "", PEER),
        ("garbage ends the walk", "198.51.100.7, garbage", PEER),
        ("garbage after a trusted hop", "198.51.100.7, garbage, 10.0.0.2", "10.0.0.2"),
        ("unknown", "198.51.100.7, unknown, 10.0.0.2", "10.0.0.2"),
        ("an obfuscated hop", "198.51.100.7, _hidden, 10.0.0.2", "10.0.0.2"),
        ("an empty entry", "198.51.100.7, , 10.0.0.2", "10.0.0.2"),
        ("an empty last entry", "198.51.100.7,", PEER),
        ("quotes", "\"198.51.100.7\"", PEER),
        ("a port that is none", "198.51.100.7:", PEER),
        ("a port out of range", "198.51.100.7:65536", PEER),
        ("a signed port", "198.51.100.7:+80", PEER),
        ("text after the bracket", "[2001:db8::7]x", PEER),
        ("an open bracket", "[2001:db8::7", PEER),
        ("IPv4 in brackets", "[198.51.100.7]", PEER),
        ("an empty zone", "fe80::1%", PEER),
        ("a zone of IPv4", "198.51.100.7%eth0", PEER),
        ("octal", "0198.51.100.07", PEER),
        ("a short form", "198.51.7", PEER),
        ("a number", "3325256711", PEER),
        ("a net", "198.51.100.0/24", PEER),
        ("a socket", "unix:", PEER),
    ];
    let identity = identity();
    for (description, value, expected) in rows {
        let found = client(&identity, PEER, &[(XFF, value.as_bytes())]);
        assert_eq!(found, *expected, "{description}: {value:?}");
    }
}

/// Rows of `(description, Forwarded, client)` behind one trusted peer.
#[test]
fn forwarded_is_walked_from_the_right() {
    let rows: &[(&str, &str, &str)] = &[
        ("one hop", "for=198.51.100.7", "198.51.100.7"),
        ("names have no case", "Proto=https;FOR=198.51.100.7;By=10.0.0.1", "198.51.100.7"),
        ("the client's claim stays out", "for=6.6.6.6, for=198.51.100.7", "198.51.100.7"),
        ("trusted hops are passed", "for=198.51.100.7,for=10.0.0.2;proto=http", "198.51.100.7"),
        ("quoted", "for=\"198.51.100.7\"", "198.51.100.7"),
        ("a port", "for=\"198.51.100.7:4711\"", "198.51.100.7"),
        ("an obfuscated port", "for=\"198.51.100.7:_web\"", "198.51.100.7"),
        ("IPv6", "for=\"[2001:db8::7]:4711\"", "2001:db8::7"),
        ("IPv6, not quoted", "for=[2001:db8::7]:4711", "2001:db8::7"),
        ("mapped IPv4", "for=\"[::ffff:198.51.100.7]\"", "198.51.100.7"),
        ("escapes", "for=\"\\1\\98.51.100.7\"", "198.51.100.7"),
        ("a comma in quotes", "for=198.51.100.7;host=\"a,for=6.6.6.6\"", "198.51.100.7"),
        ("a semicolon in quotes", "for=198.51.100.7;host=\"a;for=6.6.6.6\"", "198.51.100.7"),
        ("a quote in quotes", "for=198.51.100.7;host=\"a\\\",for=6.6.6.6\"", "198.51.100.7"),
        ("a backslash before the end", "for=198.51.100.7;host=\"a\\\\\"", "198.51.100.7"),
        ("blanks around semicolons", "proto=http ; for=198.51.100.7 ;", "198.51.100.7"),
        ("an open quote of the client's", "for=\", for=198.51.100.7", "198.51.100.7"),
        ("and one with an escape", "for=\"\\, for=\"198.51.100.7\"", "198.51.100.7"),
        ("unknown", "for=198.51.100.7, for=unknown, for=10.0.0.2", "10.0.0.2"),
        ("obfuscated", "for=198.51.100.7, for=_secret", PEER),
        ("no for", "for=198.51.100.7, proto=https", PEER),
        ("nothing", "", PEER),
        ("an empty element", "for=198.51.100.7,", PEER),
        ("`for` twice", "for=198.51.100.7;for=6.6.6.6", PEER),
        ("a pair without a value", "for=198.51.100.7;secret", PEER),
        ("an empty value", "for=", PEER),
        ("an empty string", "for=\"\"", PEER),
        ("blanks around the equals sign", "for = 198.51.100.7", PEER),
        ("an open quote", "for=\"198.51.100.7", PEER),
        ("text after a string", "for=\"198.51.100.7\"x", PEER),
        // A proxy that copies a client's quote into its own element without escaping it must not
        // merge the two elements.
        ("a quote let through", "for=6.6.6.6;x=\", for=198.51.100.7;host=\"a", PEER),
    ];
    let identity = identity();
    for (description, value, expected) in rows {
        let found = client(&identity, PEER, &[(FORWARDED, value.as_bytes())]);
        assert_eq!(found, *expected, "{description}: {value:?}");
    }
}

/// Rows of `(description, peer, client)` with a header that claims another address.
#[test]
fn a_peer_that_is_not_trusted_is_the_client() {
    let rows = [
        ("IPv4", "198.51.100.7", "198.51.100.7"),
        ("mapped IPv4", "::ffff:198.51.100.7", "198.51.100.7"),
        ("IPv6", "2001:db8::7", "2001:db8::7"),
        ("beside the trusted one", "192.0.2.2", "192.0.2.2"),
        ("a trusted one, mapped", "::ffff:10.0.0.1", "6.6.6.6"),
        ("a trusted one", "192.0.2.1", "6.6.6.6"),
        ("the last of a net", "10.255.255.255", "6.6.6.6"),
    ];
    for (description, peer, expected) in rows {
        for header in [(XFF, "6.6.6.6"), (FORWARDED, "for=6.6.6.6")] {
            let fields = [(header.0, header.1.as_bytes())];
            assert_eq!(client(&identity(), peer, &fields), expected, "{description}, {}", header.0);
        }
    }
    let nobody = Identity::default();
    assert_eq!(client(&nobody, "127.0.0.1", &[(XFF, b"6.6.6.6")]), "127.0.0.1");
    assert_eq!(identity().client_ip(None, &Headers::Map(&map(&[(XFF, b"6.6.6.6")]))), None);
}

/// Several header lines are one list, in order. `X-Real-IP` is never read.
#[test]
fn several_header_lines_are_one_list() {
    type Row = (&'static [(&'static str, &'static [u8])], &'static str);
    let rows: &[Row] = &[
        (&[(XFF, b"6.6.6.6"), (XFF, b"198.51.100.7, 10.0.0.2")], "198.51.100.7"),
        (&[(XFF, b"6.6.6.6, 198.51.100.7"), (XFF, b"10.0.0.2")], "198.51.100.7"),
        (&[(XFF, b"198.51.100.7"), (XFF, b"6.6.6.6")], "6.6.6.6"),
        (&[(XFF, b"198.51.100.7"), (XFF, b"")], PEER),
        (&[(FORWARDED, b"for=\""), (FORWARDED, b"for=198.51.100.7")], "198.51.100.7"),
        (&[("x-real-ip", b"6.6.6.6")], PEER),
        (&[("x-real-ip", b"6.6.6.6"), (XFF, b"198.51.100.7")], "198.51.100.7"),
        (&[], PEER),
    ];
    for (fields, expected) in rows {
        assert_eq!(client(&identity(), PEER, fields), *expected, "{fields:?}");
    }
}

/// A proxy writes one of the two headers and forwards the other.
#[test]
fn source_selects_the_header() {
    type Lines = &'static [(&'static str, &'static [u8])];
    let sent: [Lines; 4] = [
        &[(FORWARDED, b"for=6.6.6.6"), (XFF, b"198.51.100.7")],
        &[(XFF, b"198.51.100.7")],
        &[(FORWARDED, b"for=6.6.6.6")],
        &[(XFF, b""), (FORWARDED, b"for=6.6.6.6")],
    ];
    let rows = [
        ("either", ["198.51.100.7", "198.51.100.7", "6.6.6.6", PEER]),
        ("x-forwarded-for", ["198.51.100.7", "198.51.100.7", PEER, PEER]),
        ("forwarded", ["6.6.6.6", PEER, "6.6.6.6", "6.6.6.6"]),
    ];
    for (name, expected) in rows {
        let source: Source = name.parse().expect("a source");
        assert_eq!(source.to_string(), name);
        let identity = identity().reading(source);
        for (fields, expected) in sent.into_iter().zip(expected) {
            assert_eq!(client(&identity, PEER, fields), expected, "{name}: {fields:?}");
        }
    }
    assert_eq!(
        "x-real-ip".parse::<Source>().expect_err("no source").to_string(),
        "use either, x-forwarded-for or forwarded"
    );
}

#[test]
fn walk_stops_at_max_hops() {
    let hops = |count: usize| format!("198.51.100.7{}", ", 10.0.0.2".repeat(count));
    let found = |value: String| client(&identity(), PEER, &[(XFF, value.as_bytes())]);
    assert_eq!(found(hops(MAX_HOPS - 1)), "198.51.100.7");
    assert_eq!(found(hops(MAX_HOPS)), "10.0.0.2", "trusted, and the last hop within max_hops");
}

#[test]
fn headers_can_be_given_as_pairs() {
    let pairs = [("x-FORWARDED-for", "6.6.6.6"), ("X-Forwarded-For", "198.51.100.7, 10.0.0.2")];
    let pairs = pairs.map(|(name, value)| (Cow::Borrowed(name), Cow::Borrowed(value)));
    let found = identity().client_ip(Some(ip(PEER)), &Headers::Pairs(&pairs));
    assert_eq!(found, Some(ip("198.51.100.7")));
    assert_eq!(identity().client_ip(Some(ip(PEER)), &Headers::None), Some(ip(PEER)));
}

/// Rows of `(trusted, address, expected)`.
#[test]
fn trusted_networks_cover_their_range() {
    let rows: &[(&[&str], &str, bool)] = &[
        (&[], "127.0.0.1", false),
        (&["10.0.0.0/8"], "10.0.0.0", true),
        (&["10.0.0.0/8"], "9.255.255.255", false),
        (&["10.0.0.0/8"], "11.0.0.0", false),
        (&["0.0.0.0/0"], "203.0.113.9", true),
        (&["0.0.0.0/0"], "2001:db8::1", false),
        (&["::/0"], "2001:db8::1", true),
        (&["::/0"], "::ffff:1.2.3.4", false),
        (&["fd00::/8"], "fdff::1", true),
        (&["fd00::/8"], "fe00::1", false),
        (&["10.2.0.0/16", "10.1.0.0/16", "10.1.2.0/24", "192.168.0.0/16"], "10.1.255.1", true),
        (&["10.2.0.0/16", "10.1.0.0/16", "10.1.2.0/24", "192.168.0.0/16"], "10.3.0.0", false),
        (&["10.2.0.0/16", "10.1.0.0/16", "10.1.2.0/24", "192.168.0.0/16"], "192.168.9.9", true),
    ];
    for (nets, address, expected) in rows {
        let identity = Identity::trusting(*nets).expect("networks");
        assert_eq!(identity.trusts(ip(address)), *expected, "{nets:?} {address}");
    }
}

#[test]
fn invalid_networks_are_rejected() {
    let rows = [
        ("10.0.0.7/8", "`10.0.0.7/8`: the address has bits beyond its prefix: write `10.0.0.0/8`"),
        (
            "::ffff:10.0.0.0/104",
            "`::ffff:10.0.0.0/104`: mapped IPv4 addresses are taken as IPv4, so this never matches: \
             write `10.0.0.0/8`",
        ),
        (
            "proxy\n",
            "`proxy\\x0a`: this is not an address or network: write for example `10.0.0.0/8`, \
             `192.0.2.1` or `2001:db8::/32`",
        ),
    ];
    for (text, expected) in rows {
        let error = Identity::trusting([text]).expect_err(text);
        assert_eq!(error.to_string(), expected);
    }
}

/// Rows of `(address, prefix, group)`.
#[test]
fn ipv6_addresses_are_grouped_by_their_prefix() {
    let rows = [
        ("198.51.100.7", 64, "198.51.100.7"),
        ("198.51.100.7", 1, "198.51.100.7"),
        ("::ffff:198.51.100.7", 64, "198.51.100.7"),
        ("2001:db8:0:1:2:3:4:5", 64, "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", 64, "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", 64, "2001:db8:0:1::/64"),
        ("2001:db8:0:2::", 64, "2001:db8:0:2::/64"),
        ("2001:db8:12:3456::1", 56, "2001:db8:12:3400::/56"),
        ("2001:db8:12:3456::1", 48, "2001:db8:12::/48"),
        ("2001:db8::7", 127, "2001:db8::6/127"),
        ("2001:db8::7", 128, "2001:db8::7"),
        ("ffff::1", 1, "8000::/1"),
        ("7fff::1", 1, "::/1"),
        ("::1", 64, "::/64"),
        // A prefix out of range becomes the nearest valid one.
        ("ffff::1", 0, "8000::/1"),
        ("2001:db8::7", 255, "2001:db8::7"),
    ];
    for (address, prefix, expected) in rows {
        let group = Identity::default().ipv6_prefix(prefix).group(ip(address));
        assert_eq!(group.to_string(), expected, "{address}/{prefix}");
        let again = Identity::default().ipv6_prefix(prefix).group(group.network());
        assert_eq!(again, group, "a group's first address is in it");
    }
}

/// Entries that a client may send before those that the proxies append.
fn client_entries() -> impl Strategy<Value = Vec<u8>> {
    let hop = prop_oneof![
        Just(b"6.6.6.6".to_vec()),
        Just(b"10.0.0.9".to_vec()),
        Just(b"for=6.6.6.6".to_vec()),
        Just(b"for=\"".to_vec()),
        Just(b"\\\"".to_vec()),
        Just(b";".to_vec()),
        Just(b",".to_vec()),
        prop::collection::vec(any::<u8>().prop_filter("a field's byte", is_field_byte), 0..12),
    ];
    prop::collection::vec(hop, 0..8).prop_map(|hops| hops.concat())
}

fn is_field_byte(byte: &u8) -> bool {
    *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)
}

/// Rows of `(entries proxy_entries by the proxies, client)`.
fn proxy_entries(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        XFF => &[
            ("198.51.100.7", "198.51.100.7"),
            ("198.51.100.7:80, 10.0.0.2", "198.51.100.7"),
            ("[2001:db8::7]:80,10.0.0.2,fd00::2", "2001:db8::7"),
            ("unknown, 10.0.0.2", "10.0.0.2"),
            ("::ffff:198.51.100.7", "198.51.100.7"),
        ],
        _ => &[
            ("for=198.51.100.7", "198.51.100.7"),
            ("for=\"[2001:db8::7]:80\";proto=https, for=10.0.0.2", "2001:db8::7"),
            ("for=198.51.100.7;host=\"a,\\\"b\"", "198.51.100.7"),
            ("for=_hidden, for=\"10.0.0.2\"", "10.0.0.2"),
        ],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn client_supplied_entries_have_no_effect(claim in client_entries(), same_line: bool, row in 0..5_usize) {
        for name in [XFF, FORWARDED] {
            let rows = proxy_entries(name);
            let (right, expected) = rows[row % rows.len()];
            let joined = [claim.as_slice(), b", ", right.as_bytes()].concat();
            let fields: &[(&'static str, &[u8])] = if same_line {
                &[(name, &joined)]
            } else {
                &[(name, &claim), (name, right.as_bytes())]
            };
            prop_assert_eq!(client(&identity(), PEER, fields), expected, "{:?}", fields);
        }
    }

    /// Any bytes, including those that HTTP servers reject.
    #[test]
    fn no_input_panics(values in prop::collection::vec(".{0,40}", 0..4), peer: u128, prefix: u8) {
        let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = [XFF, FORWARDED]
            .iter()
            .flat_map(|name| values.iter().map(|v| (Cow::from(*name), Cow::from(v.as_str()))))
            .collect();
        let identity = Identity::trusting(["0.0.0.0/0", "::/0"]).expect("networks");
        let identity = identity.ipv6_prefix(prefix);
        for source in Source::ALL {
            let identity = identity.clone().reading(source);
            let peer = IpAddr::from(std::net::Ipv6Addr::from_bits(peer));
            let found = identity.client_ip(Some(peer), &Headers::Pairs(&pairs));
            let found = found.expect("a peer has an address");
            prop_assert_eq!(found, found.to_canonical());
            prop_assert!(!identity.group(found).to_string().is_empty());
        }
    }

    /// All spellings of an address yield the same address.
    #[test]
    fn every_spelling_of_an_address_is_parsed(bits: u128, port: u16, v4: bool) {
        let address = if v4 {
            IpAddr::from(std::net::Ipv4Addr::from_bits((bits >> 96) as u32))
        } else {
            IpAddr::from(std::net::Ipv6Addr::from_bits(bits))
        };
        let expected = address.to_canonical().to_string();
        let written = match address {
            IpAddr::V4(ip) => vec![
                ip.to_string(),
                format!("{ip}:{port}"),
                format!("::ffff:{ip}"),
                format!("[::ffff:{ip}%1]:{port}"),
            ],
            IpAddr::V6(ip) => vec![
                ip.to_string(),
                format!("[{ip}]"),
                format!("[{ip}]:{port}"),
                format!("{ip}%eth0"),
            ],
        };
        for text in written {
            prop_assert_eq!(client(&identity(), PEER, &[(XFF, text.as_bytes())]), &*expected);
            let quoted = format!("for=\"{text}\"");
            prop_assert_eq!(client(&identity(), PEER, &[(FORWARDED, quoted.as_bytes())]), &*expected);
        }
    }
}
