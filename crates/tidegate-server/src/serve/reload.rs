//! Reloads: on SIGHUP, and when the file is another.
//!
//! What is watched is the *directory*: Kubernetes mounts a config as a symlink
//! into a directory that is itself swapped, and editors replace the file, so
//! the file that was opened once never changes again. What decides is the
//! *content*: an event only says that it is worth looking, and because events get
//! lost (network file systems, full queues) we also look every [`POLL`].

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
use super::settings::needing_restart;
use crate::admin::ServerState;
use crate::fronts::grpc::GrpcFront;
use crate::fronts::http::HttpFront;

/// How often we look without being told.
const POLL: Duration = Duration::from_secs(5);

/// How long after an event we look: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(100);

/// Puts changed configs in force.
pub struct Reloader {
    source: ConfigSource,
    state: State,
}

struct State {
    /// What a reload cannot change.
    started: StartConfig,
    gate: Arc<Gate>,
    fronts: ReloadedFronts,
    server_state: Arc<ServerState>,
    /// Of the content that was last read, good or bad.
    seen: Option<u64>,
}

/// The fronts that a reload changes.
pub struct ReloadedFronts {
    pub http: Arc<HttpFront>,
    pub grpc: Arc<GrpcFront>,
}

/// What the server started with.
pub struct StartConfig {
    pub config: Config,
    pub environment: EnvOverrides,
}

/// Settings that the environment has, whatever the config says.
pub struct EnvOverrides {
    pub store: Option<StoreUrl>,
    pub mask: Option<MaskSecret>,
}

impl EnvOverrides {
    /// Puts in force how keys are shown.
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
        Reloader { source, state: State { started, gate, fronts, server_state, seen } }
    }

    /// Watches for as long as it is polled.
    pub async fn run(self, mut hangup: Signal) {
        let source = self.source;
        if source.is_none() {
            while hangup.recv().await.is_some() {
                info!("SIGHUP: there is no config to reload");
            }
            return;
        }
        // Room for one: all that matters is that something happened.
        let (events, mut happened) = mpsc::channel(1);
        let _watcher = watch(&source.directories(), events);
        let mut state = self.state;
        loop {
            let told = tokio::select! {
                hung_up = hangup.recv() => hung_up.is_some(),
                Some(()) = happened.recv() => {
                    tokio::time::sleep(SETTLE).await;
                    let _ = happened.try_recv();
                    false
                }
                () = tokio::time::sleep(POLL) => false,
            };
            let source = source.clone();
            // Reading and compiling take a while, and a file system may hang.
            let looked = tokio::task::spawn_blocking(move || {
                state.look(&source, told);
                state
            });
            match looked.await {
                Ok(back) => state = back,
                Err(error) => {
                    error!(%error, "reloading has ended");
                    return;
                }
            }
        }
    }
}

impl State {
    /// Reads the files if their content is another, or if told to.
    fn look(&mut self, source: &ConfigSource, told: bool) {
        let now = source.fingerprint();
        if now == self.seen && !told {
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
            let why = format!(
                "`store` cannot change while running (now {now}, in the file {new}): restart, or put \
                 it back"
            );
            error!("the config was not reloaded, the old one stays: {why}");
            self.server_state.record_rejected_config(why);
            return;
        }
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

/// Tells `events` of whatever happens in the directories.
fn watch(directories: &[PathBuf], events: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        // Reading is not a change, and our own reading would never end.
        if !matches!(&event, Ok(event) if event.kind.is_access()) {
            let _ = events.try_send(());
        }
    };
    let watching = notify::recommended_watcher(told).and_then(|mut watcher| {
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
