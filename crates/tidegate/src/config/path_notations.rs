//! Paths in other notations than globs, for warnings: regular expressions and route templates.
//!
//! Both are often valid globs that match something else. A suggested glob matches everything that
//! was meant, and possibly more: `*` where the expression has digits only.

use crate::policy::Pattern;

/// Usual names of the rest of a path in routes of gin, Express and others. Any other `*word` is a
/// glob.
const USUAL_TAILS: [&str; 8] =
    ["action", "any", "catchall", "filepath", "path", "rest", "splat", "wildcard"];

/// Returns the glob for a route template such as `/users/{id}`, `/users/:id` or `/files/{*rest}`;
/// `None` if the text is not one.
pub(super) fn from_route_template(text: &str) -> Option<String> {
    let segments = segments(text);
    let globs: Vec<_> = segments.iter().map(|segment| placeholder(segment)).collect();
    if globs.iter().all(Option::is_none) {
        return None;
    }
    let merged = globs.iter().zip(segments).map(|(glob, segment)| glob.unwrap_or(segment));
    let glob = merged.collect::<Vec<_>>().join("/");
    if is_regex_like(&glob) { from_regex(&glob) } else { Some(glob) }
}

/// The segments of a path. A slash within braces, as in `{id:[^/]+}`, does not end one.
fn segments(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let ends_segment = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == '/' && depth == 0
    };
    text.split(ends_segment).collect()
}

/// Returns what a placeholder stands for: `*` or, if it is the rest of the path, `**`.
fn placeholder(segment: &str) -> Option<&'static str> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    let within = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    if segment.strip_prefix('*').is_some_and(|name| USUAL_TAILS.contains(&name)) {
        return Some("**");
    }
    if segment.strip_prefix(':').is_some_and(is_name) {
        return Some("*");
    }
    if let Some(inside) = within('<', '>') {
        let (kind, name) = inside.rsplit_once(':').unwrap_or(("", inside));
        return is_name(name).then_some(if kind == "path" { "**" } else { "*" });
    }
    let inside = within('{', '}')?;
    let tail = inside.strip_prefix("**").or(inside.strip_prefix('*'));
    if tail.or(inside.strip_suffix("...")).is_some_and(is_name) {
        return Some("**");
    }
    let (name, constraint) = inside.split_once(':').unwrap_or((inside, ""));
    // `{a:b,c}` is a glob, `{a:[0-9]{1,3}}` is not.
    let is_list = constraint.split('{').next().is_some_and(|start| start.contains(','));
    let is_tail = matches!(constraint, ".*" | ".+" | "path");
    (is_name(name) && !is_list).then_some(if is_tail { "**" } else { "*" })
}

/// Returns whether a glob has parts that only make sense in a regular expression: `/.*`, `.+`,
/// `[0-9]+`, `\d`, `(a|b)`, `(a)?`, `/a|/b`, or `$` or `/?` at the end. `report.*` and `*.*` are
/// ordinary globs. A dot that is written as `\.` is meant literally.
pub(super) fn is_regex_like(text: &str) -> bool {
    let has_class =
        text.as_bytes().windows(2).any(|pair| pair[0] == b'\\' && pair[1].is_ascii_alphanumeric());
    let has_group = text.split_once('(').is_some_and(|(_, rest)| {
        rest.starts_with('?')
            || rest.split_once(')').is_some_and(|(inside, _)| inside.contains('|'))
    });
    let is_any = |segment: &str| segment.trim_start_matches('(').starts_with(".*");
    has_class
        || has_group
        || text.contains("|/")
        || text.split('/').any(is_any)
        || [".+", "]+", ")+", ")*", ")?"].iter().any(|part| text.contains(part))
        || text.ends_with('$')
        || text.strip_suffix("/?").is_some_and(|start| !start.is_empty())
}

/// Returns the glob for a simple regular expression over paths; `None` if a part of it has no
/// equivalent.
pub(super) fn from_regex(text: &str) -> Option<String> {
    let mut rest = text.strip_suffix('$').unwrap_or(text);
    let mut glob = String::new();
    let mut group_start = None;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let (piece, length) = match c {
            '/' if after == "?" => ("{,/}", 2),
            '.' if after.starts_with(['*', '+']) => (any_path(&glob, &after[1..])?, 2),
            '[' => class(rest)?,
            '\\' => escape(after)?,
            '(' if group_start.is_none() => {
                group_start = Some(glob.len());
                ("", if after.starts_with("?:") { 3 } else { 1 })
            }
            ')' => {
                let inside = glob.split_off(group_start.take()?);
                let is_optional = after.starts_with('?');
                glob += &match (is_optional, inside.contains(',')) {
                    (true, _) => format!("{{,{inside}}}"),
                    (false, true) => format!("{{{inside}}}"),
                    (false, false) => inside,
                };
                ("", if is_optional { 2 } else { 1 })
            }
            '|' if group_start.is_some() => (",", 1),
            // In a glob, `*` is not a quantifier of the part before it.
            '*' if glob.is_empty() || glob.ends_with(['/', '*']) => ("*", 1),
            '(' | '|' | '*' | '?' | '+' | '^' | '$' | '{' | '}' | ',' => return None,
            _ => (&rest[..c.len_utf8()], c.len_utf8()),
        };
        glob += piece;
        rest = &rest[length..];
    }
    (group_start.is_none() && Pattern::path(&glob).is_ok()).then_some(glob)
}

/// Returns the glob for `.*` and `.+` after `before`; `None` unless they begin a segment.
fn any_path(before: &str, after: &str) -> Option<&'static str> {
    let ends_segment = after.is_empty() || after.starts_with(['/', ')', '|']);
    before.ends_with('/').then_some(if ends_segment { "**" } else { "**/*" })
}

/// Returns the glob for a class such as `[a-z]` at the start of `rest`, and the length of the class
/// with its quantifier. `None` if it is repeated and may contain slashes.
fn class(rest: &str) -> Option<(&str, usize)> {
    let length = rest.find(']')? + 1;
    let text = &rest[..length];
    let has_slash = text.starts_with("[^") != text.contains('/');
    match rest[length..].starts_with(['*', '+']) {
        true => (!has_slash).then_some(("*", length + 1)),
        false => (!text.contains('\\')).then_some((text, length)),
    }
}

/// Returns the glob for the escape whose `\` precedes `after`, and the length of the escape with
/// its quantifier.
fn escape(after: &str) -> Option<(&str, usize)> {
    let c = after.chars().next()?;
    let is_repeated = after[c.len_utf8()..].starts_with(['*', '+']);
    match c {
        'd' | 'w' if is_repeated => Some(("*", 3)),
        'd' => Some(("[0-9]", 2)),
        'w' => Some(("?", 2)),
        '.' | '-' | '/' if !is_repeated => Some((&after[..1], 2)),
        _ => None,
    }
}
