//! Cutting text at a byte index.

/// The last character boundary of `text` at or before `index`. The standard library has this as
/// `str::floor_char_boundary` from Rust 1.91 on, which is newer than this crate requires.
pub(crate) fn floor_char_boundary(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::floor_char_boundary;

    #[test]
    fn never_cuts_inside_a_character() {
        let text = "aé€😀";
        let expected = [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10];
        for (index, boundary) in expected.into_iter().enumerate() {
            assert_eq!(floor_char_boundary(text, index), boundary, "at {index}");
        }
        assert_eq!(floor_char_boundary(text, usize::MAX), text.len());
        assert_eq!(floor_char_boundary("", 1), 0);
    }
}
