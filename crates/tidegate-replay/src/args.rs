//! The arguments of `tidegate replay`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, ValueEnum};
use tidegate::unstable::ParsedLimit;
use tidegate::{Limit, LimitError};

use crate::algorithms::{Algorithms, algorithms};
use crate::format::{KeyChoice, RoleField, UnitChoice, Zone};
use crate::report::ReportArgs;

/// Reads an argument that is a whole number.
pub(crate) fn whole_number<N>(text: &str, accepted: RangeInclusive<N>) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display,
{
    let number = text.parse().ok().filter(|number| accepted.contains(number));
    number.ok_or_else(|| {
        format!("write a whole number from {} to {}", accepted.start(), accepted.end())
    })
}

/// Send recorded traffic through the rate limiter and see what it would have done
///
/// Events are decided in order at their own times, as fast as they can be read: an hour of traffic
/// takes seconds. The summary reports how many requests were admitted and denied, which keys were
/// denied, and the largest number of units that any key truly passed within a window, counted
/// independently of the limiter.
#[derive(Debug, Args)]
#[command(
    after_long_help = REPLAY_HELP,
    group(ArgGroup::new("rules").args(["limits", "config"]).required(true).multiple(true))
)]
pub struct ReplayArgs {
    /// Files to read, plain, gzipped or compressed with zstd; `-` is standard input.
    /// Several are merged by time
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) rules: RuleArgs,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,

    /// Write one `1` (admitted) or `0` (denied) per event, in order, to FILE or `-` for
    /// standard output; the summary then goes to standard error
    #[arg(long, value_name = "FILE|-")]
    pub(crate) decisions: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    /// Also print the smallest limit that would have passed this percentage of the requests.
    /// Several limits are each tried alone; together they may pass fewer
    #[arg(long, value_name = "PERCENT", value_parser = crate::suggest::share)]
    pub(crate) suggest: Option<crate::suggest::Share>,

    /// The percentage to add to the suggested limit
    #[arg(long, value_name = "PERCENT", default_value = "0%", requires = "suggest",
          value_parser = crate::suggest::headroom)]
    pub(crate) headroom: crate::suggest::Share,
}

/// The limits or policies that decide events.
#[derive(Debug, Args)]
pub struct RuleArgs {
    /// A limit on each key, e.g. "10 per 10s" or "600 per 1m token-bucket burst 50"
    ///
    /// With several limits, an event passes if every limit admits it; if one does not, none is
    /// charged.
    #[arg(long = "limit", value_name = "LIMIT", allow_hyphen_values = true,
          value_parser = limit::<ParsedLimit>)]
    pub limits: Vec<ParsedLimit>,

    /// Use the policies of this config file instead, through the gate that serves them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["limits", "key"])]
    pub config: Option<PathBuf>,

    /// The algorithm to use instead of those of the limits, or `all` to compare them
    #[arg(long, value_name = "NAME|all", value_parser = algorithms)]
    pub algorithm: Option<Algorithms>,
}

impl RuleArgs {
    pub fn limits(&self) -> Vec<Limit> {
        self.limits.iter().map(|given| given.limit).collect()
    }
}

/// Parses a limit. If it is only a number, the shell has probably split a limit without quotes.
pub fn limit<L: FromStr<Err = LimitError>>(text: &str) -> Result<L, String> {
    text.parse().map_err(|error: LimitError| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let hint =
            if is_number { "\nput the whole limit in quotes: --limit \"10 per 1s\"" } else { "" };
        format!("{error}{hint}")
    })
}

/// How lines are parsed.
#[derive(Clone, Debug, Args)]
pub struct ReadingArgs {
    /// The format of the lines
    #[arg(long, value_enum, default_value_t = FormatChoice::Auto)]
    pub format: FormatChoice,

    /// The key to limit by: a field, `all` for one key, or a template such as "{header:x-api-key |
    /// client_ip}" as in policies. Default: the field `key`, otherwise the client address
    #[arg(long, value_name = "FIELD|all|TEMPLATE")]
    pub key: Option<KeyChoice>,

    /// The role of fields with unusual names, e.g. time=ts,key=user.id; see below
    #[arg(long = "field", value_name = "WHAT=NAME", value_delimiter = ',')]
    pub fields: Vec<RoleField>,

    /// The unit of times that are numbers
    #[arg(long, value_enum, default_value_t = UnitChoice::Auto)]
    pub time_unit: UnitChoice,

    /// The zone of times without one: an offset such as +02:00, or a name such as Europe/Berlin,
    /// with its daylight saving time [default: +00:00]
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    pub zone: Option<Zone>,

    /// Skip lines that are equal to the line before
    #[arg(long)]
    pub skip_duplicates: bool,

    /// Stop with an error at the first bad line, step back in time or damaged file
    #[arg(long)]
    pub strict: bool,
}

impl Default for ReadingArgs {
    fn default() -> Self {
        ReadingArgs {
            format: FormatChoice::Auto,
            key: None,
            fields: Vec::new(),
            time_unit: UnitChoice::Auto,
            zone: None,
            skip_duplicates: false,
            strict: false,
        }
    }
}

/// The format of lines, or `auto` to detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatChoice {
    Auto,
    Clf,
    #[value(alias = "nginx")]
    Combined,
    Csv,
    Jsonl,
    Envoy,
    Alb,
    #[value(aliases = ["cloudfront", "iis"])]
    W3c,
}

const REPLAY_HELP: &str = "\
Formats:
  csv       time_us,key[,cost], or any columns if the first line names them; columns with names
            may be separated by commas, tabs or semicolons
  jsonl     {\"time_us\":1700000000000000,\"key\":\"alice\",\"cost\":1}, or any fields
  clf       Apache common log: host ident user [time] \"request\" status bytes
  combined  clf, then \"referer\" \"agent\" and any fields that nginx or Apache append; a virtual
            host may come first (also: nginx)
  envoy     the default access log of Envoy or Istio
  alb       the access log of an AWS Application Load Balancer
  w3c       a log with a #Fields line, as CloudFront and IIS write it (also: cloudfront, iis)
  auto      detected from the first lines of each file

Times are microseconds since 1970 in csv without column names. Elsewhere they are numbers of
seconds, milliseconds, microseconds or nanoseconds, or text such as 2023-11-14T22:13:20.5Z.
The date and the time of day may be in two fields.
A cost of 0 peeks, a negative cost refunds.

--field assigns fields of all formats but clf and combined: time, date, key, cost, client_ip,
method, path, query, host, uri (path and query), request (as in logs), header:NAME and
descriptor:NAME. Dots select fields of objects: --field key=user.id. Usual names are recognised.

--key of clf and combined: host, user, agent, referer, method, path, status, vhost, forwarded.
--key all counts all requests together.

Examples:
  tidegate replay access.log.gz --limit \"10 per 10s\" --algorithm all --html report.html
  tidegate replay access.log access.log.1 --config tidegate.yaml
  tidegate replay app.jsonl --field time=ts --key user.id --limit \"600 per 1m\" --suggest 99.9
  tidegate replay trace.csv.zst --limit \"10 per 1s\" --limit \"600 per 1m sliding-log\" --json";
