//! The Prometheus text format. It is written by hand: a line is a name, labels and a number, and a
//! library would require its own counter types.

use std::fmt::{Display, Write};

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A page of metrics that is being written.
#[derive(Debug, Default)]
pub struct PrometheusText {
    text: String,
}

impl PrometheusText {
    /// Begins a family. Its samples are written through the returned value.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.name()));
        Family { page: self, name }
    }

    /// Writes a family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }

    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to memory cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// A metric family, for writing its samples.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut PrometheusText,
    name: &'a str,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// Writes a sample whose name has a suffix, as in histograms.
    pub fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let mut all = String::new();
        for (name, label) in labels {
            let comma = if all.is_empty() { "" } else { "," };
            let _ = write!(all, "{comma}{name}=\"{}\"", Escaped(label));
        }
        let name = self.name;
        if all.is_empty() {
            self.page.line(format_args!("{name}{suffix} {value}"));
        } else {
            self.page.line(format_args!("{name}{suffix}{{{all}}} {value}"));
        }
    }
}

/// A label value, escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_labels_and_writes_headers() {
        let mut page = PrometheusText::default();
        let mut family = page.family("a_total", Kind::Counter, "What a is.");
        family.sample(&[("x", "1\"2\\3\n4"), ("y", "plain")], 5);
        family.sample(&[], 0.25);
        page.single("b", Kind::Gauge, "What b is.", 7);
        let expected = "# HELP a_total What a is.\n# TYPE a_total counter\n\
                        a_total{x=\"1\\\"2\\\\3\\n4\",y=\"plain\"} 5\na_total 0.25\n\
                        # HELP b What b is.\n# TYPE b gauge\nb 7\n";
        assert_eq!(page.finish(), expected);
    }
}
