//! Fields that conditions of policies name and that no request of a trace has.
//!
//! A condition on such a field never holds, so its policy looks harmless, although it was not
//! tested.

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::policy::{Condition, Conditions, Policies, Policy, RequestField};

/// The fields that no request has had so far, each with the policies whose conditions name it.
#[derive(Clone, Debug, Default)]
pub struct UnseenFields {
    fields: Vec<(RequestField, Vec<String>)>,
}

impl UnseenFields {
    pub fn new(policies: &Policies) -> Self {
        let mut fields: Vec<(RequestField, Vec<String>)> = Vec::new();
        for policy in policies {
            for field in conditions(policy).map(Condition::field) {
                let index = fields.iter().position(|(known, _)| known == field);
                let index = index.unwrap_or_else(|| {
                    fields.push((field.clone(), Vec::new()));
                    fields.len() - 1
                });
                let names = &mut fields[index].1;
                if names.last().is_none_or(|last| last != policy.name()) {
                    names.push(policy.name().into());
                }
            }
        }
        UnseenFields { fields }
    }

    /// Removes the fields that a request has.
    #[inline]
    pub fn observe(&mut self, attributes: &Attributes<'_>) {
        if !self.fields.is_empty() {
            self.fields.retain(|(field, _)| !has_field(attributes, field));
        }
    }

    /// Returns the fields, each with the names of the policies.
    pub fn iter(&self) -> impl Iterator<Item = (&RequestField, &[String])> {
        self.fields.iter().map(|(field, names)| (field, names.as_slice()))
    }
}

fn conditions(policy: &Policy) -> impl Iterator<Item = &Condition> {
    let overrides = policy.variants().iter().skip(1).map(|variant| variant.when());
    [policy.matching(), policy.exempt()].into_iter().chain(overrides).flat_map(Conditions::iter)
}

/// Returns whether a request has the field. For a query parameter or a cookie, any query or any
/// cookie is enough: the trace then contains them, and this request does not have this one.
fn has_field(attributes: &Attributes<'_>, field: &RequestField) -> bool {
    match field {
        RequestField::ClientIp => attributes.client_ip.is_some(),
        RequestField::Method => attributes.method.is_some(),
        RequestField::Path => attributes.path.is_some(),
        RequestField::Host => attributes.host.is_some(),
        RequestField::Header(name) => attributes.headers.get(name.as_str()).is_some(),
        RequestField::Query(_) => attributes.query.is_some(),
        RequestField::Cookie(_) => attributes.headers.get("cookie").is_some(),
        RequestField::Domain => attributes.domain.is_some(),
        RequestField::Descriptor { name, .. } => {
            attributes.descriptors.iter().any(|(known, _)| name.is_empty() || *known == **name)
        }
        RequestField::Descriptors => !attributes.descriptors.is_empty(),
    }
}
