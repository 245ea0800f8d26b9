//! Help for words that the config does not have: words of other systems, similar words, and fields
//! that are written at another level than their own.

use tidegate_core::Algorithm;

use super::reader::{LocatedNode, excerpt, field_name};
use super::schema::{CONDITIONS, Field, OVERRIDE, POLICY, TOP};
use super::yaml::{Name, Value};

/// The largest edit distance at which one name is suggested for another.
const MAX_DISTANCE: usize = 2;

/// Returns the help for policies that are a mapping by name.
pub(super) fn named_policies(located: &LocatedNode) -> Option<String> {
    let Value::Map(entries) = &located.node.value else { return None };
    let (first, _) = entries.first()?;
    let are_policies = located.path == "policies"
        && !is_field_of_policy(&first.text)
        && entries.iter().all(|(_, node)| matches!(node.value, Value::Map(_)));
    let name = excerpt(&first.text);
    are_policies.then(|| format!("write `- name: {name}` in place of `{name}:`"))
}

/// Returns the help for a policy that begins with its name as a field: `- login:`.
pub(super) fn named_item(located: &LocatedNode, found: &Name) -> Option<String> {
    let Value::Map(entries) = &located.node.value else { return None };
    let (first, node) = entries.first()?;
    let is_item = located.path.starts_with("policies[") && located.path.ends_with(']');
    let is_name = is_item
        && !located.path.contains('.')
        && first.span == found.span
        && !entries.iter().any(|(other, _)| other.text == "name")
        && !is_field_of_policy(&first.text);
    let name = excerpt(&first.text);
    match &node.value {
        _ if !is_name => None,
        Value::Map(_) => {
            Some(format!("write `- name: {name}`, and indent the other fields like `name`"))
        }
        Value::Scalar(scalar) if scalar.is_null() => {
            Some(format!("write `- name: {name}` in place of `- {name}:`"))
        }
        _ => None,
    }
}

/// Returns whether a field of a policy has this name, or is probably meant by it.
fn is_field_of_policy(name: &str) -> bool {
    let fields = POLICY.iter().chain(CONDITIONS).map(|field| field.name);
    fields.clone().any(|field| field == name) || meant(name, fields).is_some()
}

/// Words of other systems, and those that take their place here.
const WORDS_ELSEWHERE: [(&str, &str); 32] = [
    ("allowlist", "exempt"),
    ("backend", "store"),
    ("dry-run", "observe"),
    ("duration", "window"),
    ("fail-closed", "deny"),
    ("fail-open", "allow"),
    ("identifier", "key"),
    ("if", "when"),
    ("interval", "window"),
    ("listen", "http"),
    ("log-only", "observe"),
    ("match", "when"),
    ("metrics", "admin"),
    ("open", "allow"),
    ("closed", "deny"),
    ("per", "window"),
    ("period", "window"),
    ("policy", "policies"),
    ("port", "http"),
    ("quota", "limits"),
    ("rate", "limit"),
    ("rate", "limits"),
    ("rate-limit", "limits"),
    ("rate-limits", "policies"),
    ("redis", "store"),
    ("rules", "policies"),
    ("shadow", "observe"),
    ("skip", "exempt"),
    ("storage", "store"),
    ("unit", "window"),
    ("weight", "cost"),
    ("whitelist", "exempt"),
];

/// Returns the word of `words` that takes the place of a word of other systems.
pub(super) fn equivalent<'w>(
    found: &str,
    mut words: impl Iterator<Item = &'w str>,
) -> Option<&'w str> {
    let found = found.to_ascii_lowercase().replace('_', "-");
    let is_meant = |word: &&str| {
        WORDS_ELSEWHERE.iter().any(|(elsewhere, here)| *elsewhere == found && here == word)
    };
    words.find(is_meant)
}

/// Returns where a field belongs that is written in the mapping at `path`, but is a field of
/// another level.
pub(super) fn misplaced(name: &str, path: &str) -> Option<String> {
    let is_in = |fields: &[Field]| fields.iter().any(|field| field.name == name);
    let here = field_name(path);
    let help = match here {
        "" if is_in(POLICY) => "a field of a policy: write it in each policy".into(),
        "when" if is_in(OVERRIDE) => {
            "a field of the override, not of `when`: indent it like `when`".into()
        }
        "match" | "exempt" if is_in(POLICY) => {
            format!("a field of the policy, not of `{here}`: indent it like `{here}`")
        }
        "overrides" | "when" if is_in(POLICY) => {
            "a field of the policy: overrides cannot change it".into()
        }
        // `headers` is a setting and a condition.
        "policies" | "overrides" if name == "headers" => return None,
        "policies" if is_in(CONDITIONS) => "a condition: write it in `match`".into(),
        "overrides" if is_in(CONDITIONS) => "a condition: write it in `when`".into(),
        "policies" | "overrides" | "match" | "when" | "exempt" if is_in(TOP) => {
            "a setting: write it at the top of the file".into()
        }
        _ => return None,
    };
    Some(format!("`{name}` is {help}"))
}

/// Returns the word of `words` that was probably meant.
pub(super) fn meant<'w>(
    found: &str,
    words: impl Iterator<Item = &'w str> + Clone,
) -> Option<&'w str> {
    equivalent(found, words.clone()).or_else(|| closest(found, words))
}

/// Returns the help for a word that is not one of `words`.
pub(super) fn suggest<'w>(found: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    if let Some(algorithm) = Algorithm::equivalent(found) {
        return format!("use `{algorithm}`, which takes its place here");
    }
    if matches!(found, "enabled" | "disabled") && words.clone().any(|word| word == "mode") {
        return "write `mode: off` to turn it off, or leave this out".into();
    }
    if found == "buckets" {
        return "leave it out: `sliding-window` replaced `sliding-buckets` and has no buckets"
            .into();
    }
    if let Some(word) = equivalent(found, words.clone()) {
        return format!("use `{word}`, which takes its place here");
    }
    match closest(found, words.clone()) {
        Some(word) => format!("did you mean `{word}`?"),
        None => {
            let words: Vec<&str> = words.collect();
            match words.split_last() {
                Some((last, rest)) if !rest.is_empty() => {
                    format!("use {} or {last}", rest.join(", "))
                }
                _ => format!("use {}", words.join("")),
            }
        }
    }
}

/// Returns the word with the most similar spelling, if one is similar enough to be meant.
pub(super) fn closest<'w>(found: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // Computing the distance takes time proportional to the product of the lengths, and all words
    // here are short.
    if found.len() > 64 {
        return None;
    }
    let same = |c: char| if c == '_' { '-' } else { c.to_ascii_lowercase() };
    let found: String = found.chars().map(same).collect();
    let distance = |word: &str| {
        let word: String = word.chars().map(same).collect();
        strsim::damerau_levenshtein(&found, &word)
    };
    let near = words.map(|word| (distance(word), word));
    let near = near.filter(|(far, word)| *far <= MAX_DISTANCE.min(word.len() / 2));
    near.min_by_key(|(far, _)| *far).map(|(_, word)| word)
}
