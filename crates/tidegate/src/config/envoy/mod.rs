//! Converts configs of envoyproxy/ratelimit.
//!
//! Its files define, per *domain*, a tree of descriptors. A request follows a single path down that
//! tree: at each level the node with the entry's exact value, else the first wildcard that matches,
//! else the node without a value. It never backtracks. tidegate has policies instead of a tree, and
//! all that match apply. So each limit of the tree becomes a policy:
//!
//! ```text
//!   files -> tree.rs (domains and descriptors, or all errors) -> flatten.rs (a policy per limit,
//!         with exemptions and a name) -> write.rs (a tidegate config) -> Config::parse
//! ```
//!
//! The result of a conversion *is* a config: a server that is started with the files reads
//! [`Converted::yaml`], so both have the same meaning. The `exempt` of a policy lists the values
//! that are preferred to its node's, at the same level and at every level above.
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

mod flatten;
mod tree;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};

use tidegate_core::Algorithm;

use super::error::{ConfigError, ConfigErrors, ConfigWarning};
use super::reader::Reader;
use super::{Config, MAX_CONFIG_BYTES, read_text, yaml};

/// The largest number of files in a directory. Each is a domain, and real directories have far
/// fewer.
pub const MAX_FILES: usize = 1024;

/// The name and text of a file.
#[derive(Clone, Debug)]
pub struct EnvoyFile {
    name: String,
    text: String,
}

/// Settings of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The algorithm of all limits. `FixedWindow` has the same windows as envoyproxy/ratelimit.
    pub algorithm: Algorithm,
    /// Whether several files may have the same domain, as with envoyproxy/ratelimit's
    /// `MERGE_DOMAIN_CONFIG`.
    pub merge_domains: bool,
}

/// The result of a conversion.
#[derive(Clone, Debug)]
pub struct Converted {
    yaml: String,
    config: Config,
    notices: Vec<ConfigWarning>,
}

/// All errors of the files.
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

    /// Lists the `.yaml` and `.yml` files of a directory, sorted by name. Names that begin with a
    /// dot are skipped, because Kubernetes uses them for its own files. Entries that are not files
    /// are skipped, because reading a pipe would block. A dangling link is kept, so that it is
    /// reported when it is read.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read, or contains no such file or more than
    /// [`MAX_FILES`].
    pub fn list(directory: &Path) -> Result<Vec<PathBuf>, EnvoyErrors> {
        let fail = |message: String, help: &str| {
            let error = *ConfigError::whole(message, help);
            EnvoyErrors::one(ConfigErrors::new(&directory.display().to_string(), vec![error]))
        };
        let cannot = |error: std::io::Error| {
            fail(
                format!("the directory cannot be read: {error}"),
                "name the directory that holds the *.yaml files, and check its permissions",
            )
        };
        let mut paths = Vec::new();
        for entry in directory.read_dir().map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            let is_hidden =
                path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            let is_other = path.metadata().is_ok_and(|metadata| !metadata.is_file());
            if is_yaml && !is_hidden && !is_other {
                paths.push(path);
            }
            if paths.len() > MAX_FILES {
                let message = format!("there are more than {MAX_FILES} *.yaml files");
                return Err(fail(message, "check that this is the directory you meant"));
            }
        }
        if paths.is_empty() {
            let message = "there is no *.yaml file in this directory".to_owned();
            return Err(fail(
                message,
                "put the files of envoyproxy/ratelimit there, one per domain",
            ));
        }
        paths.sort_unstable();
        Ok(paths)
    }
}

/// Converts files into a tidegate config.
///
/// # Errors
/// Returns all errors, in the order of the files.
pub fn convert(files: &[EnvoyFile], options: &Options) -> Result<Converted, EnvoyErrors> {
    let whole = |file: &str, message: String, help: &str| {
        EnvoyErrors::one(ConfigErrors::new(file, vec![*ConfigError::whole(message, help)]))
    };
    if let Some(file) = files.iter().find(|file| file.text.len() > MAX_CONFIG_BYTES) {
        let message = format!("the file is larger than {} KiB", MAX_CONFIG_BYTES / 1024);
        return Err(whole(&file.name, message, "split it by domain"));
    }
    let mut readers = Vec::with_capacity(files.len());
    let mut trees = Vec::with_capacity(files.len());
    for file in files {
        let mut errors = Vec::new();
        let root = yaml::parse(&file.text, &mut errors);
        let is_broken = !errors.is_empty();
        readers.push(Reader::new(&file.text, errors));
        trees.push(root.filter(|_| !is_broken));
    }
    let domains = tree::read(&readers, &trees, options.merge_domains);
    let mut policies = flatten::flatten(&readers, &domains, options.algorithm);
    flatten::assign_names(&readers, &mut policies);
    let notices = take_notices(files, readers)?;
    let yaml = write::write(files.iter().map(|file| &*file.name), &domains, &policies);
    if yaml.len() > MAX_CONFIG_BYTES {
        let message = format!("converted, they take more than {} KiB", MAX_CONFIG_BYTES / 1024);
        let help = "give fewer values; a header or descriptor that groups them is the better tool";
        return Err(whole(files.first().map_or("", |file| &file.name), message, help));
    }
    let mut config = Config::parse(&yaml, "the converted config").map_err(EnvoyErrors::one)?;
    // They would name lines of a file that the user does not have.
    config.warnings.clear();
    Ok(Converted { yaml, config, notices })
}

/// Returns all notices or, if there are errors, all errors.
fn take_notices(
    files: &[EnvoyFile],
    readers: Vec<Reader<'_>>,
) -> Result<Vec<ConfigWarning>, EnvoyErrors> {
    let (mut all, mut notices) = (Vec::new(), Vec::new());
    for (file, reader) in files.iter().zip(readers) {
        let (errors, noted) = reader.into_errors_and_notices();
        if !errors.is_empty() {
            all.push(ConfigErrors::new(&file.name, errors));
        }
        notices.extend(noted.into_iter().map(|about| ConfigWarning::new(&file.name, about)));
    }
    if all.is_empty() { Ok(notices) } else { Err(EnvoyErrors(all)) }
}

impl Converted {
    /// Returns the config as YAML, which `tidegate config convert` prints.
    pub fn yaml(&self) -> &str {
        &self.yaml
    }

    /// Returns the parsed config.
    pub fn config(&self) -> &Config {
        &self.config
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
