//! Reloads the config on SIGHUP, when the content of its files changes, and when a control plane
//! sends configs.
//!
//! The *directory* is watched, not the file. Kubernetes mounts a config as a symlink into a
//! directory that is itself replaced, and editors replace the file, so a file that is opened once
//! never changes. A change of the *content* triggers a reload. File system events only cause the
//! content to be read earlier, and because events can be lost (network file systems, full queues),
//! it is also read every [`POLL`].
//!
//! A background thread reads, decodes, converts and frees configs. A large config keeps it busy for
//! tens of milliseconds.

use std::io;
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

use super::config_source::{ConfigSource, ConfigSourceError};
use super::readiness::Readiness;
use super::settings::{ServeArgs, needing_restart};
use crate::admin;
use crate::background;
use crate::envoy_ratelimit::EnvoyMetrics;
use crate::fronts::grpc::GrpcFront;
use crate::fronts::http::HttpFront;
use crate::server_state::ServerState;
use crate::xds::{self, Update};

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
    /// The policies that the last reload replaced. A check may still use them. They are freed
    /// later, because freeing thousands of policies takes milliseconds.
    retired: Vec<Retired>,
}

/// Something that is only kept to be freed.
type Retired = Box<dyn Send>;

/// The fronts that a reload changes.
pub struct ReloadedFronts {
    pub http: Arc<HttpFront>,
    pub grpc: Arc<GrpcFront>,
    /// The metrics of envoyproxy/ratelimit.
    pub metrics: Option<Arc<EnvoyMetrics>>,
}

/// The config that the server started with.
pub struct StartConfig {
    pub config: Config,
    /// The flags and variables, which override the config.
    pub args: ServeArgs,
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
        let retired = Vec::new();
        let state = ReloadState { started, gate, fronts, server_state, readiness, seen, retired };
        Reloader { source, state }
    }

    /// Starts to watch and to reload. The thread that reloads may hang with the file system, so
    /// nothing waits for it to end.
    ///
    /// # Errors
    /// When the operating system refuses to start a thread.
    pub fn start(self, hangup: Signal) -> io::Result<()> {
        let Reloader { mut source, mut state } = self;
        let (events, mut received) = mpsc::channel(1);
        tokio::spawn(send_events(source.clone(), hangup, events));
        background::spawn("reload", move || {
            while let Some(event) = received.blocking_recv() {
                source = state.handle(source, event);
            }
        })
    }
}

/// Sends every reason to reload.
async fn send_events(source: ConfigSource, mut hangup: Signal, events: mpsc::Sender<Event>) {
    if source.is_none() {
        while hangup.recv().await.is_some() {
            info!("SIGHUP: there is no config to reload");
        }
        return;
    }
    // The capacity is one, because changes carry no information beyond that something changed.
    let (changes, mut changed) = mpsc::channel(1);
    let _watcher = watch(&source.directories(), changes);
    let mut updates = follow_control_plane(&source);
    loop {
        let event = tokio::select! {
            hung_up = hangup.recv() => Event::Check { forced: hung_up.is_some() },
            Some(()) = changed.recv() => {
                tokio::time::sleep(SETTLE).await;
                let _ = changed.try_recv();
                Event::Check { forced: false }
            }
            Some(update) = updates.recv() => Event::Received(update),
            () = tokio::time::sleep(POLL) => Event::Check { forced: false },
        };
        if events.send(event).await.is_err() {
            error!("reloading has ended");
            return;
        }
    }
}

/// A reason to reload.
enum Event {
    /// The files may have changed; `forced` if they are to be loaded even if they have not.
    Check { forced: bool },
    /// The control plane sent configs.
    Received(Update),
}

/// Starts the xDS client, if a control plane sends configs. Returns its updates.
fn follow_control_plane(source: &ConfigSource) -> mpsc::Receiver<Update> {
    let (sender, updates) = mpsc::channel(1);
    if let Some(settings) = source.xds() {
        tokio::spawn(xds::run(settings.clone(), sender));
    }
    updates
}

impl ReloadState {
    /// Reloads as the event requires. Returns the source with the configs in use.
    fn handle(&mut self, source: ConfigSource, event: Event) -> ConfigSource {
        // Freed when this returns, after the control plane has its acknowledgement.
        let _retired = std::mem::take(&mut self.retired);
        match event {
            Event::Check { forced } => {
                self.reload_if_changed(&source, forced);
                source
            }
            Event::Received(update) => {
                let received = match update.decode() {
                    Ok(configs) => source.with_received(configs),
                    Err(reason) => {
                        let rejected = Err(ConfigSourceError::Response(reason));
                        let _ = update.result.send(self.reload(&source, rejected));
                        return source;
                    }
                };
                let loaded = received.load_again();
                // Only the config file is at fault. The control plane does not send its configs
                // again when the file is repaired, so they are kept until then.
                let is_kept = matches!(loaded, Err(ConfigSourceError::Config(_)));
                let reloaded = self.reload(&received, loaded);
                let is_kept = is_kept || reloaded.is_ok();
                // The client ends only with the process.
                let _ = update.result.send(reloaded);
                if is_kept { received } else { source }
            }
        }
    }

    /// Reloads if the content has changed, or if `forced` is set.
    fn reload_if_changed(&mut self, source: &ConfigSource, forced: bool) {
        let now = source.fingerprint();
        if now == self.seen && !forced {
            return;
        }
        self.seen = now;
        let loaded = source.load_again().or_else(|_| {
            // An editor may have emptied the file and not yet written it.
            std::thread::sleep(SETTLE);
            source.load_again()
        });
        let _ = self.reload(source, loaded);
    }

    /// Applies a config that was loaded, or records why the old one stays.
    fn reload(
        &mut self,
        source: &ConfigSource,
        loaded: Result<Config, ConfigSourceError>,
    ) -> Result<(), String> {
        let loaded = loaded.map_err(|errors| errors.to_string());
        let is_complete = source.is_complete();
        let reloaded = loaded.and_then(|config| {
            source.log_warnings(&config);
            self.apply(config, is_complete)
        });
        if let Err(errors) = &reloaded {
            // It is logged last: metrics that are read after the log line include it.
            self.server_state.record_rejected_config(errors.clone());
            if let Some(metrics) = &self.fronts.metrics {
                metrics.count_rejected_config();
            }
            error!("the config was not reloaded, the old one stays: {errors}");
        }
        reloaded
    }

    /// Applies a config. `is_complete` is false if the limits of a control plane are missing yet.
    fn apply(&mut self, config: Config, is_complete: bool) -> Result<(), String> {
        let started = &self.started;
        let store = started.environment.store.as_ref().unwrap_or(&config.store);
        if *store != started.config.store {
            let (now, new) = (&started.config.store, store);
            return Err(format!(
                "`store` cannot change while running (now {now}, in the file {new}): restart, or put \
                 it back"
            ));
        }
        self.readiness.record_config(&self.server_state, is_complete.then_some(&config));
        let fields = needing_restart(&started.config, &config, &started.args);
        let (policies, fingerprint) = (config.policies.len(), admin::fingerprint(&config));
        started.environment.show_keys(&config, self.gate.stats());
        if let Some(metrics) = &self.fronts.metrics {
            self.retired.push(Box::new(metrics.set_policies(&config.policies)));
        }
        self.retired.push(Box::new(self.gate.reload(config.policies)));
        self.gate.set_nodes(config.nodes);
        self.fronts.http.set_forms(config.headers);
        self.fronts.grpc.set_forms(config.headers);
        self.server_state.set_fingerprint(fingerprint);
        self.server_state.record_reload();
        info!(policies, "the config was reloaded");
        if !fields.is_empty() {
            let fields = fields.join(", ");
            warn!(fields, "these settings changed too, and need a restart");
        }
        Ok(())
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
