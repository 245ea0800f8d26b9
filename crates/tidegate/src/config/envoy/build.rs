//! Builds policies from trees of descriptors: one per limit, which matches exactly the descriptors
//! that reach this limit in the tree.
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
//! pass. The policies below a node share its list of preferred values.
//!
//! A policy has the `name` of its limit, if that is valid and unique, else a name that is made from
//! the path to the limit. Counts are stored under names, so a name must not depend on other limits.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tidegate_core::Limit;

use super::super::reader::excerpt;
use super::Options;
use super::check::{Descriptor, Domain, path};
use super::model::{DescriptorConfig, Preferred, RateLimitConfig, Siblings, ValueMatch};
use super::read::Source;
use crate::identity::Identity;
use crate::policy::{
    Condition, Conditions, DescriptorEntry, EnvoyDetails, EnvoyLevel, MAX_NAME_BYTES, MAX_POLICIES,
    MAX_REPLACED, MAX_TEMPLATE_BYTES, Mode, Policies, PoliciesError, Policy, PolicyError,
    RequestField, SHARED_KEY, Template,
};
use crate::text::floor_char_boundary;

/// The largest number of names in the `replaces` of all policies: as many as a thousand policies
/// that each replace a thousand.
const MAX_REPLACED_IN_ALL: usize = 1 << 20;

/// The largest number of values in all lists of preferred values. Each wildcard has a list of the
/// exact values that it matches, so the number can grow with their product.
const MAX_EXEMPT_IN_ALL: usize = 1 << 20;

/// Builds the policies of all domains. Errors are recorded in the sources; the result is then
/// without meaning.
pub(super) fn build(sources: &[Source<'_>], domains: &[Domain<'_>], options: &Options) -> Policies {
    let mut walk =
        Walk { sources, options: *options, drafts: Vec::new(), replaced: 0, exempt_values: 0 };
    for domain in domains {
        let first = walk.drafts.len();
        let condition = Condition::new(RequestField::Domain, &[domain.name]);
        let Ok(condition) = condition else { continue };
        let root = Root { name: domain.name.into(), condition };
        walk.level(&root, domain.descriptors.clone(), &mut Vec::new());
        walk.resolve_replaces(first);
    }
    walk.finish().with_envoy_domains(domains.iter().map(|domain| domain.name))
}

/// The domain of a tree.
struct Root {
    name: Arc<str>,
    condition: Condition,
}

/// A node on the path from the root to the current one.
struct Level<'c> {
    descriptor: Descriptor<'c>,
    entry: DescriptorEntry,
    /// The field of requests that has the value of this entry.
    field: RequestField,
    /// The condition that holds for values that are preferred to this node.
    exempt: Option<Condition>,
    details: Arc<EnvoyLevel>,
}

/// A policy that lacks its name and the names of those it replaces.
struct Draft<'c> {
    limit: Option<Limit>,
    config: &'c RateLimitConfig,
    names: NameChoice<'c>,
    source: usize,
    indices: Box<[usize]>,
    key: Template,
    matching: Conditions,
    exempt: Conditions,
    mode: Mode,
    quota: bool,
    details: EnvoyDetails,
    /// The indices of the policies that it replaces.
    replaces: Vec<usize>,
}

struct Walk<'c, 'w, 's> {
    sources: &'w [Source<'s>],
    options: Options,
    drafts: Vec<Draft<'c>>,
    /// The number of names in the `replaces` of all policies.
    replaced: usize,
    /// The number of values in all lists of preferred values.
    exempt_values: usize,
}

impl<'c> Walk<'c, '_, '_> {
    fn level(&mut self, root: &Root, nodes: Vec<Descriptor<'c>>, levels: &mut Vec<Level<'c>>) {
        let siblings = Siblings::group(nodes.iter().map(|node| node.config));
        for node in nodes {
            // A bound was exceeded, which was reported.
            if self.drafts.len() > MAX_POLICIES || self.exempt_values > MAX_EXEMPT_IN_ALL {
                return;
            }
            let nth = levels.iter().filter(|l| l.descriptor.config.key == node.config.key).count();
            let field = request_field(&node.config.key, nth, levels.len());
            let preferred = siblings[&*node.config.key].preferred(node.config, &field);
            let Some(exempt) = self.exempt(node, levels, preferred) else { continue };
            let Some(level) = Level::new(node, field, exempt) else { continue };
            levels.push(level);
            self.note_omitted(node, levels);
            if let Some(config) = &node.config.rate_limit {
                self.draft(root, config, levels);
            }
            if !node.config.descriptors.is_empty() {
                let children = Descriptor::list(node.source, &node.config.descriptors).collect();
                self.level(root, children, levels);
            }
            levels.pop();
        }
    }

    /// Returns the condition of preferred values. Returns `None`, and reports why, if the node
    /// cannot be reached or the condition is too large.
    fn exempt(
        &mut self,
        node: Descriptor<'c>,
        levels: &[Level<'c>],
        preferred: Preferred,
    ) -> Option<Option<Condition>> {
        let at = || {
            let above = levels.iter().map(|level| level.descriptor.index);
            path(&above.chain([node.index]).collect::<Vec<_>>(), "")
        };
        let source = &self.sources[node.source];
        match preferred {
            Preferred::None => Some(None),
            Preferred::Values(condition, count) => {
                self.exempt_values += count;
                if self.exempt_values > MAX_EXEMPT_IN_ALL {
                    let message =
                        format!("more than {MAX_EXEMPT_IN_ALL} values come before others");
                    source.fail(&at(), message, "use fewer wildcards");
                    return None;
                }
                Some(Some(condition))
            }
            Preferred::Everything(wildcard) => {
                let message = format!("this is never reached: `{wildcard}` comes before it");
                source.notice(&at(), message, "remove it, or the wildcard");
                None
            }
            Preferred::TooMany(message) => {
                let help = "use fewer; a descriptor that groups them is the better tool";
                source.fail(&at(), message, help);
                None
            }
        }
    }

    fn draft(&mut self, root: &Root, config: &'c RateLimitConfig, levels: &[Level<'c>]) {
        let Some(last) = levels.last() else { return };
        let source = &self.sources[last.descriptor.source];
        let indices: Box<[usize]> = levels.iter().map(|level| level.descriptor.index).collect();
        let at = |field: &str| path(&indices, field);
        if self.drafts.len() == MAX_POLICIES {
            let help = "use fewer values; a descriptor that groups them is the better tool";
            source.fail(&at(""), format!("there are more than {MAX_POLICIES} limits"), help);
        }
        let limit = match config.unlimited {
            true => None,
            false => {
                let (count, window) = (config.requests_per_unit.into(), config.unit.duration());
                match Limit::new(count, window, self.options.algorithm) {
                    Ok(limit) => Some(limit),
                    Err(error) => return source.fail(&at(""), error.problem(), error.help()),
                }
            }
        };
        let entries = levels.iter().map(|level| level.entry.clone()).collect();
        let (entries, key) = match (Condition::entries(entries), key(levels).parse::<Template>()) {
            (Ok(entries), Ok(key)) => (entries, key),
            (Err(error), _) => {
                return source.fail(&at(""), error.kind.problem(), error.kind.help());
            }
            (_, Err(error)) => return source.fail(&at(""), error.problem(), error.help()),
        };
        let node = last.descriptor.config;
        let configs = levels.iter().map(|level| level.descriptor.config);
        // envoyproxy/ratelimit does not count an unlimited descriptor as a quota with room.
        let quota = (node.quota_mode || self.options.quota_mode) && limit.is_some();
        self.drafts.push(Draft {
            limit,
            config,
            names: NameChoice { own: &config.name, by_path: path_name(&root.name, configs) },
            source: last.descriptor.source,
            indices,
            key,
            matching: [root.condition.clone(), entries].into_iter().collect(),
            exempt: levels.iter().filter_map(|level| level.exempt.clone()).collect(),
            mode: if node.shadow_mode { Mode::Observe } else { Mode::Enforce },
            quota,
            details: EnvoyDetails {
                domain: Arc::clone(&root.name),
                levels: levels.iter().map(|level| Arc::clone(&level.details)).collect(),
                name: (&*config.name).into(),
                detailed_metric: node.detailed_metric,
                metadata: node.metadata.clone(),
            },
            replaces: Vec::new(),
        });
    }

    /// Records the fields of a descriptor that a written config cannot have.
    fn note_omitted(&self, node: Descriptor<'c>, levels: &[Level<'c>]) {
        let config = node.config;
        let has_limit = config.rate_limit.is_some();
        let fields = [
            ("detailed_metric", has_limit && config.detailed_metric),
            ("value_to_metric", config.value_to_metric),
            ("metadata", has_limit && config.metadata.is_some()),
        ];
        for (field, _) in fields.into_iter().filter(|(_, is_set)| *is_set) {
            let indices: Vec<usize> = levels.iter().map(|level| level.descriptor.index).collect();
            self.sources[node.source].omit(&path(&indices, field), field);
        }
    }

    /// Sets the policies that each policy from `first` on replaces. Several limits may have the
    /// same name.
    fn resolve_replaces(&mut self, first: usize) {
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, draft) in self.drafts.iter().enumerate().skip(first) {
            if !draft.config.name.is_empty() {
                named.entry(&draft.config.name).or_default().push(index);
            }
        }
        for draft in &mut self.drafts[first..] {
            let source = &self.sources[draft.source];
            let most = MAX_REPLACED.min(MAX_REPLACED_IN_ALL - self.replaced);
            let mut seen = HashSet::new();
            for (index, name) in draft.config.replaces.iter().enumerate() {
                let indices = named.get(&**name).map_or(&[][..], |indices| indices);
                if indices.is_empty() {
                    let at = format!("rate_limit.replaces[{index}].name");
                    let message = format!("no limit of this domain is named `{}`", excerpt(name));
                    let help = "give the other limit that name, or remove this";
                    source.notice(&path(&draft.indices, &at), message, help);
                }
                if !seen.insert(name) {
                    continue;
                }
                if draft.replaces.len() + indices.len() > most {
                    let message = match most {
                        MAX_REPLACED => format!("this replaces more than {MAX_REPLACED} limits"),
                        _ => {
                            format!("limits replace more than {MAX_REPLACED_IN_ALL} others in all")
                        }
                    };
                    source.fail(&path(&draft.indices, ""), message, "give fewer limits that name");
                    break;
                }
                draft.replaces.extend_from_slice(indices);
            }
            draft.replaces.sort_unstable();
            self.replaced += draft.replaces.len();
        }
    }

    /// Names the policies, and puts them into a set.
    fn finish(self) -> Policies {
        let choices: Vec<&NameChoice<'_>> = self.drafts.iter().map(|draft| &draft.names).collect();
        let names = unique_names(&choices);
        let mut policies = Vec::with_capacity(self.drafts.len());
        let mut places = Vec::with_capacity(self.drafts.len());
        for (draft, name) in self.drafts.into_iter().zip(&names) {
            let source = &self.sources[draft.source];
            if !draft.config.name.is_empty() && draft.config.name != *name {
                let own = excerpt(&draft.config.name);
                let message = format!("the policy of the limit `{own}` is named {name}");
                let help = "two limits share that name, or a policy cannot have it; answers and metrics show the policy's";
                source.notice(&path(&draft.indices, ""), message, help);
            }
            places.push((source, draft.indices.clone()));
            match draft.policy(name, &names) {
                Ok(policy) => policies.push(policy),
                Err((indices, error)) => {
                    source.fail(&path(&indices, ""), error.problem(), error.help());
                }
            }
        }
        if self.sources.iter().any(|source| source.reader().has_errors()) {
            return Policies::default();
        }
        Policies::new(policies, Identity::default()).unwrap_or_else(|error| {
            let place = match error {
                PoliciesError::TooManyCompared { policy } => places.get(policy),
                _ => places.first(),
            };
            if let Some((source, indices)) = place {
                source.fail(&path(indices, ""), error.problem(), error.help());
            }
            Policies::default()
        })
    }
}

impl<'c> Level<'c> {
    fn new(
        descriptor: Descriptor<'c>,
        field: RequestField,
        exempt: Option<Condition>,
    ) -> Option<Self> {
        let config = descriptor.config;
        let entry = match &*config.value {
            "" => DescriptorEntry::any(&config.key),
            value => DescriptorEntry::new(&config.key, &[value]),
        };
        let details = EnvoyLevel {
            key: (&*config.key).into(),
            value: (&*config.value).into(),
            value_to_metric: config.value_to_metric,
            share_threshold: config.share_threshold,
        };
        // The key was checked, so the entry is valid.
        Some(Level { descriptor, entry: entry.ok()?, field, exempt, details: Arc::new(details) })
    }

    /// Returns whether each value of the entry has a separate count.
    fn is_in_key(&self) -> bool {
        match self.descriptor.config.value_match() {
            ValueMatch::Exact(_) => false,
            ValueMatch::Wild(_) => !self.descriptor.config.share_threshold,
            ValueMatch::Any => true,
        }
    }
}

impl Draft<'_> {
    /// Returns the policy. `names` are the names of all policies.
    fn policy(self, name: &str, names: &[String]) -> Result<Policy, (Box<[usize]>, PolicyError)> {
        let policy = match self.limit {
            Some(limit) => Policy::new(name, self.key, vec![limit]),
            None => Policy::unlimited(name, self.key),
        };
        let policy = policy.map_err(|error| (self.indices, error))?;
        Ok(policy
            .with_match(self.matching)
            .with_exempt(self.exempt)
            .with_replaces(self.replaces.iter().map(|&index| &names[index]))
            .with_mode(self.mode)
            .with_quota(self.quota)
            .with_envoy_details(Some(Arc::new(self.details))))
    }
}

/// Returns the request field of an entry, for conditions and keys: the entry after `nth` others
/// with the same key and `position` others.
fn request_field(key: &str, nth: usize, position: usize) -> RequestField {
    let ordinal = |count: usize| u16::try_from(count + 1).unwrap_or(u16::MAX);
    let named = RequestField::Descriptor { name: key.into(), nth: ordinal(nth) };
    match named.to_string().parse() {
        Ok(parsed) if named == parsed => named,
        // A name that cannot be part of a template is replaced by the entry's position.
        _ => RequestField::Descriptor { name: "".into(), nth: ordinal(position) },
    }
}

/// Returns the key template: every entry whose value is not fixed by the match.
fn key(levels: &[Level<'_>]) -> String {
    let open = || levels.iter().enumerate().filter(|(_, level)| level.is_in_key());
    let named: Vec<String> = open().map(|(_, level)| format!("{{{}}}", level.field)).collect();
    let by_position = || open().map(|(index, _)| format!("{{descriptor:#{}}}", index + 1));
    match named.join(":") {
        key if key.is_empty() => SHARED_KEY.to_owned(),
        key if key.len() > MAX_TEMPLATE_BYTES => by_position().collect::<Vec<_>>().join(":"),
        key => key,
    }
}

/// The number of bytes of the digest in a name, written in hex.
const DIGEST_BYTES: usize = 4;

/// The names that a policy can have.
pub(super) struct NameChoice<'c> {
    /// The `name` of the limit; empty if it has none.
    pub(super) own: &'c str,
    /// The name that is made from the path.
    pub(super) by_path: String,
}

/// Returns a unique name for each policy.
pub(super) fn unique_names(choices: &[&NameChoice<'_>]) -> Vec<String> {
    let mut own: HashMap<&str, usize> = HashMap::new();
    let mut path_names: HashSet<&str> = HashSet::new();
    for choice in choices {
        path_names.insert(&choice.by_path);
        *own.entry(choice.own).or_default() += 1;
    }
    let mut taken = HashSet::new();
    let unique = |choice: &&NameChoice<'_>| {
        let is_unique = own[choice.own] == 1 && !path_names.contains(choice.own);
        let mut name = match is_unique && Policy::is_name(choice.own) {
            true => choice.own.to_owned(),
            false => choice.by_path.clone(),
        };
        // Digests are short, so two may be equal. The later policy then gets a number.
        let mut number = 2;
        while !taken.insert(name.clone()) {
            name = with_suffix(&name, &format!("-{number}"));
            number += 1;
        }
        name
    };
    choices.iter().map(unique).collect()
}

/// Returns the name that is made from the path to a limit.
pub(super) fn path_name<'c>(
    domain: &str,
    path: impl Iterator<Item = &'c DescriptorConfig> + Clone,
) -> String {
    let mut name = domain.to_owned();
    for config in path.clone() {
        name.push('.');
        name.push_str(&config.composite());
    }
    if Policy::is_name(&name) && !domain.contains('.') && path.clone().all(is_unambiguous) {
        name
    } else {
        with_digest(sanitize(&name).trim_end_matches('-'), domain, path)
    }
}

/// Returns whether a descriptor can be recognized in the name of a path. Descriptors are separated
/// by dots, so no key may contain one. A value may contain dots if no key can follow them, as in
/// addresses. (Key and value are joined by `_`. Siblings with the same joined text are rejected.)
fn is_unambiguous(config: &DescriptorConfig) -> bool {
    let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let mut after_dots = config.value.split('.').skip(1);
    let is_key = !config.key.contains('.') && !starts_with_digit(&config.key);
    is_key && after_dots.all(starts_with_digit)
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

fn with_digest<'c>(
    name: &str,
    domain: &str,
    path: impl Iterator<Item = &'c DescriptorConfig>,
) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    };
    add(domain);
    for config in path {
        add(&config.key);
        add(&config.value);
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
