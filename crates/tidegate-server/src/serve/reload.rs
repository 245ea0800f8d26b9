//! Reloads the config on SIGHUP and when the content of its files changes.
//!
//! The *directory* is watched, not the file. Kubernetes mounts a config as a symlink into a
//! directory that is itself replaced, and editors replace the file, so a file that is opened once
//! never changes. A change of the *content* triggers a reload. File system events only cause the
//! content to be read earlier, and because events can be lost (network file systems, full queues),
//! it is also read every [`POLL`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tidegate::unstable::config::{Config, StoreUrl};
use tidegate::unstable::gate::Gate;
use tidegate::unstable::stats::{MaskSecret, Stats};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use super::config_source::ConfigSource;
use super::readiness::Readiness;
use super::settings::needing_restart;
use crate::admin::ServerState;
use crate::fronts::grpc::GrpcFront;
use crate::fronts::http::HttpFront;

/// How often the files are read without an event.
const POLL: Duration = Duration::from_secs(5);

/// How long after an event the files are read: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(100);

/// Applies changed configs.
pub struct Reloader {
    source: ConfigSource,
    state: ReloadState,
}

struct ReloadState {
    /// The config at the start, for settings that a reload cannot change.
    started: StartConfig,
    gate: Arc<Gate>,
    fronts: ReloadedFronts,
    server_state: Arc<ServerState>,
    readiness: Readiness,
    /// The fingerprint of the content that was last read, valid or not.
    seen: Option<u64>,
}

/// The fronts that a reload changes.
pub struct ReloadedFronts {
    pub http: Arc<HttpFront>,
    pub grpc: Arc<GrpcFront>,
}

/// The config that the server started with.
pub struct StartConfig {
    pub config: Config,
    pub environment: EnvOverrides,
}

/// Settings from the environment, which override the config.
pub struct EnvOverrides {
    pub store: Option<StoreUrl>,
    pub mask: Option<MaskSecret>,
}

impl EnvOverrides {
    /// Applies the settings that control how keys are logged.
    pub fn show_keys(&self, config: &Config, stats: &Stats) {
        let secret = self.mask.as_ref().or(config.mask_secret.as_ref());
        stats.set_log_keys(config.log_keys, secret);
    }
}

impl Reloader {
    pub fn new(
        source: ConfigSource,
        started: StartConfig,
        gate: Arc<Gate>,
        fronts: ReloadedFronts,
        server_state: Arc<ServerState>,
    ) -> Self {
        let seen = source.fingerprint();
        let readiness = source.readiness();
        let state = ReloadState { started, gate, fronts, server_state, readiness, seen };
        Reloader { source, state }
    }

    /// Watches and reloads for as long as the future is polled.
    pub async fn run(self, mut hangup: Signal) {
        let source = self.source;
        if source.is_none() {
            while hangup.recv().await.is_some() {
                info!("SIGHUP: there is no config to reload");
            }
            return;
        }
        // The capacity is one, because events carry no information beyond that something changed.
        let (events, mut happened) = mpsc::channel(1);
        let _watcher = watch(&source.directories(), events);
        let mut state = self.state;
        loop {
            let forced = tokio::select! {
                hung_up = hangup.recv() => hung_up.is_some(),
                Some(()) = happened.recv() => {
                    tokio::time::sleep(SETTLE).await;
                    let _ = happened.try_recv();
                    false
                }
                () = tokio::time::sleep(POLL) => false,
            };
            let source = source.clone();
            // Reading and compiling take a while, and the file system may hang.
            let reloading = tokio::task::spawn_blocking(move || {
                state.reload_if_changed(&source, forced);
                state
            });
            match reloading.await {
                Ok(back) => state = back,
                Err(error) => {
                    error!(%error, "reloading has ended");
                    return;
                }
            }
        }
    }
}

impl ReloadState {
    /// Reloads if the content has changed, or if `forced` is set.
    fn reload_if_changed(&mut self, source: &ConfigSource, forced: bool) {
        let now = source.fingerprint();
        if now == self.seen && !forced {
            return;
        }
        self.seen = now;
        match source.load_again() {
            Ok(config) => self.apply(config),
            Err(errors) => {
                error!("the config was not reloaded, the old one stays: {errors}");
                self.server_state.record_rejected_config(errors.to_string());
            }
        }
    }

    fn apply(&self, config: Config) {
        let started = &self.started;
        let store = started.environment.store.as_ref().unwrap_or(&config.store);
        if *store != started.config.store {
            let (now, new) = (&started.config.store, store);
            let message = format!(
                "`store` cannot change while running (now {now}, in the file {new}): restart, or put \
                 it back"
            );
            error!("the config was not reloaded, the old one stays: {message}");
            self.server_state.record_rejected_config(message);
            return;
        }
        self.readiness.record_config(&self.server_state, Some(&config));
        let fields = needing_restart(&started.config, &config);
        let policies = config.policies.len();
        started.environment.show_keys(&config, self.gate.stats());
        self.gate.reload(config.policies);
        self.gate.set_nodes(config.nodes);
        self.fronts.http.set_forms(config.headers);
        self.fronts.grpc.set_forms(config.headers);
        self.server_state.record_reload();
        info!(policies, "the config was reloaded");
        if !fields.is_empty() {
            let fields = fields.join(", ");
            warn!(fields, "these settings changed too, and need a restart");
        }
    }
}

/// Sends to `events` for every change in the directories.
fn watch(directories: &[PathBuf], events: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let on_event = move |event: notify::Result<notify::Event>| {
        // Read access is not a change, and the reloader's own reads would cause an endless loop.
        if !matches!(&event, Ok(event) if event.kind.is_access()) {
            let _ = events.try_send(());
        }
    };
    let watching = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        for directory in directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            warn!(%error, every = ?POLL, "the config's directory cannot be watched: looking now and then");
            None
        }
    }
}
