//! One limit or several, as rules take them.

use std::ops::Deref;
use std::slice;
use std::sync::Arc;

use crate::Limit;

/// One limit or several: what [`Rule::new`](super::Rule::new), [`Rule::plan`](super::Rule::plan) and
/// [`Rule::limits_of`](super::Rule::limits_of) take. A clone does not allocate.
///
/// ```
/// use tidegate::Limit;
/// use tidegate::tower::Rule;
///
/// let burst: Limit = "20 per 1s".parse()?;
/// let total: Limit = "600 per 1h".parse()?;
/// let one = Rule::new("one", total);
/// let both = Rule::new("both", [burst, total]);
/// # Ok::<(), tidegate::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits(Inner);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Inner {
    /// Without an allocation: most requests have one limit.
    One(Limit),
    Several(Arc<[Limit]>),
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        match &self.0 {
            Inner::One(limit) => slice::from_ref(limit),
            Inner::Several(limits) => limits,
        }
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Limits(Inner::One(limit))
    }
}

impl From<&[Limit]> for Limits {
    fn from(limits: &[Limit]) -> Self {
        match limits {
            [limit] => (*limit).into(),
            limits => Limits(Inner::Several(limits.into())),
        }
    }
}

impl<const N: usize> From<[Limit; N]> for Limits {
    fn from(limits: [Limit; N]) -> Self {
        limits.as_slice().into()
    }
}

impl From<Vec<Limit>> for Limits {
    fn from(limits: Vec<Limit>) -> Self {
        limits.as_slice().into()
    }
}

impl From<Arc<[Limit]>> for Limits {
    fn from(limits: Arc<[Limit]>) -> Self {
        Limits(Inner::Several(limits))
    }
}
