//! The report on a replay or a simulation: as text, as JSON, and as a page with plots.
//!
//! All three are written from one plain struct, so they cannot disagree.

mod atomic_file;
mod escape;
mod findings;
mod html;
mod summary;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

pub use self::atomic_file::AtomicFile;
pub use self::escape::{escape_key, escape_path};
pub use self::findings::share;
pub use self::summary::{
    AlgorithmSummary, KeyTotals, LimitSummary, Summary, SummaryOptions, TrafficSummary,
};
pub use self::text::{counted, grouped};

use crate::args::whole_number;
use crate::error::ReplayError;
use crate::file_identity::{is_dash, is_same_file};

/// The options of reports.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,

    /// Add counts over time to the JSON
    #[arg(long, requires = "json")]
    pub timeline: bool,

    /// Also write a self-contained page with plots to FILE, or `-` for standard output; the
    /// summary then goes to standard error
    #[arg(long, value_name = "FILE|-")]
    pub html: Option<PathBuf>,

    /// The number of keys to list: those denied most, and those that came nearest to a denial
    /// [default: 5 in text, 10 in JSON and on the page]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| whole_number(text, 0..=1000_u16))]
    pub top: Option<u16>,
}

impl ReportArgs {
    /// Whether the report has counts over time.
    pub fn has_timeline(&self) -> bool {
        self.html.is_some() || self.timeline
    }
}

/// The destinations of a report.
pub struct ReportWriter {
    json: bool,
    timeline: bool,
    /// The path of the page, and its file, or `None` for standard output. The file is opened at
    /// the start, so that a long replay does not fail at its end.
    html: Option<(PathBuf, Option<AtomicFile>)>,
}

impl ReportWriter {
    /// Opens the files to write, before any work is done.
    pub fn create(args: &ReportArgs, inputs: &[&Path]) -> Result<Self, ReplayError> {
        let html = match &args.html {
            None => None,
            Some(path) if is_dash(path) => Some((path.clone(), None)),
            Some(path) => {
                if inputs.iter().any(|input| is_same_file(input, path)) {
                    return Err(ReplayError::OverInput { option: "--html", path: path.clone() });
                }
                let file = AtomicFile::create(path);
                let failed = |error| ReplayError::Html { path: path.clone(), error };
                Some((path.clone(), Some(file.map_err(failed)?)))
            }
        };
        Ok(ReportWriter { json: args.json, timeline: args.timeline, html })
    }

    /// Writes the report. The summary goes to standard error if `to_stderr` is set, or if the page
    /// goes to standard output.
    pub fn print(self, summary: &Summary, to_stderr: bool) -> Result<(), ReplayError> {
        let to_stderr = to_stderr || matches!(self.html, Some((_, None)));
        if let Some((path, file)) = self.html {
            let page = html::page(summary)?;
            let written = match file {
                Some(mut file) => file.write_all(page.as_bytes()).and_then(|()| file.finish()),
                None => {
                    let mut stdout = io::stdout();
                    stdout.write_all(page.as_bytes()).and_then(|()| stdout.flush())
                }
            };
            written.map_err(|error| ReplayError::Html { path, error })?;
        }
        let text = if self.json { summary.json(self.timeline)? } else { summary.to_string() };
        let written = if to_stderr {
            io::stderr().write_all(text.as_bytes())
        } else {
            io::stdout().write_all(text.as_bytes())
        };
        written.map_err(ReplayError::Output)
    }
}
