//! The facts a front extracts from a request.

use std::borrow::Cow;

/// The header fields of a request, as whoever asks has them.
#[derive(Clone, Copy, Debug, Default)]
pub enum Headers<'a> {
    /// There are none.
    #[default]
    None,
    /// As an HTTP server parsed them.
    Map(&'a http::HeaderMap),
    /// As a caller listed them.
    Pairs(&'a [(Cow<'a, str>, Cow<'a, str>)]),
}

impl<'a> Headers<'a> {
    /// The first value of the field of this name, in any case.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// Every value of the field of this name, in any case, in order.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        let (map, pairs) = match *self {
            Headers::None => (None, None),
            Headers::Map(map) => (Some(map), None),
            Headers::Pairs(pairs) => (None, Some(pairs)),
        };
        let mapped = map.into_iter().flat_map(move |map| map.get_all(name)).map(|v| v.as_bytes());
        let paired = pairs.into_iter().flatten();
        mapped.chain(
            paired.filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_bytes()),
        )
    }
}
