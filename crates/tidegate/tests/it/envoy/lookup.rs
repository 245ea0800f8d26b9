//! Random trees and descriptors, compared with a naive model of the lookup of a limit.
//!
//! The model walks the tree by the documented rules. Each level selects the exact value, else the
//! first wildcard, else the entry without a value, and never backtracks. A limit applies only where
//! the descriptor ends. The model has no policies, exemptions or indexes.

use std::collections::HashMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use tidegate::unstable::attributes::Attributes;

use super::fuzzed::same_policies;
use super::{Entries, converted};

#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    has_limit: bool,
    share: bool,
    below: Vec<Node>,
}

const KEYS: [&str; 2] = ["a", "b"];
const MATCHED_VALUES: [&str; 8] = ["", "x", "xy", "y", "x*", "*y", "*", "x*y*"];
const FOUND: [&str; 6] = ["", "x", "xy", "y", "xzyz", "z"];
const MAX_DEPTH: usize = 3;

fn node(depth: usize) -> BoxedStrategy<Node> {
    let below = match depth {
        1 => Just(Vec::new()).boxed(),
        _ => nodes(depth - 1, 0),
    };
    let key_and_value =
        (prop::sample::select(&KEYS[..]), prop::sample::select(&MATCHED_VALUES[..]));
    (key_and_value, any::<bool>(), any::<bool>(), below)
        .prop_map(|((key, value), has_limit, share, below)| {
            let share = share && value.contains('*');
            Node { key, value, has_limit, share, below }
        })
        .boxed()
}

/// Siblings that all differ.
fn nodes(depth: usize, least: usize) -> BoxedStrategy<Vec<Node>> {
    prop::collection::vec(node(depth), least..6)
        .prop_map(|nodes| {
            let mut kept: Vec<Node> = Vec::new();
            for node in nodes {
                if !kept.iter().any(|one| (one.key, one.value) == (node.key, node.value)) {
                    kept.push(node);
                }
            }
            kept
        })
        .boxed()
}

/// Writes the tree as a file. Each limit has a different number, by which it is identified.
fn write(nodes: &[Node], indent: usize, next: &mut u32, out: &mut String) {
    for node in nodes {
        let gap = " ".repeat(indent);
        writeln!(out, "{gap}- key: {}", node.key).expect("memory");
        if !node.value.is_empty() {
            writeln!(out, "{gap}  value: \"{}\"", node.value).expect("memory");
        }
        if node.share {
            writeln!(out, "{gap}  share_threshold: true").expect("memory");
        }
        if node.has_limit {
            writeln!(out, "{gap}  rate_limit: {{ unit: hour, requests_per_unit: {next} }}")
                .expect("memory");
            *next += 1;
        }
        if !node.below.is_empty() {
            writeln!(out, "{gap}  descriptors:").expect("memory");
            write(&node.below, indent + 4, next, out);
        }
    }
}

/// Assigns the same numbers to the nodes with limits.
fn number(nodes: &[Node], next: &mut u32, out: &mut HashMap<*const Node, u32>) {
    for node in nodes {
        if node.has_limit {
            out.insert(node, *next);
            *next += 1;
        }
        number(&node.below, next, out);
    }
}

/// Returns whether a pattern matches, character by character.
fn matches(pattern: &[u8], value: &[u8]) -> bool {
    match pattern {
        [] => value.is_empty(),
        [b'*', rest @ ..] => (0..=value.len()).any(|skip| matches(rest, &value[skip..])),
        [first, rest @ ..] => value.first() == Some(first) && matches(rest, &value[1..]),
    }
}

/// Returns the limit that a descriptor selects, and the values that it is counted under.
fn look_up<'t>(tree: &'t [Node], entries: &Entries) -> Option<(&'t Node, Vec<String>)> {
    let (mut level, mut counted) = (tree, Vec::new());
    let mut found = None;
    for (name, value) in entries {
        let same = || level.iter().filter(|node| node.key == name);
        let exact = same().find(|node| !node.value.is_empty() && node.value == value);
        let is_wild = |node: &&Node| node.value.contains('*');
        let wild =
            || same().filter(is_wild).find(|n| matches(n.value.as_bytes(), value.as_bytes()));
        let default = || same().find(|node| node.value.is_empty());
        let node = exact.or_else(wild).or_else(default)?;
        counted.push(if node.share { format!("*{}", node.value) } else { format!("={value}") });
        level = &node.below;
        found = Some(node);
    }
    found.filter(|node| node.has_limit).map(|node| (node, counted))
}

/// Returns every descriptor of up to `depth` entries.
fn descriptors(depth: usize) -> Vec<Entries> {
    let mut all: Vec<Entries> = vec![Vec::new()];
    let mut last = all.clone();
    for _ in 0..depth {
        let longer = last.iter().flat_map(|entries| {
            let pairs = KEYS.into_iter().flat_map(|key| FOUND.map(|value| (key, value)));
            pairs.map(|(key, value)| {
                let mut longer = entries.clone();
                longer.push((key.into(), value.into()));
                longer
            })
        });
        last = longer.collect();
        all.extend(last.clone());
    }
    all
}

fn check(tree: &[Node], all: &[Entries]) -> Result<(), TestCaseError> {
    let mut text = String::from("domain: d\ndescriptors:\n");
    write(tree, 2, &mut 1, &mut text);
    let mut numbers = HashMap::new();
    number(tree, &mut 1, &mut numbers);
    let converted = converted(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
    same_policies(&converted)?;
    let policies = &converted.config().policies;
    // The keys of the gate for the counts of the model, and the reverse: the mapping must be one to
    // one.
    let mut keys: HashMap<(u32, Vec<String>), Vec<u8>> = HashMap::new();
    let mut back: HashMap<(u32, Vec<u8>), Vec<String>> = HashMap::new();
    for entries in all {
        let attributes =
            Attributes { domain: Some("d"), descriptors: entries, ..Attributes::default() };
        let selected = policies.select(&attributes).expect("no cost");
        let expected = look_up(tree, entries);
        let chosen: Vec<u64> =
            selected.iter().flat_map(|one| one.limits).map(|limit| limit.count()).collect();
        let expected_number =
            expected.as_ref().map(|(node, _)| numbers[&std::ptr::from_ref(*node)]);
        let expected_counts: Vec<u64> = expected_number.into_iter().map(u64::from).collect();
        prop_assert_eq!(&chosen, &expected_counts, "{:?}\n{}", entries, text);
        if let (Some(number), Some((_, counted)), [one]) =
            (expected_number, expected, &selected[..])
        {
            let key = one.key.as_ref().to_vec();
            let first = keys.entry((number, counted.clone())).or_insert_with(|| key.clone());
            prop_assert_eq!(&*first, &key, "{:?}\n{}", entries, text);
            let first = back.entry((number, key)).or_insert_with(|| counted.clone());
            prop_assert_eq!(&*first, &counted, "{:?}\n{}", entries, text);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn conversion_selects_the_same_limit_and_count(tree in nodes(MAX_DEPTH, 1)) {
        check(&tree, &descriptors(MAX_DEPTH))?;
    }
}
