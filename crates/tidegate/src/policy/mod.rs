//! Policies: which requests are limited, under which key and by which limits.
//!
//! ```text
//!   Attributes -> NormalizedRequest (path and host normalized, patterns run once)
//!              -> per policy: match? exempt? which override? -> Key, limits, mode, cost
//! ```
//!
//! A [`Policy`] is validated when it is created, so selecting policies for a request only compares
//! values. Globs that need an automaton are compiled into one for all paths and one for all hosts,
//! and the fields of every override are resolved in advance. Selecting allocates only in rare
//! cases: a path that has to be normalised, a key longer than 64 bytes, more than four policies
//! that apply.
//!
//! - `definition.rs`: [`Policy`] with its overrides; `cost.rs`: the cost of a request; `error.rs`;
//! - `select.rs`: [`Policies`], the set of all policies; `index.rs`: the policies that may match a
//!   request;
//! - `normalized_request.rs`, `path.rs`: a request in normal form; `request_field.rs`: the fields
//!   that keys and conditions use;
//! - `condition.rs`, `pattern.rs`, `descriptor.rs`: matching;
//! - `template.rs`, `key.rs`: keys, and why they cannot collide;
//! - `explain.rs`: the result of every policy for a request, with the reason;
//! - `analysis.rs`: facts about policies that hold for every request, for warnings.
//!
//! ```
//! use tidegate::unstable::attributes::Attributes;
//! use tidegate::unstable::identity::Identity;
//! use tidegate::unstable::policy::{Condition, Policies, Policy};
//!
//! let login = Policy::new("login", "{client_ip}".parse()?, vec!["5 per 1m sliding-log".parse()?])?
//!     .with_match([Condition::new("path".parse()?, &["/login"])?].into_iter().collect());
//! let policies = Policies::new(vec![login], Identity::default())?;
//!
//! let attributes = Attributes {
//!     path: Some("//%6Cogin"),
//!     client_ip: Some("192.0.2.1".parse()?),
//!     ..Attributes::default()
//! };
//! let selected = policies.select(&attributes)?;
//! assert_eq!(selected[0].policy.name(), "login");
//! assert_eq!(selected[0].key.to_string(), "192.0.2.1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "config")]
mod analysis;
mod condition;
mod cost;
mod definition;
mod descriptor;
mod error;
mod explain;
mod index;
mod key;
mod normalized_request;
mod path;
mod pattern;
mod request_field;
mod select;
mod template;

use std::fmt;
use std::str::FromStr;

#[doc(no_inline)]
pub use crate::fallback::OnStoreFailure;
pub use crate::text::is_invisible;
pub use condition::{Condition, Conditions};
pub use cost::{CostSource, CostSourceError};
#[cfg(feature = "tower")]
pub(crate) use definition::check_limits;
pub(crate) use definition::is_concurrency;
pub use definition::{MAX_LIMITS, MAX_NAME_BYTES, Override, Policy, Variant, check_counts};
#[cfg(feature = "config")]
pub(crate) use descriptor::MAX_ENTRY_NAME_BYTES;
pub use descriptor::{
    DescriptorEntry, EnvoyDetails, EnvoyLevel, MAX_ENTRIES, Metadata, MetadataValue,
};
pub use error::PolicyError;
pub use error::{ConditionError, ConditionErrorKind};
pub use explain::{Explained, Explanation, PolicyOutcome};
pub(crate) use key::KeySegment;
pub use key::{Key, MAX_KEY_BYTES};
pub use path::PathVariants;
pub(crate) use path::shown as shown_path;
pub use pattern::{Pattern, PatternError};
pub use request_field::{RequestField, RequestFieldError};
pub use select::{Policies, PoliciesError, SelectError, SelectedPolicy};
pub(crate) use select::{replaced_names, write_unknown_policy};
pub use template::{SHARED_KEY, Template, TemplateError, TemplateErrorKind};
#[cfg(feature = "tower")]
pub(crate) use template::{write_group, write_ipv4};

#[cfg(feature = "config")]
pub(crate) use {
    analysis::{SharedBy, is_implied_by},
    condition::{MAX_EXEMPT_VALUES, MAX_VALUES},
    definition::{MAX_OVERRIDES, MAX_REPLACED},
    descriptor::Wildcard,
    request_field::FIELD_NAMES,
    select::MAX_POLICIES,
    template::{MAX_TEMPLATE_BYTES, MAX_TEMPLATE_FIELDS},
};

/// Whether a policy is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies requests that exceed a limit.
    #[default]
    Enforce,
    /// Decides, counts and logs, but never denies.
    Observe,
    /// Ignores the policy.
    Off,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::Enforce, Mode::Observe, Mode::Off];

    /// Returns the name used in the config and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe",
            Mode::Off => "off",
        }
    }
}

/// The error of a text that is not the name of a value. Its message lists the valid names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseEnumError(pub(crate) &'static str);

impl fmt::Display for ParseEnumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "use {}", self.0)
    }
}

impl std::error::Error for ParseEnumError {}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = ParseEnumError;

    fn from_str(name: &str) -> Result<Self, ParseEnumError> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or(ParseEnumError("enforce, observe or off"))
    }
}

impl fmt::Display for OnStoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OnStoreFailure {
    type Err = ParseEnumError;

    fn from_str(name: &str) -> Result<Self, ParseEnumError> {
        let found = OnStoreFailure::ALL.into_iter().find(|variant| variant.name() == name);
        found.ok_or(ParseEnumError("allow, deny or local"))
    }
}
