//! Flags that other servers have. `tidegate serve` rejects them with a suggestion.

use clap::builder::UnknownArgumentValueParser as Unknown;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

const STORE: &str = "set TIDEGATE_STORE, or `store` in the config";
const TLS: &str = "TLS is set in the config: `tls: { http: { cert: FILE, key: FILE } }`";

/// The rejected flags. They have no values, because every use is an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnknownFlags;

impl UnknownFlags {
    /// The arguments. Each name is a separate one, because the error of clap names the argument and
    /// not the alias that was used.
    fn arguments() -> impl Iterator<Item = Arg> {
        let http =
            || Unknown::suggest_arg("--http").and_suggest("an example: `--http 127.0.0.1:8080`");
        let rows = [
            ("port", "PORT", http()),
            ("p", "PORT", http()),
            ("listen", "ADDR", http()),
            ("bind", "ADDR", http()),
            ("addr", "ADDR", http()),
            ("address", "ADDR", http()),
            ("host", "HOST", http()),
            ("metrics", "ADDR", Unknown::suggest_arg("--admin")),
            ("c", "FILE", Unknown::suggest_arg("--config")),
            ("store", "URL", Unknown::suggest(STORE)),
            ("redis", "URL", Unknown::suggest(STORE)),
            ("tls-cert", "FILE", Unknown::suggest(TLS)),
            ("tls-key", "FILE", Unknown::suggest(TLS)),
        ];
        rows.into_iter().map(|(name, value, suggestion)| {
            let argument = Arg::new(name).hide(true).value_name(value).value_parser(suggestion);
            match name.as_bytes() {
                [letter] => argument.short(char::from(*letter)),
                _ => argument.long(name),
            }
        })
    }
}

impl Args for UnknownFlags {
    fn augment_args(command: Command) -> Command {
        command.args(UnknownFlags::arguments())
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.args(UnknownFlags::arguments())
    }
}

impl FromArgMatches for UnknownFlags {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(UnknownFlags)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}
