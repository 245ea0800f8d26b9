//! Errors of the YAML parser, for readers who do not know YAML parsers.
//!
//! The parser reports where it can no longer continue. The mistake is often before that, so its
//! probable cause is searched for first.

use std::ops::Range;

use granit_parser::{ErrorKind, ScanError};

use super::policies::meant_template;
use super::reader::excerpt;
use super::yaml::{MAX_DEPTH, Stop, stop};

/// The help for `name:value`, which YAML reads as one text.
pub(super) const SPACE_AFTER_COLON: &str = "write a space after `:`";

/// Returns the position of the `:` in a line such as `- name:value`. An address such as
/// `http://host` is a text.
pub(super) fn colon_without_space(line: &str) -> Option<usize> {
    let name = line.trim_end().trim_start_matches([' ', '-']);
    let length = name.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let after = name[length..].strip_prefix(':')?;
    let is_value = length > 0 && !after.is_empty() && !after.starts_with([' ', '/', '\t']);
    (is_value && !after.contains(": ")).then(|| line.trim_end().len() - name.len() + length)
}

/// A character that looks like a space or a quote, but is not one to YAML.
#[derive(Clone, Copy)]
pub(super) struct OddCharacter(char);

impl OddCharacter {
    fn is_space(self) -> bool {
        matches!(self.0, '\u{a0}' | '\u{2000}'..='\u{200b}' | '\u{202f}' | '\u{205f}' | '\u{3000}')
    }

    fn is_quote(self) -> bool {
        matches!(self.0, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}')
    }

    fn problem(self) -> &'static str {
        match self.is_space() {
            true => "this is not a space that YAML knows",
            false => "this is not a quote that YAML knows",
        }
    }

    pub(super) fn help(self) -> String {
        let (name, fix) = match self.0 {
            '\u{a0}' | '\u{202f}' => ("no-break space", "write an ordinary space, or remove it"),
            '\u{3000}' => ("wide space", "write an ordinary space, or remove it"),
            '\u{200b}' => ("space of no width", "write an ordinary space, or remove it"),
            _ if self.is_quote() => ("typographic quote", "write `\"`"),
            _ => ("special space", "write an ordinary space, or remove it"),
        };
        format!("there is a {name} (U+{:04X}) here: {fix}", u32::from(self.0))
    }
}

/// Returns whether a text begins and ends with a typographic quote. Without ordinary quotes around
/// it, YAML takes them for a part of the text.
pub(super) fn is_in_typographic_quotes(text: &str) -> bool {
    let mut characters = text.chars();
    let ends = (characters.next(), characters.next_back());
    matches!(ends, (Some(first), Some(last))
        if OddCharacter(first).is_quote() && OddCharacter(last).is_quote())
}

/// Returns the first odd character in a byte range of the source, with its position. Typographic
/// quotes are odd only at the start, because they are also apostrophes.
pub(super) fn find_odd_character(
    source: &str,
    within: &Range<usize>,
) -> Option<(usize, OddCharacter)> {
    let mut characters = source.get(within.clone())?.char_indices();
    let is_odd = |at: usize, c: OddCharacter| c.is_space() || (at == 0 && c.is_quote());
    let (at, found) = characters.find(|(at, c)| is_odd(*at, OddCharacter(*c)))?;
    Some((within.start + at, OddCharacter(found)))
}

/// Returns the byte range from the line before `at` that is not blank to the end of the line of
/// `at`: a mistake in one line may make only the next one invalid.
fn lines_around(source: &str, at: usize) -> Option<Range<usize>> {
    let (before, after) = source.split_at_checked(at)?;
    let line_start = |text: &str| text.rfind('\n').map_or(0, |newline| newline + 1);
    let earlier = before[..line_start(before)].trim_end();
    let end = at + after.find('\n').unwrap_or(after.len());
    Some(line_start(earlier)..end)
}

/// Returns the error of a line with an odd space, or with a `:` that no space follows.
fn spacing(source: &str, at: usize) -> Option<Stop> {
    let around = lines_around(source, at)?;
    if let Some((at, odd)) = find_odd_character(source, &around) {
        let end = at + odd.0.len_utf8();
        return Some(stop(at..end, odd.problem(), &odd.help()));
    }
    let mut start = around.start;
    for line in source[around].split_inclusive('\n') {
        if let Some(colon) = colon_without_space(line) {
            let colon = start + colon;
            return Some(stop(colon..colon + 1, "a space is missing here", SPACE_AFTER_COLON));
        }
        start += line.len();
    }
    None
}

/// Returns the error of the first line that Git left at a merge conflict.
fn conflict_marker(source: &str) -> Option<Stop> {
    let mut start = 0;
    for line in source.split_inclusive('\n') {
        let text = line.trim_end();
        // A line of `=` alone may be part of a text, and comes after the first marker.
        if text.starts_with("<<<<<<< ") || text.starts_with(">>>>>>> ") {
            let message = "this is a conflict marker of Git";
            let help = "resolve the conflict, and remove its markers";
            return Some(stop(start..start + text.len(), message, help));
        }
        start += line.len();
    }
    None
}

/// Returns the error of an unquoted text that begins with `{` or `[`, such as `{client_ip}:login`.
/// YAML ends the value at the `}`, and reports what follows at `at`. If the text is in a flow
/// collection (`is_nested`), it ends at a comma or where that collection ends.
fn text_in_braces(source: &str, at: usize, is_nested: bool) -> Option<Stop> {
    let before = source.get(..at)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let start = line_start + open_of_last_pair(before[line_start..].trim_end())?;
    let line = source[start..].lines().next().unwrap_or_default();
    let text = match is_nested {
        true => &line[..end_in_flow(line)],
        false => line.split(" #").next().unwrap_or_default(),
    }
    .trim_end();
    let (kind, close) = if text.starts_with('{') { ("mapping", '}') } else { ("list", ']') };
    if !text.contains(['"', '\'']) && !text.contains(": ") {
        let message = format!("without quotes YAML takes `{}` for a {kind}", &text[..1]);
        return Some(stop(start..start + text.len(), &message, &template_in_quotes(text)));
    }
    let message = format!("text follows the `{close}` that ends this value");
    (!is_nested).then(|| stop(at..at, &message, "begin a new line, or put all of it in quotes"))
}

/// Returns the help for a text that YAML misreads without quotes.
pub(super) fn in_quotes(text: &str) -> String {
    format!("write it in quotes: `\"{}\"`", excerpt(text))
}

/// Returns the help for a text in braces that YAML misreads without quotes. If it is refused in
/// quotes too, as `{{client_ip}}` or `{ip}` are, the help is the template that was meant.
pub(super) fn template_in_quotes(text: &str) -> String {
    match meant_template(text).filter(|_| text.starts_with('{')) {
        Some(meant) if meant != text => format!("write `\"{}\"`", excerpt(&meant)),
        None if text.starts_with("{{") => {
            "write a field in single braces and in quotes, such as `\"{client_ip}\"`".into()
        }
        _ => in_quotes(text),
    }
}

/// Returns the position of the `{` or `[` whose pair ends the text.
fn open_of_last_pair(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate().rev() {
        match byte {
            b'}' | b']' => depth += 1,
            b'{' | b'[' if depth == 1 => return Some(at),
            b'{' | b'[' => depth -= 1,
            _ => {}
        }
        if depth < 1 {
            return None;
        }
    }
    None
}

/// Returns the length of the value that a text in flow style begins with.
fn end_in_flow(text: &str) -> usize {
    let mut depth = 0;
    let ends = |byte: u8| {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && byte == b',')
    };
    text.bytes().position(ends).unwrap_or(text.len())
}

/// Returns the error of an unquoted text that begins with `*` or `&`, such as `*.example.com`.
fn text_with_star(source: &str, at: usize) -> Option<Stop> {
    let ends = |c: char| c.is_whitespace() || ",[]{}".contains(c);
    let word = source.get(at..)?.split(ends).next()?;
    let (sign, name) = word.split_at_checked(1)?;
    let kind = match sign {
        "*" => "alias",
        "&" => "anchor",
        _ => return None,
    };
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_name) {
        return None;
    }
    let message = format!("without quotes YAML takes `{sign}` for an {kind}");
    Some(stop(at..at + word.len(), &message, &in_quotes(word)))
}

/// Returns the error of a text that YAML reads as something else, because it is not in quotes.
fn unquoted_text(source: &str, at: usize, kind: &ErrorKind) -> Option<Stop> {
    match kind {
        ErrorKind::UnknownAnchor | ErrorKind::MissingAnchorOrAliasName => {
            text_with_star(source, at)
        }
        ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry => text_in_braces(source, at, false),
        ErrorKind::ExpectedFlowMappingSeparator | ErrorKind::ExpectedFlowSequenceSeparator => {
            text_in_braces(source, at, true)
        }
        _ => None,
    }
}

/// Converts an error of the parser into one for readers who do not know YAML parsers.
pub(super) fn syntax(source: &str, error: &ScanError) -> Stop {
    let at = error.marker().byte_offset().unwrap_or(source.len());
    let probable_cause = conflict_marker(source)
        .or_else(|| unquoted_text(source, at, error.kind()))
        .or_else(|| spacing(source, at).filter(|_| is_about_spacing(error.kind())));
    if let Some(stop) = probable_cause {
        return stop;
    }
    let fail = |text: &str, help: &str| stop(at..at, text, help);
    match error.kind() {
        kind if is_about_tabs(kind) => {
            // The parser may report a position before the tab.
            let tab = source[at..].find('\t').map_or(at, |tab| at + tab);
            stop(tab..tab, "a tab cannot indent", "use spaces")
        }
        ErrorKind::UnclosedFlowCollection { open } => {
            let close = if *open == '[' { ']' } else { '}' };
            fail(&format!("this `{open}` is not closed"), &format!("write `{close}` where it ends"))
        }
        ErrorKind::UnclosedQuotedScalar => {
            fail("this text has no closing quote", "write the quote where it ends")
        }
        ErrorKind::InvalidQuotedScalarIndent => {
            fail("the quoted text before this line is not closed", "write the quote where it ends")
        }
        ErrorKind::UnknownAnchor => fail(
            "no anchor of this name stands before here",
            "define it with `&name`, or quote a text that begins with `*`",
        ),
        ErrorKind::RecursionLimitExceeded => {
            let text = format!("values are nested more than {MAX_DEPTH} deep");
            fail(
                &text,
                "a config needs six levels (docs/config.md), a file of envoyproxy/ratelimit two for each \
                 descriptor (docs/envoy.md)",
            )
        }
        ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry => fail(
            "this is not indented like what it belongs to",
            "line it up with the fields beside it, with spaces",
        ),
        ErrorKind::InvalidColonPlacement | ErrorKind::MappingValueNotAllowed => fail(
            "a `:` cannot stand here",
            "close the `[`, `{` or quote before it, or quote a text that has a `:` in it",
        ),
        ErrorKind::ExpectedFlowMappingSeparator
        | ErrorKind::ExpectedFlowSequenceSeparator
        | ErrorKind::UnexpectedEofImplicitFlowMapping
        | ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofFlowSequence => {
            fail("something is missing or too much here", "check commas, brackets and quotes")
        }
        ErrorKind::DirectiveDisallowed => fail("directives are not read", "remove the `%` line"),
        kind => {
            fail(&format!("this is not YAML: {kind}"), "check quotes, brackets and indentation")
        }
    }
}

/// Whether the parser may report it because of a space that is missing or is not one.
fn is_about_spacing(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidColonPlacement
            | ErrorKind::MappingValueNotAllowed
            | ErrorKind::InvalidIndentation
            | ErrorKind::ExpectedBlockMappingKey
            | ErrorKind::ExpectedBlockSequenceEntry
            | ErrorKind::SimpleKeyExpected
    )
}

fn is_about_tabs(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabInPlainScalar
            | ErrorKind::InvalidBlockEntryWhitespace
            | ErrorKind::InvalidMappingValueWhitespace
    )
}
