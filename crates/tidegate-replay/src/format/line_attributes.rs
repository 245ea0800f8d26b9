//! The attributes of a request that a line contains, for templates and policies.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::unstable::attributes::{Attributes, Headers, RequestTarget};
use tidegate::unstable::identity::{Identity, parse_address};

/// A text of a line. Invalid UTF-8 is replaced.
pub type Text<'a> = Cow<'a, str>;

type Pairs<'a> = SmallVec<[(Text<'a>, Text<'a>); 4]>;

/// The attributes that a line contains. All others are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineAttributes<'a> {
    /// The client: an address, or a name that is not an address.
    pub client: Option<Text<'a>>,
    pub method: Option<Text<'a>>,
    pub path: Option<Text<'a>>,
    pub query: Option<Text<'a>>,
    pub host: Option<Text<'a>>,
    pub headers: Pairs<'a>,
    pub descriptors: Pairs<'a>,
    /// Whether the line has a cost, which replaces the costs of the policies.
    pub has_cost: bool,
}

impl<'a> LineAttributes<'a> {
    /// Sets the host, path and query from a target such as `/a?b=1` or `http://h/a`. A host that is
    /// already known stays.
    pub fn set_uri(&mut self, uri: &'a [u8]) {
        match text(uri) {
            Cow::Borrowed(uri) => self.set_target(RequestTarget::new(uri), Cow::Borrowed),
            Cow::Owned(uri) => {
                self.set_target(RequestTarget::new(&uri), |part| Cow::Owned(part.to_owned()));
            }
        }
    }

    fn set_target<'t>(&mut self, target: RequestTarget<'t>, text: impl Fn(&'t str) -> Text<'a>) {
        self.host = self.host.take().or(target.host.map(&text));
        self.path = Some(text(target.path));
        // Logs may have the query in a separate field.
        self.query = target.query.map(&text).or(self.query.take());
    }

    /// Sets the method and target from a request line such as `GET /a HTTP/1.1`.
    pub fn set_request(&mut self, request: &'a [u8]) {
        let mut words = request.splitn(2, |&byte| byte == b' ');
        let (Some(method), Some(rest)) = (words.next(), words.next()) else { return };
        self.method = Some(text(method));
        let end = rest.windows(6).rposition(|window| window == b" HTTP/").unwrap_or(rest.len());
        self.set_uri(&rest[..end]);
    }

    pub fn set_header(&mut self, name: impl Into<Text<'a>>, value: Text<'a>) {
        // Logs write a dash for a missing header.
        if value != "-" {
            self.headers.push((name.into(), value));
        }
    }

    pub fn set_descriptor(&mut self, name: impl Into<Text<'a>>, value: Text<'a>) {
        if value != "-" {
            self.descriptors.push((name.into(), value));
        }
    }

    /// Calls `ask` with the attributes in the form that policies use. If proxies are trusted, the
    /// client address is determined from the headers.
    pub fn with_attributes<R>(
        &self,
        identity: &Identity,
        ask: impl FnOnce(&Attributes<'_>) -> R,
    ) -> R {
        let headers = Headers::Pairs(&self.headers);
        let peer = self.client.as_deref().and_then(parse_address);
        ask(&Attributes {
            method: self.method.as_deref(),
            path: self.path.as_deref(),
            query: self.query.as_deref(),
            host: self.host.as_deref(),
            client_ip: identity.client_ip(peer, &headers),
            headers,
            domain: None,
            descriptors: &self.descriptors,
        })
    }

    /// Appends the attributes in the form that [`LineAttributes::unpack`] reads.
    pub fn pack(&self, out: &mut Vec<u8>) {
        for field in self.fields() {
            match field {
                None => out.extend(u32::MAX.to_le_bytes()),
                Some(value) => pack_text(value, out),
            }
        }
        for pairs in [&self.headers, &self.descriptors] {
            out.extend(u32::try_from(pairs.len()).unwrap_or(0).to_le_bytes());
            for (name, value) in pairs {
                pack_text(name, out);
                pack_text(value, out);
            }
        }
        out.extend(u32::from(self.has_cost).to_le_bytes());
    }

    fn fields(&self) -> [Option<&str>; 5] {
        [&self.client, &self.method, &self.path, &self.query, &self.host]
            .map(|field| field.as_deref())
    }

    /// Reads the attributes that [`LineAttributes::pack`] wrote. Returns the default if the bytes
    /// are invalid.
    pub fn unpack(bytes: &'a [u8]) -> Self {
        Unpacker { bytes }.attributes().unwrap_or_default()
    }
}

fn pack_text(text: &str, out: &mut Vec<u8>) {
    // Lines are at most 64 KiB long, and a replaced byte takes three, so the length fits.
    out.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct Unpacker<'a> {
    bytes: &'a [u8],
}

impl<'a> Unpacker<'a> {
    fn attributes(mut self) -> Option<LineAttributes<'a>> {
        Some(LineAttributes {
            client: self.field()?,
            method: self.field()?,
            path: self.field()?,
            query: self.field()?,
            host: self.field()?,
            headers: self.pairs()?,
            descriptors: self.pairs()?,
            has_cost: self.number()? != 0,
        })
    }

    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn field(&mut self) -> Option<Option<Text<'a>>> {
        match self.number()? {
            u32::MAX => Some(None),
            length => {
                let (text, rest) = self.bytes.split_at_checked(length as usize)?;
                self.bytes = rest;
                Some(Some(std::str::from_utf8(text).ok()?.into()))
            }
        }
    }

    fn pairs(&mut self) -> Option<Pairs<'a>> {
        (0..self.number()?).map(|_| Some((self.field()??, self.field()??))).collect()
    }
}

/// Converts bytes to text. Invalid UTF-8 is replaced.
pub fn text(bytes: &[u8]) -> Text<'_> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_request_lines() {
        for (request, method, path, query, host) in [
            ("GET / HTTP/1.1", Some("GET"), Some("/"), None, None),
            ("GET /a b?c=1&d HTTP/1.0", Some("GET"), Some("/a b"), Some("c=1&d"), None),
            ("POST http://h:80/x?y HTTP/1.1", Some("POST"), Some("/x"), Some("y"), Some("h:80")),
            ("GET http://h HTTP/1.0", Some("GET"), Some("/"), None, Some("h")),
            ("GET /a?b=http://x/y", Some("GET"), Some("/a"), Some("b=http://x/y"), None),
            ("GET /old", Some("GET"), Some("/old"), None, None),
            ("-", None, None, None, None),
            ("", None, None, None, None),
        ] {
            let mut attributes = LineAttributes::default();
            attributes.set_request(request.as_bytes());
            let [_, got_method, got_path, got_query, got_host] = attributes.fields();
            assert_eq!(
                (got_method, got_path, got_query, got_host),
                (method, path, query, host),
                "{request}"
            );
        }
    }

    #[test]
    fn packed_attributes_are_unpacked_unchanged() {
        let mut packed = Vec::new();
        let mut attributes =
            LineAttributes { client: Some("::1".into()), ..LineAttributes::default() };
        attributes.set_uri(b"/a?b");
        attributes.set_header("user-agent", "curl".into());
        attributes.set_header("referer", "-".into());
        attributes.set_descriptor("user", "\u{e9}".into());
        attributes.pack(&mut packed);
        assert_eq!(LineAttributes::unpack(&packed), attributes);
        assert_eq!(attributes.headers.len(), 1);
        // If it is truncated anywhere, no attributes are returned, rather than some of them.
        for length in 0..packed.len() {
            assert_eq!(
                LineAttributes::unpack(&packed[..length]),
                LineAttributes::default(),
                "{length}"
            );
        }
    }
}
