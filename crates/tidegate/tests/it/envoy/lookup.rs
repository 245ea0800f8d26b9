//! Random trees and descriptors, held against a naive model of how a limit is looked up.
//!
//! The model walks the tree as the rules say: at each level the exact value, else the first
//! wildcard, else the entry without a value, never back; a limit counts only where the
//! descriptor ends. It knows nothing of policies, exemptions or indexes.

use std::collections::HashMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use tidegate::unstable::attributes::Attributes;

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
const WANTED: [&str; 8] = ["", "x", "xy", "y", "x*", "*y", "*", "x*y*"];
const FOUND: [&str; 6] = ["", "x", "xy", "y", "xzyz", "z"];
const MAX_DEPTH: usize = 3;

fn node(depth: usize) -> BoxedStrategy<Node> {
    let below = match depth {
        1 => Just(Vec::new()).boxed(),
        _ => nodes(depth - 1, 0),
    };
    let parts = (prop::sample::select(&KEYS[..]), prop::sample::select(&WANTED[..]));
    (parts, any::<bool>(), any::<bool>(), below)
        .prop_map(|((key, value), has_limit, share, below)| {
            let share = share && value.contains('*');
            Node { key, value, has_limit, share, below }
        })
        .boxed()
}

/// Siblings, no two of which are alike.
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

/// The tree as a file. Each limit has a number of its own to be known by.
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

/// The same numbers, by the way to each limit.
fn number(nodes: &[Node], next: &mut u32, out: &mut HashMap<*const Node, u32>) {
    for node in nodes {
        if node.has_limit {
            out.insert(node, *next);
            *next += 1;
        }
        number(&node.below, next, out);
    }
}

/// Whether a pattern matches, tried out character by character.
fn matches(pattern: &[u8], value: &[u8]) -> bool {
    match pattern {
        [] => value.is_empty(),
        [b'*', rest @ ..] => (0..=value.len()).any(|skip| matches(rest, &value[skip..])),
        [first, rest @ ..] => value.first() == Some(first) && matches(rest, &value[1..]),
    }
}

/// The limit that a descriptor finds, and what it is counted under.
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

/// Every descriptor up to so many entries.
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
    let policies = &converted.config().policies;
    // What one limit counts under one key, there and here: each stands for one of the other.
    let mut keys: HashMap<(u32, Vec<String>), Vec<u8>> = HashMap::new();
    let mut back: HashMap<(u32, Vec<u8>), Vec<String>> = HashMap::new();
    for entries in all {
        let attributes =
            Attributes { domain: Some("d"), descriptors: entries, ..Attributes::default() };
        let selected = policies.select(&attributes).expect("no cost to read");
        let expected = look_up(tree, entries);
        let chosen: Vec<u64> =
            selected.iter().flat_map(|one| one.limits).map(|limit| limit.count()).collect();
        let wanted = expected.as_ref().map(|(node, _)| numbers[&std::ptr::from_ref(*node)]);
        let wanted_count: Vec<u64> = wanted.into_iter().map(u64::from).collect();
        prop_assert_eq!(&chosen, &wanted_count, "{:?}\n{}", entries, text);
        if let (Some(number), Some((_, counted)), [one]) = (wanted, expected, &selected[..]) {
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
