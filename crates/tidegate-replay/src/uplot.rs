//! uPlot (MIT, 50 KB, no dependencies), which draws the plots of reports and of the dashboard.
//!
//! It draws lines over time and nothing else, and works without a network or a build step. The
//! files in `assets/uplot` are those of its npm package; its licence is served with it.

/// The script.
pub const SCRIPT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");

/// The stylesheet.
pub const STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");

/// The licence.
pub const LICENCE: &str = include_str!("../assets/uplot/LICENSE");
