//! The fields of text lines.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

/// The fields whose value is a `ShownText`, in which control bytes are `\xNN` and a backslash is
/// `\\`.
const SHOWN: [&str; 3] = ["key", "route", "request_id"];

/// Writes fields as the default format does, except that the backslashes of [`SHOWN`] are not
/// escaped again: a key is written as the dashboard and `explain` show it.
pub struct TextFields;

impl<'w> FormatFields<'w> for TextFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = Visitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct Visitor<'w>(DefaultVisitor<'w>);

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if SHOWN.contains(&field.name()) {
            self.0.record_debug(field, &format_args!("{}", quoted(value)));
        } else {
            self.0.record_str(field, value);
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0.record_error(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

/// Returns the text in quotes, with quotes in it escaped. It is unambiguous because the text has
/// only whole escapes: a backslash never stands alone before a quote.
fn quoted(shown: &str) -> String {
    format!("{shown:?}").replace(r"\\", r"\")
}
