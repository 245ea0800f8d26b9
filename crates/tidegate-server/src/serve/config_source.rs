//! The source of policies and settings: a config file, configs of envoyproxy/ratelimit, or both.
//!
//! With both, settings come from the config file. Its policies, which are optional then, precede
//! those of envoyproxy/ratelimit. The configs of envoyproxy/ratelimit are files, or messages of an
//! xDS control plane. They are converted as `tidegate config convert` does.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::unstable::config::envoy::{
    Converted, DomainConfig, EnvoyErrors, EnvoyFile, Listing, Options, convert, convert_domains,
};
use tidegate::unstable::config::{Config, ConfigErrors, ConfigWarning, MAX_CONFIG_BYTES};
use tidegate::unstable::policy::{Policies, PoliciesError};
use tracing::{error, warn};

use super::readiness::Readiness;
use super::settings::ServeArgs;
use crate::connections::tls_warnings;
use crate::envoy_ratelimit::{
    ConfigType, DEFAULT_CONNECTION_AGE, DEFAULT_STORE_TIMEOUT, EnvoySettings, VariableError,
    xds_settings,
};
use crate::xds::XdsSettings;

/// The files that the config is read from.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    config: Option<PathBuf>,
    envoy: Option<PathBuf>,
    /// The control plane that sends configs of envoyproxy/ratelimit in place of files.
    xds: Option<Box<XdsSettings>>,
    /// The configs that the control plane sent last; `None` before the first.
    received: Option<Arc<[DomainConfig]>>,
    options: Options,
    /// The variables of envoyproxy/ratelimit, with `--as-envoy-ratelimit`.
    variables: Option<Arc<EnvoySettings>>,
}

/// Why the config cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigSourceError {
    #[error(transparent)]
    Config(ConfigErrors),
    #[error(transparent)]
    Envoy(EnvoyErrors),
    /// A response of the control plane that cannot be decoded.
    #[error("{0}")]
    Response(String),
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
    /// # Errors
    /// When a variable with a setting of the xDS client is invalid.
    pub fn new(
        args: &ServeArgs,
        variables: Option<Arc<EnvoySettings>>,
    ) -> Result<Self, VariableError> {
        let options = Options {
            algorithm: args.algorithm.unwrap_or_default(),
            merge_domains: args.merge_domains,
            quota_mode: variables.as_ref().is_some_and(|variables| variables.checks.quota_mode),
        };
        let by_flag = args.envoy_xds.as_ref().map(|address| xds_settings(address).map(Box::new));
        let (mut envoy, mut xds) = (args.envoy_config.clone(), by_flag.transpose()?);
        if let (None, None, Some(variables)) = (&envoy, &xds, &variables) {
            match &variables.configs {
                ConfigType::Files(path) => envoy = Some(path.clone()),
                ConfigType::Xds(settings) => xds = Some(settings.clone()),
            }
        }
        let config = args.config.clone();
        Ok(ConfigSource { config, envoy, xds, received: None, options, variables })
    }

    /// The settings of the xDS client, if a control plane sends configs.
    pub fn xds(&self) -> Option<&XdsSettings> {
        self.xds.as_deref()
    }

    /// Whether the limits of the control plane have arrived, if there is one.
    pub fn is_complete(&self) -> bool {
        self.xds.is_none() || self.received.is_some()
    }

    /// Returns a copy of the source that has these configs of the control plane.
    #[must_use]
    pub fn with_received(&self, configs: Vec<DomainConfig>) -> Self {
        ConfigSource { received: Some(configs.into()), ..self.clone() }
    }

    /// The variables of envoyproxy/ratelimit, with `--as-envoy-ratelimit`.
    pub fn variables(&self) -> Option<&EnvoySettings> {
        self.variables.as_deref()
    }

    /// The conditions of readiness.
    pub fn readiness(&self) -> Readiness {
        Readiness::new(self.variables())
    }

    /// The paths and addresses as they were given; `None` if there are none.
    pub fn name(&self) -> Option<String> {
        let paths = [&self.config, &self.envoy].into_iter().flatten();
        let paths = paths.map(|path| path.display().to_string());
        let xds = self.xds.iter().map(|xds| format!("the control plane at {}", xds.address));
        let all: Vec<String> = paths.chain(xds).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }

    /// Whether neither a file nor a control plane was given.
    pub fn is_none(&self) -> bool {
        self.config.is_none() && self.envoy.is_none() && self.xds.is_none()
    }

    /// Loads the first config. The returned flag says whether it has all limits: those of a control
    /// plane arrive later. As envoyproxy/ratelimit, the server also starts if files of limits have
    /// mistakes.
    pub fn load_first(&self) -> Result<(Config, bool), ConfigSourceError> {
        match self.load() {
            Err(ConfigSourceError::Envoy(errors)) if self.variables.is_some() => {
                error!("starting without limits, so that checks fail: {errors}");
                Ok((self.with_variables(self.settings()?), false))
            }
            loaded => loaded.map(|config| (config, self.is_complete())),
        }
    }

    /// Loads the config. Logs features of the envoyproxy/ratelimit files that tidegate does not
    /// support.
    pub fn load(&self) -> Result<Config, ConfigSourceError> {
        self.load_files().map(|config| self.with_variables(config))
    }

    /// Applies the variables of envoyproxy/ratelimit.
    fn with_variables(&self, mut config: Config) -> Config {
        if let Some(variables) = &self.variables {
            variables.apply(&mut config);
        }
        config
    }

    /// Loads the config file without requiring policies.
    fn settings(&self) -> Result<Config, ConfigSourceError> {
        match &self.config {
            Some(path) => Config::load_settings(path).map_err(ConfigSourceError::Config),
            None => {
                let mut config = Config::default();
                config.policies = Policies::default();
                if self.variables.is_some() {
                    config.store_timeout = DEFAULT_STORE_TIMEOUT;
                    config.grpc_max_connection_age = DEFAULT_CONNECTION_AGE;
                }
                Ok(config)
            }
        }
    }

    fn load_files(&self) -> Result<Config, ConfigSourceError> {
        if self.envoy.is_none() && self.xds.is_none() {
            return match &self.config {
                Some(path) => Config::load(path).map_err(ConfigSourceError::Config),
                None => Ok(Config::default()),
            };
        }
        // Converted first, so that an error of the config file is the only one.
        let converted = self.convert().map_err(ConfigSourceError::Envoy)?;
        let settings = self.settings()?;
        for notice in converted.notices() {
            let (file, about) = (notice.file(), notice.about());
            let line = about.line().map(|line| format!("{line}: ")).unwrap_or_default();
            warn!("{file}:{line}{}: {}: {}", about.field(), about.message(), about.help());
        }
        let converted = converted.into_config();
        let mut names = settings.policies.iter().map(|policy| policy.name());
        match names.find(|name| converted.policies.get(name).is_some()) {
            Some(name) => Err(ConfigSourceError::SamePolicy(name.to_owned())),
            None => settings.with_policies_of(converted).map_err(ConfigSourceError::Conflict),
        }
    }

    /// Converts the configs of envoyproxy/ratelimit: those that were received, or the files.
    fn convert(&self) -> Result<Converted, EnvoyErrors> {
        let Some(path) = &self.envoy else {
            return convert_domains(self.received.as_deref().unwrap_or_default(), &self.options);
        };
        if self.variables.is_some() && is_empty(path) {
            warn!(directory = %path.display(), "there are no limits: the directory is empty or does not exist");
            return convert(&[], &self.options);
        }
        let Listing { files, skipped } = files(path)?;
        if !skipped.is_empty() {
            warn!(files = ?skipped, "skipped, because their names do not end in .yaml or .yml");
        }
        let files: Result<Vec<EnvoyFile>, EnvoyErrors> =
            files.iter().map(|path| EnvoyFile::load(path)).collect();
        convert(&files?, &self.options)
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
        let below = listed.files.iter().map(|path| parent(path));
        let all: BTreeSet<PathBuf> =
            config.into_iter().chain(self.envoy.as_ref().map(envoy)).chain(below).collect();
        all.into_iter().collect()
    }

    /// A hash of the content of all files; `None` if one cannot be read.
    pub fn fingerprint(&self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        let envoy = self.envoy.as_deref().map(files).transpose().ok()?;
        for path in self.config.iter().chain(envoy.iter().flat_map(|listed| &listed.files)) {
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
    let tls = tls_warnings(config, path.and_then(Path::parent));
    config.warnings.iter().cloned().chain(tls).collect()
}

/// Whether the path is neither a file nor a directory, so that reading it may block.
fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Whether the path does not exist, or is a directory without files that could be configs.
fn is_empty(path: &Path) -> bool {
    let is_hidden = |name: std::ffi::OsString| name.as_encoded_bytes().starts_with(b".");
    match path.read_dir() {
        Ok(entries) => entries.flatten().all(|entry| is_hidden(entry.file_name())),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// The files of a directory, or the file itself.
fn files(path: &Path) -> Result<Listing, EnvoyErrors> {
    match path.is_file() {
        true => Ok(Listing { files: vec![path.to_owned()], ..Listing::default() }),
        false => EnvoyFile::list(path),
    }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().unwrap_or_default())
    }
}
