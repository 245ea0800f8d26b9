//! Converts trees of descriptors into policies: one per limit, which matches exactly the
//! descriptors that reach this limit in the tree.
//!
//! At each level a request takes the node with its exact value, else the first wildcard that
//! matches, else the node without a value. It never backtracks. So a descriptor reaches a limit if
//! each of its entries matches, and none of them matches a value that is preferred:
//!
//! ```text
//!   - key: a, value: x        ->  [{ a: x }]
//!   - key: a, value: "x*"     ->  [{ a: "x*" }]   exempt a: x
//!   - key: a                  ->  [a]             exempt a: [x, "x*"]
//!       - key: b  (below it)  ->  [a, b]          exempt a: [x, "x*"]
//! ```
//!
//! Preferred values are exempt whether or not they have a limit: a node without one lets its value
//! pass.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tidegate_core::{Algorithm, Limit};

use super::super::reader::{Reader, excerpt};
use super::tree::{Descriptor, Domain, Location, Rate, ValueMatch};
use crate::policy::{MAX_NAME_BYTES, MAX_REPLACED, MAX_VALUES, Policy, RequestField, Wildcard};
use crate::text::floor_char_boundary;

/// The largest number of limits.
const MAX_POLICIES: usize = 1024;

/// A policy that is not yet written.
pub(super) struct FlatPolicy<'t> {
    pub(super) name: String,
    pub(super) domain: &'t str,
    /// The nodes from the root to the limit.
    pub(super) path: Vec<&'t Descriptor>,
    /// The values that are preferred to the policy's, by request field.
    pub(super) exempt: Vec<(String, Vec<&'t str>)>,
    pub(super) key: String,
    /// `None` if it is unlimited.
    pub(super) limit: Option<Limit>,
    pub(super) is_observed: bool,
    pub(super) quota: bool,
    /// The indices of the policies that it replaces.
    pub(super) replaces: Vec<usize>,
}

impl<'t> FlatPolicy<'t> {
    pub(super) fn at(&self) -> Option<&'t Location> {
        self.path.last().map(|node| &node.at)
    }

    pub(super) fn rate(&self) -> Option<&'t Rate> {
        self.path.last().and_then(|node| node.rate.as_ref())
    }
}

/// Returns a policy for every limit of every domain, in order.
pub(super) fn flatten<'t>(
    readers: &[Reader<'_>],
    domains: &'t [Domain],
    algorithm: Algorithm,
) -> Vec<FlatPolicy<'t>> {
    let mut walk = Walk { readers, algorithm, policies: Vec::new(), is_full: false };
    for domain in domains {
        let first = walk.policies.len();
        walk.level(domain, &domain.nodes, &mut NodePath::default());
        walk.replace(first);
    }
    walk.policies
}

struct Walk<'t, 'r, 's> {
    readers: &'r [Reader<'s>],
    algorithm: Algorithm,
    policies: Vec<FlatPolicy<'t>>,
    /// Whether the largest number of policies was exceeded.
    is_full: bool,
}

/// The path from the root to a node.
#[derive(Default)]
struct NodePath<'t> {
    nodes: Vec<&'t Descriptor>,
    /// The preferred values at each level.
    preferred: Vec<Vec<&'t str>>,
}

impl<'t> Walk<'t, '_, '_> {
    fn level(&mut self, domain: &'t Domain, nodes: &'t [Descriptor], path: &mut NodePath<'t>) {
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
            path.nodes.push(node);
            path.preferred.push(preferred);
            if let Some(rate) = &node.rate {
                self.policy(domain, node, rate, path);
            }
            self.level(domain, &node.children, path);
            path.nodes.pop();
            path.preferred.pop();
        }
    }

    fn policy(&mut self, domain: &'t Domain, node: &Descriptor, rate: &Rate, path: &NodePath<'t>) {
        if self.is_full {
            return;
        }
        if self.policies.len() == MAX_POLICIES {
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
        let request_fields = request_fields(&path.nodes);
        let exempt = request_fields.iter().zip(&path.preferred);
        let exempt: Vec<(String, Vec<&str>)> = exempt
            .filter(|(_, preferred)| !preferred.is_empty())
            .map(|(request_field, preferred)| (request_field.clone(), preferred.clone()))
            .collect();
        if exempt.iter().any(|(_, values)| values.len() > MAX_VALUES) {
            let message = format!("more than {MAX_VALUES} values come before this one");
            self.fail(
                &node.at,
                message,
                "use fewer; a descriptor that groups them is the better tool",
            );
        }
        self.policies.push(FlatPolicy {
            name: String::new(),
            domain: &domain.name,
            key: key(&path.nodes, &request_fields),
            path: path.nodes.clone(),
            exempt,
            limit,
            is_observed: node.shadow,
            quota: node.quota,
            replaces: Vec::new(),
        });
    }

    /// Sets the policies that each policy from `first` on replaces. Several limits may have the
    /// same name.
    fn replace(&mut self, first: usize) {
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, policy) in self.policies.iter().enumerate().skip(first) {
            if let Some(name) = policy.rate().and_then(|rate| rate.name.as_deref()) {
                named.entry(name).or_default().push(index);
            }
        }
        for index in first..self.policies.len() {
            let rate = self.policies[index].rate();
            let mut replaced = Vec::new();
            for (name, at) in rate.into_iter().flat_map(|rate| &rate.replaces) {
                match named.get(&**name) {
                    Some(indices) => replaced.extend_from_slice(indices),
                    None => {
                        let message =
                            format!("no limit of this domain is named `{}`", excerpt(name));
                        self.notice(at, message, "give the other limit that name, or remove this");
                    }
                }
            }
            replaced.sort_unstable();
            replaced.dedup();
            if replaced.len() > MAX_REPLACED
                && let Some(at) = self.policies[index].at()
            {
                let message = format!("this replaces more than {MAX_REPLACED} limits");
                self.fail(at, message, "give fewer limits that name");
            }
            self.policies[index].replaces = replaced;
        }
    }

    fn fail(&self, at: &Location, message: impl Into<String>, help: &str) {
        self.readers[at.file].fail_at(at.span.clone(), &at.path, message, help);
    }

    fn notice(&self, at: &Location, message: String, help: &str) {
        self.readers[at.file].notice(at.span.clone(), &at.path, message, help);
    }
}

/// Returns the values that are preferred to a node's, from its siblings with the same key.
fn preferred<'t>(node: &Descriptor, siblings: &[&'t Descriptor]) -> Vec<&'t str> {
    let exact = siblings.iter().filter_map(|sibling| match &sibling.value {
        ValueMatch::Exact(text) => Some(&**text),
        _ => None,
    });
    let wild = |sibling: &&'t Descriptor| match &sibling.value {
        ValueMatch::Wild(text) => Some(&**text),
        _ => None,
    };
    match &node.value {
        ValueMatch::Exact(_) => Vec::new(),
        ValueMatch::Any => exact.chain(siblings.iter().filter_map(wild)).collect(),
        ValueMatch::Wild(own) => {
            let pattern = Wildcard::new(own);
            let before = siblings.iter().filter_map(wild).take_while(|text| text != own);
            exact.filter(|text| pattern.matches(text)).chain(before).collect()
        }
    }
}

/// Returns the request field of each entry of a path, for conditions and keys.
fn request_fields(path: &[&Descriptor]) -> Vec<String> {
    let names = path.iter().enumerate().map(|(index, node)| {
        let before = path[..index].iter().filter(|other| other.key == node.key).count();
        let nth = |count: usize| u16::try_from(count + 1).unwrap_or(u16::MAX);
        let named = RequestField::Descriptor { name: (&*node.key).into(), nth: nth(before) };
        // A name that cannot be part of a template is replaced by the entry's position.
        let by_position = RequestField::Descriptor { name: "".into(), nth: nth(index) };
        let is_parsable = named.to_string().parse() == Ok(named.clone());
        let request_field = if is_parsable { named } else { by_position };
        request_field.to_string()
    });
    names.collect()
}

/// Returns the key template: every entry whose value is not fixed by the match.
fn key(path: &[&Descriptor], request_fields: &[String]) -> String {
    let is_open = |node: &Descriptor| match node.value {
        ValueMatch::Exact(_) => false,
        ValueMatch::Wild(_) => !node.share,
        ValueMatch::Any => true,
    };
    let open =
        || path.iter().zip(request_fields).enumerate().filter(|(_, (node, _))| is_open(node));
    let named: Vec<String> =
        open().map(|(_, (_, request_field))| format!("{{{request_field}}}")).collect();
    let by_position = || open().map(|(index, _)| format!("{{descriptor:#{}}}", index + 1));
    match named.join(":") {
        key if key.is_empty() => crate::policy::SHARED_KEY.to_owned(),
        key if key.len() > crate::policy::MAX_TEMPLATE_BYTES => {
            by_position().collect::<Vec<_>>().join(":")
        }
        key => key,
    }
}

/// The number of bytes of the digest in a name, written in hex.
const DIGEST_BYTES: usize = 4;

/// Gives each policy a unique name.
pub(super) fn assign_names(readers: &[Reader<'_>], policies: &mut [FlatPolicy<'_>]) {
    let mut own: HashMap<String, usize> = HashMap::new();
    let mut path_names: HashSet<String> = HashSet::new();
    for policy in &*policies {
        path_names.insert(path_name(policy));
        if let Some(name) = own_name(policy) {
            *own.entry(name.to_owned()).or_default() += 1;
        }
    }
    let mut taken = HashSet::new();
    for policy in policies.iter_mut() {
        policy.name = match own_name(policy) {
            Some(name) if own[name] == 1 && !path_names.contains(name) => name.to_owned(),
            _ => path_name(policy),
        };
        // Digests are short, so two may be equal. The later policy then gets a number.
        let mut number = 2;
        while !taken.insert(policy.name.clone()) {
            policy.name = with_suffix(&policy.name, &format!("-{number}"));
            number += 1;
        }
        if let (Some(name), Some(at)) =
            (policy.rate().and_then(|rate| rate.name.as_deref()), policy.at())
            && name != policy.name
        {
            let message =
                format!("the policy of the limit `{}` is named {}", excerpt(name), policy.name);
            let help = "two limits share that name, or a policy cannot have it; answers and metrics show the policy's";
            readers[at.file].notice(at.span.clone(), &at.path, message, help);
        }
    }
}

/// Returns the name of the limit, if it is valid for a policy.
fn own_name<'f>(policy: &'f FlatPolicy<'_>) -> Option<&'f str> {
    policy.rate()?.name.as_deref().filter(|name| Policy::is_name(name))
}

/// Returns the name that is made from the path.
fn path_name(policy: &FlatPolicy<'_>) -> String {
    let mut path = policy.domain.to_owned();
    for node in &policy.path {
        path.push('.');
        path.push_str(&node.composite());
    }
    if Policy::is_name(&path) && is_unambiguous(policy) {
        path
    } else {
        with_digest(sanitize(&path).trim_end_matches('-'), policy)
    }
}

/// Returns whether no other path gives the same name. Names on a path are separated by dots, so no
/// key may contain one. A value may contain dots if no key can follow them, as in addresses. (Key
/// and value are joined by `_`. When files are read, siblings with the same joined text are
/// rejected.)
fn is_unambiguous(policy: &FlatPolicy<'_>) -> bool {
    let is_key = |key: &str| !key.contains('.') && !key.starts_with(|c: char| c.is_ascii_digit());
    let is_value = |value: &str| {
        let mut after_dots = value.split('.').skip(1);
        after_dots.all(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_unambiguous_node = |node: &Descriptor| match &node.value {
        ValueMatch::Any => is_key(&node.key),
        ValueMatch::Exact(value) | ValueMatch::Wild(value) => is_key(&node.key) && is_value(value),
    };
    !policy.domain.contains('.') && policy.path.iter().all(|node| is_unambiguous_node(node))
}

/// Replaces each run of characters that a name cannot contain with `-`.
fn sanitize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || "._-".contains(c) => out.push(c),
            _ if out.ends_with('-') => {}
            _ => out.push('-'),
        }
    }
    out
}

fn with_digest(name: &str, policy: &FlatPolicy<'_>) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    };
    add(policy.domain);
    for node in &policy.path {
        add(&node.key);
        add(match &node.value {
            ValueMatch::Any => "",
            ValueMatch::Exact(value) | ValueMatch::Wild(value) => value,
        });
    }
    let mut suffix = String::from("-");
    for byte in hash.finalize().iter().take(DIGEST_BYTES) {
        // Writing to memory cannot fail.
        let _ = write!(suffix, "{byte:02x}");
    }
    with_suffix(name, &suffix)
}

/// Appends `suffix` to a name, which is truncated if the result would be too long. Names are ASCII.
fn with_suffix(name: &str, suffix: &str) -> String {
    let most = MAX_NAME_BYTES.saturating_sub(suffix.len());
    format!("{}{suffix}", &name[..floor_char_boundary(name, most)])
}
