//! Numbers in fields: ASCII digits with an optional fraction. The parsers of the standard
//! library also accept signs, exponents and words such as `inf`.

/// Reads seconds, with an optional fraction, as milliseconds, rounded up. Saturates.
pub fn seconds_ms(text: &str) -> Option<u64> {
    let (whole, fraction) = split(text)?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(3);
    let ms = digits.fold(0, |ms, digit| ms * 10 + u64::from(digit - b'0'));
    let beyond = fraction.bytes().skip(3).any(|digit| digit != b'0');
    Some(saturating(whole).saturating_mul(1000).saturating_add(ms + u64::from(beyond)))
}

/// Reads the whole seconds of a number with an optional fraction. Saturates.
pub fn whole_seconds(text: &str) -> Option<u64> {
    split(text).map(|(whole, _)| saturating(whole))
}

/// Reads an integer. Saturates.
pub fn integer(text: &str) -> Option<u64> {
    is_digits(text).then(|| saturating(text))
}

/// Reads the integer at the start of a text. Saturates.
pub fn leading_integer(text: &str) -> Option<u64> {
    let end = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    integer(&text[..end])
}

fn split(text: &str) -> Option<(&str, &str)> {
    match text.split_once('.') {
        None => is_digits(text).then_some((text, "")),
        Some((whole, fraction)) => {
            (is_digits(whole) && is_digits(fraction)).then_some((whole, fraction))
        }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn saturating(digits: &str) -> u64 {
    digits.bytes().fold(0, |number: u64, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    })
}
