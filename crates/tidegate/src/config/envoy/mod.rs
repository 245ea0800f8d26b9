//! Configs of envoyproxy/ratelimit, as they are.
//!
//! Its files say, per *domain*, a tree of descriptors, and a request takes one way down that
//! tree: at each level the entry's exact value, else the first wildcard that matches,
//! else the entry without a value; never back. tidegate has no such tree. It has policies, of
//! which all that match apply. So the tree is written out:
//!
//! ```text
//!   files -> tree.rs (what they say, or every mistake) -> flatten.rs (a policy per limit, with
//!         whom it spares) -> names.rs -> write.rs (a tidegate config) -> Config::parse
//! ```
//!
//! What is converted *is* a config: [`Converted::yaml`] is what a server that is given the
//! files themselves reads, so that both mean the same. A node's `exempt` names what would have
//! been preferred to it, at its own level and at every one above.
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

use super::error::{ConfigError, ConfigErrors, printable};
use super::reader::Reader;
use super::{Config, MAX_CONFIG_BYTES, read_text, yaml};

/// Most files of a directory: each is a domain, and there are never so many.
pub const MAX_FILES: usize = 1024;

/// A file as it was read.
#[derive(Clone, Debug)]
pub struct EnvoyFile {
    name: String,
    text: String,
}

/// How files are converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How limits count. `FixedWindow` has the windows of envoyproxy/ratelimit.
    pub algorithm: Algorithm,
    /// Whether files may share a domain, as with its `MERGE_DOMAIN_CONFIG`.
    pub merge_domains: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Converted {
    yaml: String,
    config: Config,
    notices: Vec<Notice>,
}

/// Something that tidegate does another way, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    file: String,
    about: ConfigError,
}

/// What is wrong with the files: all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyErrors(Vec<ConfigErrors>);

impl EnvoyFile {
    /// A file that was read elsewhere. The name is only shown.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        EnvoyFile { name: name.into(), text: text.into() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is larger than [`MAX_CONFIG_BYTES`] or is not UTF-8.
    pub fn load(path: &Path) -> Result<Self, EnvoyErrors> {
        let text = read_text(path).map_err(EnvoyErrors::one)?;
        Ok(EnvoyFile { name: path.display().to_string(), text })
    }

    /// The `.yaml` and `.yml` files of a directory by name. Files that begin with a dot are
    /// left out: Kubernetes keeps its own there. So is what is no file: reading a pipe would
    /// wait for somebody to write. A link that leads nowhere stays, to be told of.
    ///
    /// # Errors
    /// When it cannot be read, or has none or too many.
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

/// Makes a tidegate config of files.
///
/// # Errors
/// Everything that is wrong with them, in the order of the files.
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
    let config = Config::parse(&yaml, "the converted config").map_err(EnvoyErrors::one)?;
    Ok(Converted { yaml, config, notices })
}

/// All notices, or all errors.
fn take_notices(files: &[EnvoyFile], readers: Vec<Reader<'_>>) -> Result<Vec<Notice>, EnvoyErrors> {
    let (mut all, mut notices) = (Vec::new(), Vec::new());
    for (file, reader) in files.iter().zip(readers) {
        let (errors, noted) = reader.into_errors_and_notices();
        if !errors.is_empty() {
            all.push(ConfigErrors::new(&file.name, errors));
        }
        let name = printable(&file.name);
        notices.extend(noted.into_iter().map(|about| Notice { file: name.clone(), about }));
    }
    if all.is_empty() { Ok(notices) } else { Err(EnvoyErrors(all)) }
}

impl Converted {
    /// The config as a file: what `tidegate config convert` prints.
    pub fn yaml(&self) -> &str {
        &self.yaml
    }

    /// The same, read.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What tidegate does another way, or not at all; in the order of the files.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }
}

impl Notice {
    /// The file it is about.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Its place, field, message and what to do about it.
    pub fn about(&self) -> &ConfigError {
        &self.about
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.about.write(&self.file, f)
    }
}

impl EnvoyErrors {
    fn one(errors: ConfigErrors) -> Self {
        EnvoyErrors(vec![errors])
    }

    /// Those of each file that has any; never none.
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
