//! `tidegate config`: is this file right, and what may stand in it?

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tidegate::config::{Config, ConfigErrors, StoreUrl, schema};
use tidegate::policy::Policy;

/// Check a config file, or print what may stand in one
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
}

/// What is to be printed.
pub fn run(args: &ConfigArgs) -> Result<String, ConfigErrors> {
    match &args.command {
        ConfigCommand::Check { file } => {
            let config = Config::load(file)?;
            Ok(format!("{} is fine: {}\n", file.display(), summary(&config)))
        }
        ConfigCommand::Schema => Ok(format!("{:#}\n", schema())),
    }
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

/// Where counts are kept that nodes share.
pub fn shared(config: &Config) -> String {
    let nodes = counted(config.nodes as usize, "node", "nodes");
    format!("counts in {} for {nodes}", config.store)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
