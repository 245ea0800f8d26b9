//! Values of descriptors: a text, in which `*` stands for any run of characters.
//!
//! Unlike paths, values have no segments and no spelling of their own, so this needs none of
//! what `pattern.rs` has: a value is compared piece by piece, from left to right, and the
//! leftmost place for a piece is always a right one. It takes no memory and no longer than the
//! value times the pattern.

/// A text with `*` in it, or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wildcard {
    text: Box<str>,
    is_literal: bool,
}

impl Wildcard {
    pub(crate) fn new(text: &str) -> Self {
        Wildcard { text: text.into(), is_literal: !text.contains('*') }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// The one value it matches, if it is one.
    pub(super) fn literal(&self) -> Option<&str> {
        self.is_literal.then_some(&*self.text)
    }

    pub(crate) fn matches(&self, value: &str) -> bool {
        let Some((first, rest)) = self.text.split_once('*') else { return *self.text == *value };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(value) = value.strip_prefix(first) else { return false };
        let Some(mut value) = value.strip_suffix(last) else { return false };
        for piece in middle.split('*') {
            let Some((_, behind)) = value.split_once(piece) else { return false };
            value = behind;
        }
        true
    }

    /// Whether every value that this matches is matched by `other`, as far as can be told.
    pub(super) fn implies(&self, other: &Wildcard) -> bool {
        self == other || self.literal().is_some_and(|text| other.matches(text))
    }

    /// Whether some value may match both; only where one has no `*` can we say no.
    pub(super) fn may_meet(&self, other: &Wildcard) -> bool {
        match (self.literal(), other.literal()) {
            (Some(text), _) => other.matches(text),
            (_, Some(text)) => self.matches(text),
            _ => true,
        }
    }
}

/// Whether all of `ours` are covered by `theirs`.
pub(super) fn all_imply(ours: &[Wildcard], theirs: &[Wildcard]) -> bool {
    ours.iter().all(|ours| theirs.iter().any(|theirs| ours.implies(theirs)))
}

/// Whether some value may match one of each.
pub(super) fn any_meet(ours: &[Wildcard], theirs: &[Wildcard]) -> bool {
    ours.iter().any(|ours| theirs.iter().any(|theirs| ours.may_meet(theirs)))
}

#[cfg(test)]
mod tests {
    use super::Wildcard;

    #[test]
    fn a_star_is_any_run_of_characters() {
        let rows = [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*", "", true),
            ("*", "x", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("/api/*/action", "/api/1/action", true),
            ("/api/*/action", "/api/action", false),
            ("/api/*/r/*/end", "/api/v1/r/2/end", true),
            ("/api/*/r/*/end", "/api/v1/x/2/end", false),
            ("a**b", "ab", true),
            ("a*b*c", "abbcbc", true),
            ("a*bc*c", "abcc", true),
            ("a*bc*c", "abc", false),
            ("\u{e9}*", "\u{e9}t\u{e9}", true),
        ];
        for (pattern, value, expected) in rows {
            assert_eq!(Wildcard::new(pattern).matches(value), expected, "{pattern} {value}");
        }
    }
}
