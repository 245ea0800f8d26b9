//! The report as a self-contained page, with its styles, scripts and data.
//!
//! Keys come from the senders of the traffic, so they must not become markup or script. The data is
//! JSON in an element that browsers do not execute, with every `<` escaped so that it cannot close
//! the element. The script inserts texts as text nodes. The Content Security Policy in the head of
//! the page allows the two scripts and two styles by their digests, and nothing else.
//!
//! Plots are drawn by uPlot (MIT, 50 KB, no dependencies). It draws a few hundred bins of ten
//! series at once, and needs neither a network nor a build step.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::findings::NetDifference;
use super::summary::{AlgorithmSummary, Summary};
use crate::error::ReplayError;
use crate::uplot::{LICENCE as UPLOT_LICENCE, SCRIPT as UPLOT, STYLE as UPLOT_CSS};

const SCRIPT: &str = include_str!("../../assets/report/report.js");
const CSS: &str = include_str!("../../assets/report/report.css");
const BODY: &str = include_str!("../../assets/report/body.html");

/// The data of the page.
#[derive(Serialize)]
struct PageData<'s> {
    #[serde(flatten)]
    summary: &'s Summary,
    main: usize,
    findings: Vec<String>,
    /// Whether the input is sorted by time, or nearly.
    sorted: bool,
    /// For each algorithm, the difference from the exact log.
    net: Vec<Option<NetDifference>>,
}

/// Renders the page.
pub fn page(summary: &Summary) -> Result<String, ReplayError> {
    let data = PageData {
        summary,
        main: summary.main,
        findings: summary.findings(),
        sorted: summary.disorder.is_none(),
        net: summary.algorithms.iter().map(AlgorithmSummary::net_difference).collect(),
    };
    let data = serde_json::to_string(&data).map_err(|error| ReplayError::Output(error.into()))?;
    // U+2028 and U+2029 end lines in old versions of JavaScript. In JSON they may be escaped.
    let data =
        data.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    let [uplot, script] = [UPLOT, SCRIPT].map(digest);
    let [uplot_css, css] = [UPLOT_CSS, CSS].map(digest);
    let policy = format!(
        "default-src 'none'; script-src {uplot} {script}; style-src {uplot_css} {css}; \
         img-src data:; base-uri 'none'; form-action 'none'"
    );
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>tidegate report</title>\n<style>{UPLOT_CSS}</style>\n<style>{CSS}</style>\n</head>\n\
         {BODY}<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <!-- uPlot\n{UPLOT_LICENCE}-->\n<script>{UPLOT}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    ))
}

fn digest(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_do_not_close_their_element() {
        for (text, end) in
            [(UPLOT, "</script"), (SCRIPT, "</script"), (UPLOT_CSS, "</style"), (CSS, "</style")]
        {
            assert!(!text.to_lowercase().contains(end));
        }
        assert!(!UPLOT_LICENCE.contains("--"));
    }

    #[test]
    fn hostile_names_are_escaped() {
        let hostile = "</script><script>alert(1)</script><!--";
        let mut summary = Summary::default();
        summary.hints.push(hostile.into());
        let page = page(&summary).expect("a page");
        assert!(!page.contains(hostile) && page.contains("\\u003c/script>"));
        assert_eq!(page.matches("</script>").count(), 3);
        let start = page.find("id=\"data\">").expect("the data") + 10;
        let end = start + page[start..].find("</script>").expect("its end");
        let data: serde_json::Value = serde_json::from_str(&page[start..end]).expect("JSON");
        assert_eq!(data["hints"][0], hostile);
    }

    #[test]
    fn content_policy_lists_asset_digests() {
        let page = page(&Summary::default()).expect("a page");
        for text in [UPLOT, SCRIPT, UPLOT_CSS, CSS] {
            assert!(page.contains(&digest(text)));
        }
        assert!(!page.contains("unsafe-inline") && !page.contains("http://"));
    }
}
