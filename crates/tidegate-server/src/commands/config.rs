//! `tidegate config`: validates a config file, prints the JSON Schema, and converts other formats.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tidegate::Algorithm;
use tidegate::unstable::config::envoy::{EnvoyErrors, EnvoyFile, Options, convert};
use tidegate::unstable::config::{Config, ConfigErrors, StoreUrl, schema};
use tidegate::unstable::policy::Policy;

use tidegate_replay::rate_algorithm;

/// Check a config file, print what may stand in one, or convert another's
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say everything that is wrong with a file: exit 0 if nothing is, else 1
    Check {
        /// The config
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print a JSON Schema of the config, for editors
    ///
    /// An editor that speaks YAML completes and checks as you type once the file
    /// begins with `# yaml-language-server: $schema=tidegate.schema.json`.
    Schema,
    Convert(ConvertArgs),
}

/// Print another limiter's config as a tidegate config
///
/// What tidegate does another way, or not at all, is told on standard error.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tidegate config convert --from envoy /etc/ratelimit/config/*.yaml > tidegate.yaml"
)]
struct ConvertArgs {
    /// Whose config it is: `envoy` is envoyproxy/ratelimit
    #[arg(long, value_enum)]
    from: SourceFormat,

    /// How limits count; `fixed-window` has the windows of envoyproxy/ratelimit
    #[arg(long, value_name = "NAME", default_value_t, value_parser = rate_algorithm)]
    algorithm: Algorithm,

    /// Let several files have the same domain
    #[arg(long)]
    merge_domains: bool,

    /// The files, one per domain; a directory stands for its *.yaml, `-` for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SourceFormat {
    Envoy,
}

/// Text for standard output, and warnings for standard error.
pub struct Output {
    pub text: String,
    pub warnings: Vec<String>,
}

/// The errors of a config file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigCommandError {
    #[error(transparent)]
    Config(ConfigErrors),
    #[error(transparent)]
    Envoy(EnvoyErrors),
}

/// Runs the command and returns its output.
pub fn run(args: &ConfigArgs) -> Result<Output, ConfigCommandError> {
    let text = match &args.command {
        ConfigCommand::Check { file } => {
            let config = Config::load(file).map_err(ConfigCommandError::Config)?;
            format!("{} is fine: {}\n", file.display(), summary(&config))
        }
        ConfigCommand::Schema => format!("{:#}\n", schema()),
        ConfigCommand::Convert(args) => {
            return convert_files(args).map_err(ConfigCommandError::Envoy);
        }
    };
    Ok(Output { text, warnings: Vec::new() })
}

fn convert_files(args: &ConvertArgs) -> Result<Output, EnvoyErrors> {
    let SourceFormat::Envoy = args.from;
    let mut files = Vec::new();
    for path in &args.files {
        let paths = match path.to_str() {
            Some("-") => vec![PathBuf::from("/dev/stdin")],
            _ if path.is_dir() => EnvoyFile::list(path)?,
            _ => vec![path.clone()],
        };
        for path in paths {
            files.push(EnvoyFile::load(&path)?);
        }
    }
    let options = Options { algorithm: args.algorithm, merge_domains: args.merge_domains };
    let converted = convert(&files, &options)?;
    let warnings = converted.notices().iter().chain(converted.omitted()).map(ToString::to_string);
    Ok(Output { text: converted.yaml()?, warnings: warnings.collect() })
}

fn summary(config: &Config) -> String {
    let sum = |of: fn(&Policy) -> usize| config.policies.iter().map(of).sum();
    let counts = [
        counted(config.policies.len(), "policy", "policies"),
        counted(sum(|policy| policy.limits().len()), "limit", "limits"),
        counted(sum(|policy| policy.variants().len() - 1), "override", "overrides"),
    ];
    let counts = counts.join(", ");
    match config.store {
        StoreUrl::Memory => counts,
        _ => format!("{counts}, {}", shared(config)),
    }
}

/// Describes the store that nodes share.
pub fn shared(config: &Config) -> String {
    let nodes = counted(config.nodes as usize, "node", "nodes");
    format!("counts in {} for {nodes}", config.store)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
