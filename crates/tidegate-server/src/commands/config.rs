//! `tidegate config`: validates a config file, prints the JSON Schema, and converts other formats.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use tidegate::Algorithm;
use tidegate::unstable::config::envoy::{EnvoyErrors, EnvoyFile, Options, convert};
use tidegate::unstable::config::{Config, ConfigErrors, StoreUrl, schema};
use tidegate::unstable::policy::Policy;

use tidegate_replay::rate_algorithm;

use crate::serve::{address_warnings, config_warnings};

/// Check a config, print its schema, or convert the config of another limiter
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Report the errors and warnings of a file: exit 1 if there are errors, else 0
    ///
    /// A warning is about a part that is valid, but may not have the intended effect.
    Check {
        /// The config
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Treat warnings as errors
        #[arg(long)]
        strict: bool,
    },
    /// Print a JSON Schema of the config, for editors
    ///
    /// An editor with the YAML language server completes and checks a config that
    /// begins with `# yaml-language-server: $schema=tidegate.schema.json`.
    Schema,
    Convert(ConvertArgs),
}

/// Print another limiter's config as a tidegate config
///
/// Reports on standard error what tidegate handles differently or not at all.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tidegate config convert --from envoy /etc/ratelimit/config/*.yaml > tidegate.yaml"
)]
struct ConvertArgs {
    /// The limiter that the config is for: `envoy` is envoyproxy/ratelimit
    #[arg(long, value_enum)]
    from: SourceFormat,

    /// The algorithm of the limits; `fixed-window` has the windows of envoyproxy/ratelimit
    #[arg(long, value_name = "NAME", default_value_t, value_parser = rate_algorithm)]
    algorithm: Algorithm,

    /// Allow several files to have the same domain
    #[arg(long)]
    merge_domains: bool,

    /// The files, one per domain; a directory means its *.yaml files, `-` standard input
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
    match &args.command {
        ConfigCommand::Check { file, strict } => {
            check(file, *strict).map_err(ConfigCommandError::Config)
        }
        ConfigCommand::Schema => {
            Ok(Output { text: format!("{:#}\n", schema()), warnings: Vec::new() })
        }
        ConfigCommand::Convert(args) => convert_files(args).map_err(ConfigCommandError::Envoy),
    }
}

fn check(file: &Path, is_strict: bool) -> Result<Output, ConfigErrors> {
    let config = Config::load(file)?;
    let mut warnings = config_warnings(&config, Some(file));
    warnings.extend(address_warnings(&config));
    if let Some(errors) = ConfigErrors::from_warnings(&warnings).filter(|_| is_strict) {
        return Err(errors);
    }
    let verdict = match warnings.len() {
        0 => "is fine".into(),
        count => format!("is valid, with {}", counted(count, "warning", "warnings")),
    };
    let text = format!("{} {verdict}: {}\n", file.display(), summary(&config));
    Ok(Output { text, warnings: warnings.iter().map(ToString::to_string).collect() })
}

fn convert_files(args: &ConvertArgs) -> Result<Output, EnvoyErrors> {
    let SourceFormat::Envoy = args.from;
    let mut files = Vec::new();
    for path in &args.files {
        let paths = match path.to_str() {
            Some("-") => vec![PathBuf::from("/dev/stdin")],
            _ if path.is_dir() => EnvoyFile::list(path)?.files,
            _ => vec![path.clone()],
        };
        for path in paths {
            files.push(EnvoyFile::load(&path)?);
        }
    }
    let (algorithm, merge_domains) = (args.algorithm, args.merge_domains);
    let options = Options { algorithm, merge_domains, ..Options::default() };
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
    let nodes = match config.nodes {
        0 => "all nodes that are alive".to_owned(),
        nodes => counted(nodes as usize, "node", "nodes"),
    };
    format!("counts in {} for {nodes}", config.store)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
