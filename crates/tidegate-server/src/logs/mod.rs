//! Logging to standard error, as text or as JSON lines. With the feature `otlp`, spans are also
//! exported to a collector.
//!
//! Denials are logged from the stream of denials ([`Stats::events`]), not where they are decided.
//! The stream is already limited to a number of denials per policy and second. A subscriber that
//! cannot keep up misses some and logs how many, instead of delaying requests. A separate thread
//! writes the lines (`logs/writer.rs`), so that requests never wait for the reader of standard
//! error.
//!
//! [`Stats::events`]: tidegate::unstable::stats::Stats::events

mod text_fields;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tidegate::unstable::stats::{
    Denial, Events, Outcome, ShownText, StreamItem, TooManySubscribers,
};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt as lines};

pub use self::writer::{dropped, print};

use self::text_fields::TextFields;
use self::writer::Lines;

/// The default filter.
pub const DEFAULT_FILTER: &str = "info";

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people; coloured on a terminal
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Why logging cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `RUST_LOG` is invalid.
    #[error(
        "RUST_LOG=\"{}\" is not a valid filter: {why}\n  help: use a level (error, warn, info, debug, \
         trace) or e.g. info,tidegate=debug",
        .text.escape_debug()
    )]
    Filter { text: String, why: String },
    /// The thread that writes lines cannot be started.
    #[error("logging cannot start: {0}")]
    Writer(io::Error),
    /// The exporter of spans cannot be set up.
    #[cfg(feature = "otlp")]
    #[error(
        "spans cannot be exported: {0}\n  help: set OTEL_EXPORTER_OTLP_ENDPOINT to e.g. \
         http://127.0.0.1:4318"
    )]
    Export(String),
}

/// Keeps logging active. Dropping it exports the remaining spans and writes the remaining lines,
/// both within a bounded time.
#[must_use = "the last lines are written when it is dropped"]
pub struct Logging {
    lines: Arc<Lines>,
    #[cfg(feature = "otlp")]
    _exporter: Option<otlp::Exporter>,
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.lines.flush();
    }
}

/// Starts logging for the whole process. `default_filter` is used if `RUST_LOG` is not set.
///
/// # Errors
/// When `RUST_LOG` or the exporter's settings are invalid, or the writing thread cannot be
/// started.
pub fn start(format: LogFormat, default_filter: &str) -> Result<Logging, LogError> {
    let text = std::env::var("RUST_LOG").unwrap_or_default();
    let text = if text.is_empty() { default_filter } else { &text };
    let filter = filter(text)?;
    let lines = Lines::start().map_err(LogError::Writer)?;
    std::panic::set_hook(Box::new(log_panic));
    let registry = tracing_subscriber::registry();
    let written = written(format, Arc::clone(&lines)).with_filter(filter);
    #[cfg(feature = "otlp")]
    {
        let exporter = otlp::Exporter::from_environment()?;
        let spans = exporter.as_ref().map(otlp::Exporter::layer);
        let _ = registry.with(spans).with(written).try_init();
        Ok(Logging { lines, _exporter: exporter })
    }
    #[cfg(not(feature = "otlp"))]
    {
        // This fails only if a global subscriber is already set, as in a test.
        let _ = registry.with(written).try_init();
        Ok(Logging { lines })
    }
}

/// Parses the filter of `RUST_LOG`. Panics pass any filter.
fn filter(text: &str) -> Result<EnvFilter, LogError> {
    let refuse = |why| LogError::Filter { text: text.to_owned(), why };
    if let Some(word) = text.split(',').map(str::trim).find(|word| is_unknown(word)) {
        let meant = match &*word.to_ascii_lowercase() {
            "warning" | "warnings" => "; did you mean `warn`?",
            "verbose" => "; did you mean `debug`?",
            "err" | "errors" | "fatal" | "critical" => "; did you mean `error`?",
            "none" | "quiet" | "silent" => "; did you mean `off`?",
            _ => "",
        };
        let word = word.escape_debug();
        return Err(refuse(format!("`{word}` is neither a level nor a part of tidegate{meant}")));
    }
    let filter = EnvFilter::try_new(text).map_err(|error| refuse(error.to_string()))?;
    Ok(match format!("{PANIC}=error").parse() {
        Ok(always) => filter.add_directive(always),
        Err(_) => filter,
    })
}

/// Whether a part of a filter is a single word that selects nothing. A word that is not a level
/// selects the target of that name alone, so a misspelt level would turn off all other logs.
fn is_unknown(part: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
    let is_target =
        part.starts_with("tidegate") || part.contains("::") || part.contains(['=', '[']);
    !part.is_empty() && !is_level && !is_target && part.parse::<u8>().is_err()
}

/// Creates the layer that writes lines.
fn written<S>(format: LogFormat, lines: Arc<Lines>) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    // A line that cannot be formatted is dropped. The layer would report it on standard error, and
    // block until it is read.
    let layer = lines::layer().with_writer(lines).log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let ansi = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            layer.with_ansi(ansi).fmt_fields(TextFields).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    }
}

/// The target of panics, which are logged regardless of `RUST_LOG`.
const PANIC: &str = "tidegate::panic";

/// Logs a panic. The default hook writes to standard error and can block.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!(target: PANIC, %backtrace, "{panic}"),
        _ => tracing::error!(target: PANIC, "{panic}"),
    }
}

/// Logs denials as they happen, until the future is dropped.
///
/// # Errors
/// When there are too many subscribers to denials.
pub fn denials(
    events: &Arc<Events>,
) -> Result<impl Future<Output = ()> + Send + use<>, TooManySubscribers> {
    let mut subscription = events.subscribe(None)?;
    Ok(async move {
        loop {
            match subscription.next().await {
                StreamItem::Denial(denial) => log_denial(&denial),
                StreamItem::Missed(count) => {
                    tracing::warn!(target: DENIALS, count, "some denials were not logged: too \
                    many at once");
                }
            }
        }
    })
}

/// The target of denials, so that `RUST_LOG=info,tidegate::denials=off` disables them.
const DENIALS: &str = "tidegate::denials";

fn log_denial(denial: &Denial) {
    let message = match denial.outcome {
        Outcome::WouldDeny => "would deny",
        _ => "denied",
    };
    tracing::info!(
        target: DENIALS,
        policy = &*denial.policy,
        key = some(&denial.key),
        route = some(&denial.route),
        limit = &*denial.limit,
        retry_after_ms = denial.retry_after.as_millis(),
        request_id = some(&denial.request_id),
        decided = denial.decided.name(),
        // Denials of this policy that were not logged since the last logged one.
        suppressed = denial.suppressed,
        "{message}"
    );
}

/// The text, or `None` if it is empty. It is logged as a string, which is quoted: a key with a
/// space in it must not look like another field. The fields that have it are listed in
/// `logs/text_fields.rs`.
pub fn some(text: &ShownText) -> Option<String> {
    (!text.as_bytes().is_empty()).then(|| text.to_string())
}

#[cfg(feature = "otlp")]
mod otlp {
    //! Exports spans to a collector over HTTP, if an endpoint is set.

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_otlp::SpanExporter;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
    use tracing_opentelemetry::OpenTelemetryLayer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::{Layer, Registry};

    use super::LogError;

    /// The OpenTelemetry variables that set an endpoint. The exporter itself reads the other
    /// `OTEL_EXPORTER_OTLP_*` variables.
    const ENDPOINTS: [&str; 2] =
        ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

    /// The target and level of exported spans: those of tidegate, regardless of `RUST_LOG`.
    const EXPORTED: (&str, tracing::Level) = ("tidegate", tracing::Level::DEBUG);

    pub struct Exporter(SdkTracerProvider);

    impl Exporter {
        /// Creates an exporter if the environment sets an endpoint.
        pub fn from_environment() -> Result<Option<Self>, LogError> {
            if !ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some()) {
                return Ok(None);
            }
            let exporter = SpanExporter::builder().with_http().build();
            let exporter = exporter.map_err(|error| LogError::Export(error.to_string()))?;
            let resource = Resource::builder().with_service_name("tidegate").build();
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource)
                .build();
            Ok(Some(Exporter(provider)))
        }

        pub fn layer(&self) -> impl Layer<Registry> + use<> {
            let tracer: SdkTracer = self.0.tracer("tidegate");
            let targets = Targets::new().with_target(EXPORTED.0, EXPORTED.1);
            OpenTelemetryLayer::new(tracer).with_filter(targets)
        }
    }

    impl Drop for Exporter {
        fn drop(&mut self) {
            // The process is about to exit, so an error cannot be reported.
            let _ = self.0.shutdown();
        }
    }
}

/// How long after a logged event further events are only counted.
const QUIET: Duration = Duration::from_secs(10);

/// Limits how often events of one kind are logged.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<LogThrottleState>);

#[derive(Debug, Default)]
struct LogThrottleState {
    logged: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    /// Records an event. If it should be logged, returns the number of events suppressed since the
    /// last logged one.
    pub fn should_log(&self, now: Instant) -> Option<u64> {
        let mut burst = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if burst.logged.is_some_and(|logged| now.saturating_duration_since(logged) < QUIET) {
            burst.suppressed += 1;
            return None;
        }
        burst.logged = Some(now);
        Some(std::mem::take(&mut burst.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[derive(Default)]
    struct Written(Mutex<Vec<u8>>);

    impl Write for &Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Regression test: with `RUST_LOG=off`, a panic was not logged.
    #[test]
    fn logs_panics_under_any_filter() {
        let rows = [
            ("off", false),
            ("tidegate=off", false),
            ("tidegate::panic=off", false),
            ("tidegate::denials=off,error", true),
        ];
        for (text, logs_others) in rows {
            let written = Arc::new(Written::default());
            let layer = lines::layer().with_writer(Arc::clone(&written));
            let filter = filter(text).expect("a filter");
            let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter));
            tracing::subscriber::with_default(subscriber, || {
                tracing::error!(target: PANIC, "a panic");
                tracing::error!(target: "tidegate::other", "another error");
            });
            let log = written.0.lock().unwrap_or_else(PoisonError::into_inner);
            let log = String::from_utf8_lossy(&log);
            assert!(log.contains("a panic"), "{text}: {log}");
            assert_eq!(log.contains("another error"), logs_others, "{text}: {log}");
        }
    }

    /// Regression test: a misspelt level turned off all logs.
    #[test]
    fn rejects_words_that_select_nothing() {
        let unknown = |word: &str| Some(format!("`{word}` is neither a level nor a part"));
        let rows = [
            ("warn", None),
            ("Debug,tidegate=trace", None),
            ("tidegate", None),
            ("tidegate::denials,", None),
            ("info,hyper=debug,h2::proto", None),
            (
                "warning",
                Some(
                    "`warning` is neither a level nor a part of tidegate; did you mean `warn`?"
                        .into(),
                ),
            ),
            ("verbose", Some("did you mean `debug`?".into())),
            ("info, loud", unknown("loud")),
            ("a b c", unknown("a b c")),
        ];
        for (text, expected) in rows {
            let error = filter(text).err().map(|error| error.to_string());
            match (&error, &expected) {
                (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
                _ => assert_eq!(error.is_some(), expected.is_some(), "{text}: {error:?}"),
            }
        }
    }

    #[test]
    fn logs_one_event_per_burst() {
        let bursts = LogThrottle::default();
        let start = Instant::now();
        let rows = [(0, Some(0)), (50, None), (9_999, None), (10_000, Some(2)), (10_001, None)];
        for (ms, expected) in rows {
            assert_eq!(bursts.should_log(start + Duration::from_millis(ms)), expected, "{ms} ms");
        }
        assert_eq!(bursts.should_log(start + Duration::from_secs(60)), Some(1));
    }
}
