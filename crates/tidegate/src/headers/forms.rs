//! The forms of the header fields.

use std::fmt;
use std::str::FromStr;

/// A form of the rate limit header fields. Each is understood by a generation of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// `RateLimit: "api";r=50;t=30` and `RateLimit-Policy: "api";q=100;w=60`: the IETF draft since
    /// version 8.
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

    /// Returns the name used in the config.
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

/// A set of forms that are sent together.
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
    /// No fields except `Retry-After`, which a denial has unless the cost can never pass.
    pub const NONE: Forms = Forms(0);

    /// Creates the set of the forms with these names; `none` is the empty set.
    ///
    /// # Errors
    /// Returns an error if a name is unknown, if `none` is combined with another name, or if the
    /// list is empty.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, FormsError> {
        let (mut forms, mut count, mut none) = (Forms::NONE, 0_usize, false);
        for name in names {
            count += 1;
            if name == "none" {
                none = true;
            } else {
                forms = forms.with(name.parse()?);
            }
        }
        match (count, none) {
            (0, _) => Err(FormsError::Empty),
            (1, _) | (_, false) => Ok(forms),
            (_, true) => Err(FormsError::NoneAndOthers),
        }
    }

    /// Adds a form to the set.
    #[must_use]
    pub const fn with(self, form: Form) -> Self {
        Forms(self.0 | form.bit())
    }

    /// Returns whether the set contains `form`.
    #[inline]
    pub const fn contains(self, form: Form) -> bool {
        self.0 & form.bit() != 0
    }

    /// Whether a form of the set lists all limits.
    #[inline]
    pub(crate) const fn lists_limits(self) -> bool {
        self.contains(Form::Draft10) || self.contains(Form::Draft7) || self.contains(Form::Draft6)
    }

    /// Whether a form of the set states the count of the reported limit separately.
    #[inline]
    pub(crate) const fn states_limit(self) -> bool {
        self.contains(Form::Draft7)
            || self.contains(Form::Draft6)
            || self.contains(Form::XRateLimit)
    }

    /// Returns the forms of the set, newest first.
    pub fn iter(self) -> impl Iterator<Item = Form> {
        Form::ALL.into_iter().filter(move |form| self.contains(*form))
    }

    /// Returns a form that adds nothing to the others: `draft-7` beside `draft-10`, which uses the
    /// same two fields. It deserves a warning when the configuration is checked.
    pub const fn shadowed(self) -> Option<Form> {
        let both = self.contains(Form::Draft10) && self.contains(Form::Draft7);
        if both { Some(Form::Draft7) } else { None }
    }
}

impl Default for Forms {
    /// The newest form only.
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

    /// Parses names separated by commas.
    fn from_str(text: &str) -> Result<Self, FormsError> {
        Forms::from_names(text.split(',').map(str::trim))
    }
}

/// A list of names that is not a valid set of [`Forms`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormsError {
    /// An unknown name, truncated and without control characters.
    Unknown(String),
    /// `none` together with another name.
    NoneAndOthers,
    /// The list is empty.
    Empty,
}

/// The number of characters of an unknown name that an error repeats.
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
