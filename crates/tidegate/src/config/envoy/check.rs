//! Checks configs, and puts the descriptors of each domain together.
//!
//! Everything that envoyproxy/ratelimit rejects is rejected here, and everything that would have
//! another meaning in tidegate. Ineffective fields are reported as notices.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::reader::excerpt;
use super::model::{DescriptorConfig, DomainConfig, RateLimitConfig, Unit};
use super::read::Source;
use crate::policy::{MAX_ENTRIES, MAX_ENTRY_NAME_BYTES};

/// One domain, with the descriptors of all its sources.
pub(super) struct Domain<'c> {
    pub(super) name: &'c str,
    pub(super) descriptors: Vec<Descriptor<'c>>,
}

/// A descriptor, the source that it comes from, and its index in the list that contains it.
#[derive(Clone, Copy)]
pub(super) struct Descriptor<'c> {
    pub(super) config: &'c DescriptorConfig,
    pub(super) source: usize,
    pub(super) index: usize,
}

impl<'c> Descriptor<'c> {
    /// Lists the descriptors of a source.
    pub(super) fn list(
        source: usize,
        configs: &'c [DescriptorConfig],
    ) -> impl Iterator<Item = Descriptor<'c>> {
        let all = configs.iter().enumerate();
        all.map(move |(index, config)| Descriptor { config, source, index })
    }
}

/// Checks the config of each source, and returns the domains in order. Errors are recorded in the
/// sources.
pub(super) fn check<'c>(
    sources: &[Source<'_>],
    configs: impl Iterator<Item = Option<&'c DomainConfig>>,
    merge_domains: bool,
) -> Vec<Domain<'c>> {
    let mut domains: Vec<Domain<'c>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (index, (source, config)) in sources.iter().zip(configs).enumerate() {
        let Some(config) = config else { continue };
        check_domain(source, &config.domain);
        let mut walk = Walk { source, indices: Vec::new() };
        walk.descriptors(&config.descriptors);
        let name = &*config.domain;
        let at = *known.entry(name).or_insert(domains.len());
        match domains.get_mut(at) {
            Some(_) if !merge_domains && !name.is_empty() => {
                let kind = source.kind();
                let message = format!("another {kind} has the domain `{}` too", excerpt(name));
                let help = format!("put both in one {kind}, or allow it with --merge-domains");
                source.fail("domain", message, help);
            }
            Some(domain) => {
                domain.descriptors.extend(Descriptor::list(index, &config.descriptors));
            }
            None => {
                let descriptors = Descriptor::list(index, &config.descriptors).collect();
                domains.push(Domain { name, descriptors });
            }
        }
    }
    for domain in &domains {
        report_duplicates(sources, &[], domain.descriptors.iter().copied());
    }
    domains
}

fn check_domain(source: &Source<'_>, domain: &str) {
    if domain.contains('*') {
        let help = "tidegate would match others by it: rename it";
        source.fail("domain", "a domain with `*` in it", help);
    }
    // A domain that is missing or could not be read was reported.
    if domain.is_empty() && !source.reader().has_errors() {
        source.fail("domain", "the domain is empty", "write the `domain` of Envoy's filter");
    }
}

/// Returns the path of a field of the descriptor at these indices.
pub(super) fn path(indices: &[usize], field: &str) -> String {
    let levels = indices.iter().map(|index| format!("descriptors[{index}]"));
    let fields = levels.chain((!field.is_empty()).then(|| field.to_owned()));
    fields.collect::<Vec<_>>().join(".")
}

/// Visits the descriptors of one source.
struct Walk<'w, 's> {
    source: &'w Source<'s>,
    /// The indices of the descriptors from the root to the current one.
    indices: Vec<usize>,
}

impl Walk<'_, '_> {
    fn descriptors(&mut self, configs: &[DescriptorConfig]) {
        if self.indices.len() == MAX_ENTRIES && !configs.is_empty() {
            let message = format!("descriptors are nested more than {MAX_ENTRIES} deep");
            self.fail("descriptors", &message, "use fewer levels");
            return;
        }
        for (index, config) in configs.iter().enumerate() {
            self.indices.push(index);
            self.descriptor(config);
            self.descriptors(&config.descriptors);
            let children = Descriptor::list(0, &config.descriptors);
            report_duplicates(std::slice::from_ref(self.source), &self.indices, children);
            self.indices.pop();
        }
    }

    fn descriptor(&self, config: &DescriptorConfig) {
        match &*config.key {
            "" => self.fail("key", "a descriptor has an empty key", "write `key: NAME`"),
            // Envoy Gateway sends the name of a route as both, with a `*` for a route without a
            // host.
            key if key.contains('*') && key != config.value => {
                let help = "keys are compared as they are: write out each";
                self.fail("key", "a key with `*` in it", help);
            }
            key if key.len() > MAX_ENTRY_NAME_BYTES => {
                let help = format!("use at most {MAX_ENTRY_NAME_BYTES} bytes");
                self.fail("key", "a key that is too long", &help);
            }
            _ => {}
        }
        if config.share_threshold && !config.value.contains('*') {
            let help = "write `*` in its value, or remove `share_threshold`";
            self.fail("share_threshold", "only the values of a wildcard can share a count", help);
        }
        match &config.rate_limit {
            Some(limit) => self.rate_limit(limit),
            None => self.note_useless(config),
        }
    }

    fn rate_limit(&self, limit: &RateLimitConfig) {
        match (limit.unit, limit.unlimited) {
            (Unit::Unknown, false) => {
                let names = Unit::ALL.map(Unit::name);
                let (last, others) = names.split_last().unwrap_or((&"", &[]));
                let help = format!("use {} or {last}", others.join(", "));
                self.fail("rate_limit.unit", "a limit has no `unit`", &help);
            }
            (Unit::Unknown, true) | (_, false) => {}
            (_, true) => {
                let help = "remove `unit`, or `unlimited`";
                self.fail("rate_limit.unit", "what is unlimited has no unit", help);
            }
        }
        if limit.unlimited && limit.requests_per_unit > 0 {
            let message = "`requests_per_unit` does nothing beside `unlimited`";
            self.notice("rate_limit.requests_per_unit", message, "remove one of them");
        }
        for (index, name) in limit.replaces.iter().enumerate() {
            let (message, help) = match &**name {
                "" => ("a limit replaces one without a name", "write `- name: NAME`"),
                name if name == limit.name => ("a limit cannot replace itself", "name another"),
                _ => continue,
            };
            self.fail(&format!("rate_limit.replaces[{index}].name"), message, help);
        }
    }

    /// Reports fields that are ineffective without a limit.
    fn note_useless(&self, config: &DescriptorConfig) {
        let fields = [
            ("shadow_mode", config.shadow_mode),
            ("quota_mode", config.quota_mode),
            ("detailed_metric", config.detailed_metric),
            ("metadata", config.metadata.is_some()),
        ];
        for (name, _) in fields.into_iter().filter(|(_, is_set)| *is_set) {
            let message = format!("`{name}` does nothing without a `rate_limit` beside it");
            self.notice(name, &message, "move it to the descriptor that has the limit");
        }
    }

    fn fail(&self, field: &str, message: &str, help: &str) {
        self.source.fail(&path(&self.indices, field), message, help);
    }

    fn notice(&self, field: &str, message: &str, help: &str) {
        self.source.notice(&path(&self.indices, field), message, help);
    }
}

/// Reports siblings that envoyproxy/ratelimit cannot tell apart. `indices` lead to their parent.
fn report_duplicates<'c>(
    sources: &[Source<'_>],
    indices: &[usize],
    siblings: impl Iterator<Item = Descriptor<'c>>,
) {
    let path_of = |one: &Descriptor<'_>| path(&[indices, &[one.index]].concat(), "");
    let mut seen: HashMap<Cow<'c, str>, Descriptor<'c>> =
        HashMap::with_capacity(siblings.size_hint().0);
    for second in siblings {
        let source = &sources[second.source];
        let is_unread =
            |field: &str| source.reader().has_error_of(&format!("{}.{field}", path_of(&second)));
        if source.reader().has_errors() && (is_unread("key") || is_unread("value")) {
            continue;
        }
        let composite = second.config.composite();
        let Some(first) = seen.get(&composite) else {
            seen.insert(composite, second);
            continue;
        };
        let message = format!("the descriptor `{}` is here twice", excerpt(&composite));
        let help = match first.config.key == second.config.key {
            true => format!("keep one; the other is {}", path_of(first)),
            false => format!(
                "envoyproxy/ratelimit joins key and value by `_`: rename it, or {}",
                path_of(first)
            ),
        };
        source.fail(&path_of(&second), message, help);
    }
}
