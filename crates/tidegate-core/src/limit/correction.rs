//! Corrections of limits in the notation of other systems, for error messages.

use alloc::string::String;
use alloc::{format, vec::Vec};

use super::Algorithm;
use super::text::{Words, days_of, in_units, parse_exactly, unit_us};

/// Returns the limit that was probably meant. Each rewrite is about one notation, wherever it is in
/// the text, and the result counts only if it is a limit.
pub(super) fn correct(text: &str) -> Option<String> {
    let mut corrected = String::new();
    let mut words = Words::new(text);
    let (mut end, mut previous) = (0, "");
    while let Some((span, word)) = words.next() {
        let next = words.peek().map_or("", |(_, next)| next);
        corrected.push_str(&text[end..span.start]);
        let rewritten = without_separators(word)
            .or_else(|| without_r(word))
            .or_else(|| in_one_unit(word))
            .or_else(|| with_unit(previous, word, next))
            .or_else(|| days_of(word).map(Into::into));
        corrected.push_str(rewritten.as_deref().unwrap_or(word));
        (end, previous) = (span.end, word);
    }
    // The result is shown in errors of one line.
    let words: Vec<&str> = corrected.split_ascii_whitespace().collect();
    let mut corrected = words.join(" ");
    for name in Algorithm::ALL.map(Algorithm::name) {
        corrected = corrected.replace(&name.replace('-', " "), name);
    }
    (corrected != text && parse_exactly(&corrected).is_ok()).then_some(corrected)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `1,000` and `1_000`. In some countries `1,5` is a fraction, so only groups of three digits are
/// joined.
fn without_separators(word: &str) -> Option<String> {
    let groups: Vec<&str> = word.split([',', '_']).collect();
    let (first, rest) = groups.split_first()?;
    let are_groups = (1..=3).contains(&first.len())
        && !rest.is_empty()
        && rest.iter().all(|group| group.len() == 3)
        && groups.iter().all(|group| is_number(group));
    are_groups.then(|| groups.concat())
}

/// `10r/s` of nginx.
fn without_r(word: &str) -> Option<String> {
    word.strip_suffix('r').filter(|count| is_number(count)).map(Into::into)
}

/// `1h30m`: the sum in the largest unit that divides it.
fn in_one_unit(word: &str) -> Option<String> {
    let (mut rest, mut parts, mut total_us) = (word, 0, 0_u64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (amount, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let us = amount.parse::<u64>().ok()?.checked_mul(unit_us(unit)?)?;
        total_us = total_us.checked_add(us)?;
        (rest, parts) = (after, parts + 1);
    }
    let (amount, unit) = in_units(total_us);
    (parts > 1).then(|| format!("{amount}{unit}"))
}

/// `per 60`: seconds are the usual unit of a number alone.
fn with_unit(previous: &str, word: &str, next: &str) -> Option<String> {
    let is_time = matches!(previous, "per" | "/" | "lease") && unit_us(next).is_none();
    (is_time && is_number(word)).then(|| format!("{word}s"))
}
