//! Which header fields are sent.

use std::fmt;
use std::str::FromStr;

/// A form of the rate limit fields, as some generation of clients reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// `RateLimit: "api";r=50;t=30` and `RateLimit-Policy: "api";q=100;w=60`:
    /// the IETF draft from its eighth version on.
    Draft10,
    /// `RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60`.
    Draft7,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` and `RateLimit-Policy: 100;w=60`.
    Draft6,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last in seconds since 1970.
    XRateLimit,
}

impl Form {
    /// Every form, newest first.
    pub const ALL: [Form; 4] = [Form::Draft10, Form::Draft7, Form::Draft6, Form::XRateLimit];

    /// The name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Draft10 => "draft-10",
            Form::Draft7 => "draft-7",
            Form::Draft6 => "draft-6",
            Form::XRateLimit => "x-ratelimit",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Form {
    type Err = FormsError;

    fn from_str(name: &str) -> Result<Self, FormsError> {
        let mut all = Form::ALL.into_iter();
        all.find(|form| form.name() == name).ok_or_else(|| FormsError::unknown(name))
    }
}

/// The forms that are sent together.
///
/// ```
/// use tidegate::unstable::headers::{Form, Forms};
///
/// let forms: Forms = "draft-10, x-ratelimit".parse()?;
/// assert!(forms.contains(Form::XRateLimit));
/// assert_eq!("none".parse(), Ok(Forms::NONE));
/// assert_eq!(Forms::default().to_string(), "draft-10");
/// # Ok::<(), tidegate::unstable::headers::FormsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forms(u8);

impl Forms {
    /// No fields but `Retry-After`, which a denial always has.
    pub const NONE: Forms = Forms(0);

    /// The forms of these names, `none` for none of them.
    ///
    /// # Errors
    /// When a name is unknown, `none` stands beside another, or there is no name.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, FormsError> {
        let (mut forms, mut said, mut none) = (Forms::NONE, 0_usize, false);
        for name in names {
            said += 1;
            if name == "none" {
                none = true;
            } else {
                forms = forms.with(name.parse()?);
            }
        }
        match (said, none) {
            (0, _) => Err(FormsError::Empty),
            (1, _) | (_, false) => Ok(forms),
            (_, true) => Err(FormsError::NoneAndOthers),
        }
    }

    /// These and `form`.
    #[must_use]
    pub const fn with(self, form: Form) -> Self {
        Forms(self.0 | form.bit())
    }

    /// Whether `form` is one of them.
    #[inline]
    pub const fn contains(self, form: Form) -> bool {
        self.0 & form.bit() != 0
    }

    /// Whether one of them lists all limits.
    #[inline]
    pub(crate) const fn lists_limits(self) -> bool {
        self.contains(Form::Draft10) || self.contains(Form::Draft7) || self.contains(Form::Draft6)
    }

    /// Whether one of them states the count of the reported limit on its own.
    #[inline]
    pub(crate) const fn states_limit(self) -> bool {
        self.contains(Form::Draft7)
            || self.contains(Form::Draft6)
            || self.contains(Form::XRateLimit)
    }

    /// Each of them, newest first.
    pub fn iter(self) -> impl Iterator<Item = Form> {
        Form::ALL.into_iter().filter(move |form| self.contains(*form))
    }

    /// A form that adds nothing beside the others: `draft-7` beside `draft-10`,
    /// which has both of its fields. Worth a warning where forms are configured.
    pub const fn shadowed(self) -> Option<Form> {
        let both = self.contains(Form::Draft10) && self.contains(Form::Draft7);
        if both { Some(Form::Draft7) } else { None }
    }
}

impl Default for Forms {
    /// The newest form alone.
    fn default() -> Self {
        Forms::NONE.with(Form::Draft10)
    }
}

impl fmt::Display for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Forms::NONE {
            return f.write_str("none");
        }
        for (index, form) in self.iter().enumerate() {
            write!(f, "{}{form}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for Forms {
    type Err = FormsError;

    /// Names separated by commas.
    fn from_str(text: &str) -> Result<Self, FormsError> {
        Forms::from_names(text.split(',').map(str::trim))
    }
}

/// A list of names that says no [`Forms`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormsError {
    /// A name that no form has, as far as it is worth repeating.
    Unknown(String),
    /// `none` beside another name.
    NoneAndOthers,
    /// There is no name at all.
    Empty,
}

/// How much of an unknown name an error repeats.
const SHOWN_CHARS: usize = 40;

impl FormsError {
    fn unknown(name: &str) -> Self {
        let safe = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        FormsError::Unknown(name.chars().take(SHOWN_CHARS).map(safe).collect())
    }
}

impl fmt::Display for FormsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormsError::Unknown(name) => write!(
                f,
                "unknown header form `{name}`: use draft-10, draft-7, draft-6, x-ratelimit or none"
            ),
            FormsError::NoneAndOthers => {
                f.write_str("`none` beside other header forms: use it alone, or leave it out")
            }
            FormsError::Empty => {
                f.write_str("no header form is named: write `none` to send no rate limit fields")
            }
        }
    }
}

impl std::error::Error for FormsError {}
