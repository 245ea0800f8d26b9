//! The headers a verdict is told with.

use std::fmt;
use std::str::FromStr;

/// One way of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `RateLimit-Policy` and `RateLimit` as structured fields.
    Draft10,
    /// `RateLimit: limit=, remaining=, reset=`.
    Draft7,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Draft6,
    /// `X-RateLimit-*`.
    XRateLimit,
}

impl Form {
    /// Every form.
    pub const ALL: [Form; 4] = [Form::Draft10, Form::Draft7, Form::Draft6, Form::XRateLimit];

    /// The name in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Draft10 => "draft-10",
            Form::Draft7 => "draft-7",
            Form::Draft6 => "draft-6",
            Form::XRateLimit => "x-ratelimit",
        }
    }
}

/// A name that is no form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownForm;

impl fmt::Display for UnknownForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use draft-10, draft-7, draft-6, x-ratelimit or none")
    }
}

impl std::error::Error for UnknownForm {}

impl FromStr for Form {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        Form::ALL.into_iter().find(|form| form.name() == name).ok_or(UnknownForm)
    }
}

/// A set of forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms(u8);

impl Forms {
    /// No form at all.
    pub const NONE: Forms = Forms(0);

    /// This form too.
    #[must_use]
    pub const fn with(self, form: Form) -> Self {
        Forms(self.0 | 1 << form as u8)
    }

    /// Whether this form is in it.
    pub const fn has(self, form: Form) -> bool {
        self.0 & 1 << form as u8 != 0
    }
}

impl Default for Forms {
    fn default() -> Self {
        Forms::NONE.with(Form::Draft10)
    }
}
