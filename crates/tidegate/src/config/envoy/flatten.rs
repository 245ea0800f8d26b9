//! From a tree to policies: one per limit, matching exactly the descriptors that would have
//! found it.
//!
//! A request takes the exact value at each level, else the first wildcard in order, else the
//! entry without a value; and it never turns back. So a descriptor finds a limit if each of its
//! entries matches, and none matches something that is preferred:
//!
//! ```text
//!   - key: a, value: x        ->  [{ a: x }]
//!   - key: a, value: "x*"     ->  [{ a: "x*" }]   exempt a: x
//!   - key: a                  ->  [a]             exempt a: [x, "x*"]
//!       - key: b  (below it)  ->  [a, b]          exempt a: [x, "x*"]
//! ```
//!
//! That holds whether or not what is preferred has a limit itself: one without is how a value
//! is let through.

use std::collections::HashMap;

use tidegate_core::{Algorithm, Limit};

use super::super::reader::{Reader, shown};
use super::tree::{At, Descriptor, Domain, Rate, Wanted};
use crate::policy::{MAX_POLICIES, MAX_REPLACED, MAX_VALUES, Part, Wildcard};

/// A policy to be.
pub(super) struct Flat<'t> {
    pub(super) name: String,
    pub(super) domain: &'t str,
    /// The way to it.
    pub(super) way: Vec<&'t Descriptor>,
    /// What is preferred to it, by the part that says so.
    pub(super) exempt: Vec<(String, Vec<&'t str>)>,
    pub(super) key: String,
    /// `None` if it is unlimited.
    pub(super) limit: Option<Limit>,
    pub(super) observed: bool,
    pub(super) quota: bool,
    /// The places in the list of policies that it replaces.
    pub(super) replaces: Vec<usize>,
}

impl<'t> Flat<'t> {
    pub(super) fn at(&self) -> Option<&'t At> {
        self.way.last().map(|node| &node.at)
    }

    pub(super) fn rate(&self) -> Option<&'t Rate> {
        self.way.last().and_then(|node| node.rate.as_ref())
    }
}

/// Every limit of every domain, in order.
pub(super) fn flatten<'t>(
    readers: &[Reader<'_>],
    domains: &'t [Domain],
    algorithm: Algorithm,
) -> Vec<Flat<'t>> {
    let mut walk = Walk { readers, algorithm, flat: Vec::new(), is_full: false };
    for domain in domains {
        let first = walk.flat.len();
        walk.level(domain, &domain.nodes, &mut Way::default());
        walk.replace(first);
    }
    walk.flat
}

struct Walk<'t, 'r, 's> {
    readers: &'r [Reader<'s>],
    algorithm: Algorithm,
    flat: Vec<Flat<'t>>,
    /// Whether there was one too many.
    is_full: bool,
}

/// The way down to a node.
#[derive(Default)]
struct Way<'t> {
    nodes: Vec<&'t Descriptor>,
    /// What is preferred at each level.
    preferred: Vec<Vec<&'t str>>,
}

impl<'t> Walk<'t, '_, '_> {
    fn level(&mut self, domain: &'t Domain, nodes: &'t [Descriptor], way: &mut Way<'t>) {
        let mut by_key: HashMap<&str, Vec<&'t Descriptor>> = HashMap::new();
        for node in nodes {
            by_key.entry(&node.key).or_default().push(node);
        }
        for node in nodes {
            let preferred = preferred(node, &by_key[&*node.key]);
            if let Some(all) = preferred.iter().find(|text| text.bytes().all(|b| b == b'*')) {
                let message = format!("this is never reached: `{all}` comes before it");
                self.notice(&node.at, message, "remove it, or the wildcard");
                continue;
            }
            way.nodes.push(node);
            way.preferred.push(preferred);
            if let Some(rate) = &node.rate {
                self.policy(domain, node, rate, way);
            }
            self.level(domain, &node.below, way);
            way.nodes.pop();
            way.preferred.pop();
        }
    }

    fn policy(&mut self, domain: &'t Domain, node: &Descriptor, rate: &Rate, way: &Way<'t>) {
        if self.is_full {
            return;
        }
        if self.flat.len() == MAX_POLICIES {
            self.is_full = true;
            let help = "use fewer values; a descriptor that groups them is the better tool";
            return self.fail(&node.at, format!("there are more than {MAX_POLICIES} limits"), help);
        }
        let limit = match rate.limit {
            None => None,
            Some((count, (_, window))) => {
                match format!("{count} per {window} {}", self.algorithm).parse::<Limit>() {
                    Ok(limit) => Some(limit),
                    Err(error) => return self.fail(&node.at, error.problem(), error.help()),
                }
            }
        };
        let parts = parts(&way.nodes);
        let exempt = parts.iter().zip(&way.preferred);
        let exempt: Vec<(String, Vec<&str>)> = exempt
            .filter(|(_, preferred)| !preferred.is_empty())
            .map(|(part, preferred)| (part.clone(), preferred.clone()))
            .collect();
        if exempt.iter().any(|(_, values)| values.len() > MAX_VALUES) {
            let message = format!("more than {MAX_VALUES} values come before this one");
            self.fail(
                &node.at,
                message,
                "use fewer; a descriptor that groups them is the better tool",
            );
        }
        self.flat.push(Flat {
            name: String::new(),
            domain: &domain.name,
            key: key(&way.nodes, &parts),
            way: way.nodes.clone(),
            exempt,
            limit,
            observed: node.shadow,
            quota: node.quota,
            replaces: Vec::new(),
        });
    }

    /// Finds those that the policies from `first` on replace: a name may stand for several.
    fn replace(&mut self, first: usize) {
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, flat) in self.flat.iter().enumerate().skip(first) {
            if let Some(name) = flat.rate().and_then(|rate| rate.name.as_deref()) {
                named.entry(name).or_default().push(place);
            }
        }
        for place in first..self.flat.len() {
            let rate = self.flat[place].rate();
            let mut replaced = Vec::new();
            for (name, at) in rate.into_iter().flat_map(|rate| &rate.replaces) {
                match named.get(&**name) {
                    Some(places) => replaced.extend_from_slice(places),
                    None => {
                        let message = format!("no limit of this domain is named `{}`", shown(name));
                        self.notice(at, message, "give the other limit that name, or remove this");
                    }
                }
            }
            replaced.sort_unstable();
            replaced.dedup();
            if replaced.len() > MAX_REPLACED
                && let Some(at) = self.flat[place].at()
            {
                let message = format!("this replaces more than {MAX_REPLACED} limits");
                self.fail(at, message, "give fewer limits that name");
            }
            self.flat[place].replaces = replaced;
        }
    }

    fn fail(&self, at: &At, message: impl Into<String>, help: &str) {
        self.readers[at.file].fail_at(at.span.clone(), &at.path, message, help);
    }

    fn notice(&self, at: &At, message: String, help: &str) {
        self.readers[at.file].notice(at.span.clone(), &at.path, message, help);
    }
}

/// The values that are preferred to a node's, of its siblings with the same key.
fn preferred<'t>(node: &Descriptor, siblings: &[&'t Descriptor]) -> Vec<&'t str> {
    let exact = siblings.iter().filter_map(|sibling| match &sibling.value {
        Wanted::Exact(text) => Some(&**text),
        _ => None,
    });
    let wild = |sibling: &&'t Descriptor| match &sibling.value {
        Wanted::Wild(text) => Some(&**text),
        _ => None,
    };
    match &node.value {
        Wanted::Exact(_) => Vec::new(),
        Wanted::Any => exact.chain(siblings.iter().filter_map(wild)).collect(),
        Wanted::Wild(own) => {
            let pattern = Wildcard::new(own);
            let before = siblings.iter().filter_map(wild).take_while(|text| text != own);
            exact.filter(|text| pattern.matches(text)).chain(before).collect()
        }
    }
}

/// How each entry of a way is named in conditions and keys.
fn parts(way: &[&Descriptor]) -> Vec<String> {
    let names = way.iter().enumerate().map(|(index, node)| {
        let before = way[..index].iter().filter(|other| other.key == node.key).count();
        let nth = |count: usize| u16::try_from(count + 1).unwrap_or(u16::MAX);
        let named = Part::Descriptor { name: (&*node.key).into(), nth: nth(before) };
        // A name that cannot stand in a template is told by its place.
        let by_place = Part::Descriptor { name: "".into(), nth: nth(index) };
        let can_stand = named.to_string().parse() == Ok(named.clone());
        let part = if can_stand { named } else { by_place };
        part.to_string()
    });
    names.collect()
}

/// The key: every entry whose value is not known from the match.
fn key(way: &[&Descriptor], parts: &[String]) -> String {
    let is_open = |node: &Descriptor| match node.value {
        Wanted::Exact(_) => false,
        Wanted::Wild(_) => !node.share,
        Wanted::Any => true,
    };
    let open = || way.iter().zip(parts).enumerate().filter(|(_, (node, _))| is_open(node));
    let named: Vec<String> = open().map(|(_, (_, part))| format!("{{{part}}}")).collect();
    let by_place = || open().map(|(index, _)| format!("{{descriptor:#{}}}", index + 1));
    match named.join(":") {
        key if key.is_empty() => crate::policy::SHARED_KEY.to_owned(),
        key if key.len() > crate::policy::MAX_TEMPLATE_BYTES => {
            by_place().collect::<Vec<_>>().join(":")
        }
        key => key,
    }
}
