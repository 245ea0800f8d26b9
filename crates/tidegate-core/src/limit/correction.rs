//! Corrections of limits in the notation of other systems, for error messages.

use alloc::string::String;
use alloc::{format, vec::Vec};

use super::Algorithm;
use super::text::{Words, days_of, in_units, parse_exactly, unit_us};

/// Returns the help for a text: the limit that was probably meant or, if a length of time has no
/// unit, the limit with seconds and the one with milliseconds.
pub(super) fn correct(text: &str) -> Option<String> {
    if let Some(without) = without_subject(text) {
        let help = corrected(&without)?;
        return Some(format!("{help}; the key says who is counted, not the limit"));
    }
    corrected(text)
}

/// Returns the help for a text that has no second `per`.
fn corrected(text: &str) -> Option<String> {
    match (rewrite(text, "s"), rewrite(text, "ms")) {
        (Some(in_s), Some(in_ms)) if in_s != in_ms => Some(format!("write `{in_s}` or `{in_ms}`")),
        (in_s, in_ms) => in_s.or(in_ms).map(|corrected| format!("write `{corrected}`")),
    }
}

/// `100 per 1m per user` and `100/m/user`: the text without the second `per` and the word after it,
/// unless that is a length of time.
fn without_subject(text: &str) -> Option<String> {
    let is_per = |(_, word): &(_, &str)| matches!(*word, "per" | "/");
    let mut words = Words::new(text);
    let all = core::iter::from_fn(|| words.next());
    let mut after = all.skip_while(|word| !is_per(word)).skip(1).skip_while(|word| !is_per(word));
    let start = after.next()?.0.start;
    let (mut span, word) = after.next()?;
    let is_name = word.starts_with(char::is_alphabetic);
    if !is_name || unit_us(word).is_some() || days_of(word).is_some() {
        return None;
    }
    if let Some((second, "address" | "id" | "key")) = after.next() {
        span = second;
    }
    Some(format!("{}{}", text[..start].trim_end(), &text[span.end..]))
}

/// Rewrites a text as a limit, with `unit` for a length of time that has none. Each rewrite is
/// about one notation, wherever it is in the text, and the result counts only if it is a limit.
fn rewrite(text: &str, unit: &str) -> Option<String> {
    let mut corrected = String::new();
    let mut words = Words::new(text);
    let (mut end, mut previous) = (0, "");
    while let Some((span, word)) = words.next() {
        let next = words.peek().map_or("", |(_, next)| next);
        corrected.push_str(&text[end..span.start]);
        let word = word.strip_prefix("rate=").unwrap_or(word);
        let rewritten = without_separators(word)
            .or_else(|| without_r(word))
            .or_else(|| in_one_unit(word))
            .or_else(|| is_without_unit(previous, word, next).then(|| format!("{word}{unit}")))
            .or_else(|| burst_in_two_words(text, word))
            .or_else(|| (word == "nodelay").then(String::new))
            .or_else(|| days_of(word).map(Into::into));
        corrected.push_str(rewritten.as_deref().unwrap_or(word));
        (end, previous) = (span.end, word);
    }
    // The result is shown in errors of one line.
    let words: Vec<&str> = corrected.split_ascii_whitespace().collect();
    let mut corrected = words.join(" ").replace(" /", "/").replace("/ ", "/");
    let names = Algorithm::ALL.map(Algorithm::name);
    for name in names {
        corrected = corrected.replace(&name.replace('-', " "), name);
    }
    // Only one algorithm has a burst.
    if !names.iter().any(|name| corrected.contains(name)) {
        corrected = corrected.replace(" burst ", " token-bucket burst ");
    }
    parse_exactly(&corrected).is_ok().then_some(corrected)
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

/// `10r/s` of nginx, `10 req/s` and `10rps`. A blank may precede the letters.
fn without_r(word: &str) -> Option<String> {
    let units = [("rps", "/s"), ("rpm", "/m"), ("rph", "/h"), ("reqs", ""), ("req", ""), ("r", "")];
    let (count, per) =
        units.iter().find_map(|(letters, per)| Some((word.strip_suffix(letters)?, per)))?;
    (count.is_empty() || is_number(count)).then(|| format!("{count}{per}"))
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

/// `burst=20`. nginx, whose limits do not name an algorithm, admits one request more than its burst
/// at the same moment.
fn burst_in_two_words(text: &str, word: &str) -> Option<String> {
    let number = word.strip_prefix("burst")?.strip_prefix(['=', ':'])?;
    let is_nginx = word.contains('=') && !text.contains("bucket");
    let burst = number.parse::<u64>().ok()?.checked_add(u64::from(is_nginx))?;
    is_number(number).then(|| format!("burst {burst}"))
}

/// `per 60`.
fn is_without_unit(previous: &str, word: &str, next: &str) -> bool {
    matches!(previous, "per" | "/" | "lease") && unit_us(next).is_none() && is_number(word)
}
