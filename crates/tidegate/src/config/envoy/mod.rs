//! Converts configs of envoyproxy/ratelimit.
//!
//! Its files define, per *domain*, a tree of descriptors. A request follows a single path down that
//! tree: at each level the node with the entry's exact value, else the first wildcard that matches,
//! else the node without a value. It never backtracks. tidegate has policies instead of a tree, and
//! all that match apply. So each limit of the tree becomes a policy:
//!
//! ```text
//!   files ----> read.rs ----+
//!                           +--> model.rs (plain values) --> check.rs (domains, or all errors)
//!   messages ---------------+                                --> build.rs (a policy per limit)
//! ```
//!
//! - `read.rs`: also the errors and notices of each file or message, and their positions;
//! - `model.rs`: also the values that the `exempt` of a policy lists, at its level and at every
//!   level above; `build.rs`: also the names of policies;
//! - `write.rs`: writes the policies as a config, for `tidegate config convert`.
//!
//! ```
//! use tidegate::unstable::config::envoy::{EnvoyFile, Options, convert};
//!
//! let file = EnvoyFile::new("limits.yaml", "
//! domain: messaging
//! descriptors:
//!   - key: to_number
//!     rate_limit: { unit: day, requests_per_unit: 100 }
//! ");
//! let converted = convert(&[file], &Options::default())?;
//! let policy = converted.config().policies.iter().next().expect("a policy");
//! assert_eq!(policy.name(), "messaging.to_number");
//! assert_eq!(policy.limits()[0].to_string(), "100 per 1d sliding-window");
//! # Ok::<(), tidegate::unstable::config::envoy::EnvoyErrors>(())
//! ```

mod build;
mod check;
mod model;
mod read;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};

use tidegate_core::Algorithm;

use self::read::Source;
use super::error::{ConfigError, ConfigErrors, ConfigWarning};
use super::{Config, MAX_CONFIG_BYTES, read_text};

pub use self::model::{DescriptorConfig, DomainConfig, RateLimitConfig, Unit};

/// The largest number of files in a directory, and of its subdirectories. Each file is a domain,
/// and real directories have far fewer.
pub const MAX_FILES: usize = 1024;

/// The largest number of files with other names that are listed: enough to show a mistake.
const MAX_SKIPPED: usize = 8;

/// The name and text of a file.
#[derive(Clone, Debug)]
pub struct EnvoyFile {
    name: String,
    text: String,
}

/// The files of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The `.yaml` and `.yml` files, sorted by path.
    pub files: Vec<PathBuf>,
    /// The first files with other names, which are not read.
    pub skipped: Vec<PathBuf>,
}

/// Settings of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The algorithm of all limits. `FixedWindow` has the same windows as envoyproxy/ratelimit.
    pub algorithm: Algorithm,
    /// Whether several files may have the same domain, as with envoyproxy/ratelimit's
    /// `MERGE_DOMAIN_CONFIG`.
    pub merge_domains: bool,
    /// Whether every limit is a quota, as with envoyproxy/ratelimit's `QUOTA_MODE`.
    pub quota_mode: bool,
}

/// The result of a conversion.
#[derive(Clone, Debug)]
pub struct Converted {
    config: Config,
    /// The names of the files or messages.
    sources: Vec<String>,
    notices: Vec<ConfigWarning>,
    omitted: Vec<ConfigWarning>,
}

/// All errors of the files or messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyErrors(Vec<ConfigErrors>);

impl EnvoyFile {
    /// Creates a file from its text. The name is only displayed.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        EnvoyFile { name: name.into(), text: text.into() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is larger than [`MAX_CONFIG_BYTES`] or is not
    /// UTF-8.
    pub fn load(path: &Path) -> Result<Self, EnvoyErrors> {
        let text = read_text(path).map_err(EnvoyErrors::one)?;
        Ok(EnvoyFile { name: path.display().to_string(), text })
    }

    /// Lists the files of a directory and its subdirectories. Names that begin with a dot are
    /// skipped, because Kubernetes uses them for its own files. Links to directories are skipped,
    /// as in envoyproxy/ratelimit. Other entries that are not files are skipped, because reading a
    /// pipe would block. A dangling link is kept, so that it is reported when it is read.
    ///
    /// # Errors
    /// Returns an error if a directory cannot be read, or if the number of such files is zero or
    /// exceeds [`MAX_FILES`], as that of subdirectories must not.
    pub fn list(directory: &Path) -> Result<Listing, EnvoyErrors> {
        let Listing { files: mut paths, mut skipped } = Listing::default();
        let mut directories = vec![directory.to_owned()];
        let mut next = 0;
        while let Some(current) = directories.get(next).cloned() {
            next += 1;
            let cannot = |error| cannot_be_read(&current, &error);
            for entry in current.read_dir().map_err(cannot)? {
                let entry = entry.map_err(cannot)?;
                let path = entry.path();
                let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                if entry.file_type().map_err(cannot)?.is_dir() {
                    directories.push(path);
                } else if !path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
                    match is_yaml {
                        true => paths.push(path),
                        false if skipped.len() < MAX_SKIPPED => skipped.push(path),
                        false => {}
                    }
                }
                if paths.len() > MAX_FILES || directories.len() > MAX_FILES {
                    let message =
                        format!("there are more than {MAX_FILES} *.yaml files or subdirectories");
                    let help = "check that this is the directory you meant";
                    return Err(EnvoyErrors::whole(
                        &directory.display().to_string(),
                        message,
                        help,
                    ));
                }
            }
        }
        if paths.is_empty() {
            let message = "there is no *.yaml file in this directory".to_owned();
            let help = "put the files of envoyproxy/ratelimit there, one per domain";
            return Err(EnvoyErrors::whole(&directory.display().to_string(), message, help));
        }
        paths.sort_unstable();
        skipped.sort_unstable();
        Ok(Listing { files: paths, skipped })
    }
}

fn cannot_be_read(directory: &Path, error: &std::io::Error) -> EnvoyErrors {
    let message = format!("the directory cannot be read: {error}");
    let help = "name the directory that holds the *.yaml files, and check its permissions";
    EnvoyErrors::whole(&directory.display().to_string(), message, help)
}

/// Converts files into a tidegate config.
///
/// # Errors
/// Returns all errors, in the order of the files.
pub fn convert(files: &[EnvoyFile], options: &Options) -> Result<Converted, EnvoyErrors> {
    if let Some(file) = files.iter().find(|file| file.text.len() > MAX_CONFIG_BYTES) {
        let message = format!("the file is larger than {} KiB", MAX_CONFIG_BYTES / 1024);
        return Err(EnvoyErrors::whole(&file.name, message, "split it by domain"));
    }
    let sources: Vec<Source<'_>> = files.iter().map(Source::file).collect();
    let configs: Vec<Option<DomainConfig>> = sources.iter().map(read::read).collect();
    convert_sources(sources, configs.iter().map(Option::as_ref), options)
}

/// Converts messages into a tidegate config.
///
/// # Errors
/// Returns all errors, in the order of the messages. They have the name of the message and the path
/// of the field, such as `descriptors[3].rate_limit.unit`.
pub fn convert_domains(
    domains: &[DomainConfig],
    options: &Options,
) -> Result<Converted, EnvoyErrors> {
    let sources = domains.iter().map(Source::message).collect();
    convert_sources(sources, domains.iter().map(Some), options)
}

/// Converts the config of each source; `None` if it could not be read.
fn convert_sources<'c>(
    sources: Vec<Source<'_>>,
    configs: impl Iterator<Item = Option<&'c DomainConfig>>,
    options: &Options,
) -> Result<Converted, EnvoyErrors> {
    let domains = check::check(&sources, configs, options.merge_domains);
    let is_valid = !sources.iter().any(|source| source.reader().has_errors());
    let policies = is_valid.then(|| build::build(&sources, &domains, options));
    let names = sources.iter().map(Source::name).collect();
    let (mut errors, mut notices, mut omitted) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources {
        let name = source.name();
        let mut findings = source.into_findings();
        if !findings.errors.is_empty() {
            errors.push(ConfigErrors::new(&name, findings.errors));
        }
        notices.append(&mut findings.notices);
        omitted.append(&mut findings.omitted);
    }
    if !errors.is_empty() {
        return Err(EnvoyErrors(errors));
    }
    let config = Config { policies: policies.unwrap_or_default(), ..Config::default() };
    Ok(Converted { config, sources: names, notices, omitted })
}

impl Converted {
    /// Writes the policies as a config, which `tidegate config convert` prints. Parsing it gives
    /// the same policies, without the details of [`Converted::omitted`].
    ///
    /// # Errors
    /// Returns an error if the text would be larger than a config may be.
    pub fn yaml(&self) -> Result<String, EnvoyErrors> {
        let first = self.sources.first().map_or("", String::as_str);
        let Some(yaml) = write::write(&self.sources, &self.config.policies) else {
            let message = format!("converted, they take more than {} KiB", MAX_CONFIG_BYTES / 1024);
            let help = "serve the files with --envoy-config, or give fewer values";
            return Err(EnvoyErrors::whole(first, message, help));
        };
        Config::parse(&yaml, "the converted config").map_err(EnvoyErrors::one)?;
        Ok(yaml)
    }

    /// Returns the config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the config by value.
    pub fn into_config(self) -> Config {
        self.config
    }

    /// Returns the notices about fields that the policies keep, and that [`Converted::yaml`] leaves
    /// out.
    pub fn omitted(&self) -> &[ConfigWarning] {
        &self.omitted
    }

    /// Returns the notices about features that tidegate handles differently or does not support, in
    /// the order of the files.
    pub fn notices(&self) -> &[ConfigWarning] {
        &self.notices
    }
}

impl EnvoyErrors {
    fn one(errors: ConfigErrors) -> Self {
        EnvoyErrors(vec![errors])
    }

    /// Creates an error about a file or message as a whole.
    fn whole(name: &str, message: String, help: &str) -> Self {
        EnvoyErrors::one(ConfigErrors::new(name, vec![*ConfigError::whole(message, help)]))
    }

    /// Returns the errors of each file that has any. There is at least one such file.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigErrors> {
        self.0.iter()
    }
}

impl fmt::Display for EnvoyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, errors) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\nerror: ")?;
            }
            errors.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for EnvoyErrors {}
