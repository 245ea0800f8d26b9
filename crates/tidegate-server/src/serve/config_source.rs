//! The source of policies and settings: a config file, files of envoyproxy/ratelimit, or both.
//!
//! With both, settings come from the config file. Its policies, which are optional then, precede
//! those of the envoyproxy/ratelimit files. The files are converted as `tidegate config convert`
//! does.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};

use tidegate::unstable::config::envoy::{EnvoyErrors, EnvoyFile, Options, convert};
use tidegate::unstable::config::{Config, ConfigErrors, ConfigWarning, MAX_CONFIG_BYTES};
use tidegate::unstable::policy::PoliciesError;
use tracing::warn;

use super::args::ServeArgs;
use super::tls;

/// The files that the config is read from.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    config: Option<PathBuf>,
    envoy: Option<PathBuf>,
    options: Options,
}

/// Why the config cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigSourceError {
    #[error(transparent)]
    Config(ConfigErrors),
    #[error(transparent)]
    Envoy(EnvoyErrors),
    /// A pipe or device, which can be read only once.
    #[error(
        "{0}: not a regular file, so it cannot be read again: restart to read another config, or \
         use a file"
    )]
    NotAFile(PathBuf),
    /// Both sources have a policy of this name.
    #[error(
        "policy `{0}` of --config has the same name as a limit of --envoy-config: rename it in \
         --config"
    )]
    SamePolicy(String),
    /// The policies of both sources conflict for another reason.
    #[error("--config and --envoy-config together: {0}")]
    Conflict(PoliciesError),
}

impl ConfigSource {
    pub fn new(args: &ServeArgs) -> Self {
        let options = Options { algorithm: args.algorithm, merge_domains: args.merge_domains };
        ConfigSource { config: args.config.clone(), envoy: args.envoy_config.clone(), options }
    }

    /// The paths as they were given; `None` if there are none.
    pub fn name(&self) -> Option<String> {
        let paths = [&self.config, &self.envoy].into_iter().flatten();
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        (!paths.is_empty()).then(|| paths.join(" and "))
    }

    /// Whether no file was given.
    pub fn is_none(&self) -> bool {
        self.config.is_none() && self.envoy.is_none()
    }

    /// Loads the config. Logs features of the envoyproxy/ratelimit files that tidegate does not
    /// support.
    pub fn load(&self) -> Result<Config, ConfigSourceError> {
        let Some(envoy) = &self.envoy else {
            return match &self.config {
                Some(path) => Config::load(path).map_err(ConfigSourceError::Config),
                None => Ok(Config::default()),
            };
        };
        let settings = self.config.as_deref().map(Config::load_settings).transpose();
        let settings = settings.map_err(ConfigSourceError::Config)?;
        let files = files(envoy).map_err(ConfigSourceError::Envoy)?;
        let files: Result<Vec<EnvoyFile>, EnvoyErrors> =
            files.iter().map(|path| EnvoyFile::load(path)).collect();
        let files = files.map_err(ConfigSourceError::Envoy)?;
        let converted = convert(&files, &self.options).map_err(ConfigSourceError::Envoy)?;
        for notice in converted.notices() {
            let (file, about) = (notice.file(), notice.about());
            let line = about.line().unwrap_or_default();
            warn!("{file}:{line}: {}: {}: {}", about.field(), about.message(), about.help());
        }
        let converted = converted.into_config();
        match settings {
            None => Ok(converted),
            Some(settings) => {
                let both = |error| {
                    let mut names = settings.policies.iter().map(|policy| policy.name());
                    match names.find(|name| converted.policies.get(name).is_some()) {
                        Some(name) => ConfigSourceError::SamePolicy(name.to_owned()),
                        None => ConfigSourceError::Conflict(error),
                    }
                };
                settings.clone().with_policies_of(&converted).map_err(both)
            }
        }
    }

    /// Loads the config again. Fails if it is a pipe: its content is consumed, and reading it would
    /// block until another process writes.
    pub fn load_again(&self) -> Result<Config, ConfigSourceError> {
        match self.config.as_deref().filter(|path| is_pipe(path)) {
            Some(path) => Err(ConfigSourceError::NotAFile(path.to_owned())),
            None => self.load(),
        }
    }

    /// Logs what may not have the intended effect in a config that was loaded from here.
    pub fn log_warnings(&self, config: &Config) {
        for warning in config_warnings(config, self.config.as_deref()) {
            warn!("{warning}");
        }
    }

    /// The directories to watch for changes.
    pub fn directories(&self) -> Vec<PathBuf> {
        let parent = |path: &Path| match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let envoy = |path: &PathBuf| if path.is_dir() { path.clone() } else { parent(path) };
        let config = self.config.as_deref().map(parent);
        let listed = self.envoy.as_deref().map(files).and_then(Result::ok).unwrap_or_default();
        let below = listed.iter().map(|path| parent(path));
        let all: BTreeSet<PathBuf> =
            config.into_iter().chain(self.envoy.as_ref().map(envoy)).chain(below).collect();
        all.into_iter().collect()
    }

    /// A hash of the content of all files; `None` if one cannot be read.
    pub fn fingerprint(&self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        let envoy = self.envoy.as_deref().map(files).transpose().ok()?;
        for path in self.config.iter().chain(envoy.iter().flatten()) {
            if is_pipe(path) {
                return None;
            }
            let mut content = Vec::new();
            // One byte more than the maximum, so that a file that is too large is detected.
            let most = MAX_CONFIG_BYTES as u64 + 1;
            File::open(path).ok()?.take(most).read_to_end(&mut content).ok()?;
            (path, content).hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

/// Returns the warnings of a config and of the TLS files it names. `path` is its file.
pub fn config_warnings(config: &Config, path: Option<&Path>) -> Vec<ConfigWarning> {
    let tls = tls::warnings(config, path.and_then(Path::parent));
    config.warnings.iter().cloned().chain(tls).collect()
}

/// Whether the path is neither a file nor a directory, so that reading it may block.
fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// The files of a directory, or the file itself.
fn files(path: &Path) -> Result<Vec<PathBuf>, EnvoyErrors> {
    if path.is_file() { Ok(vec![path.to_owned()]) } else { EnvoyFile::list(path) }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.config.iter().chain(&self.envoy).map(|path| path.display().to_string());
        f.write_str(&all.collect::<Vec<_>>().join(" and "))
    }
}
