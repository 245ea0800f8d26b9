//! `tidegate serve`: settings, start, reloads and shutdown.
//!
//! ```text
//!   settings.rs                   settings: flag > environment > file > default
//!   unknown_settings.rs           warns of misspelt variables, suggests flags for unknown ones
//!   connection_limits.rs          how many connections each front may have, from the file descriptors
//!   store_connection.rs           connects to the store that nodes share; announces this one, logs failures
//!   readiness.rs                  when the server is ready: its config, its store
//!   config_source.rs, reload.rs   policies from files; SIGHUP and changed files
//!   shutdown.rs                   signals, draining, exit
//!   envoy_metrics.rs              the metrics of envoyproxy/ratelimit, served and sent
//!   banner.rs                     the text printed at start, and its command to try
//! ```

mod banner;
mod config_source;
mod connection_limits;
mod envoy_metrics;
mod error;
mod readiness;
mod reload;
mod settings;
mod shutdown;
mod store_connection;
mod unknown_settings;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::redis::RedisStore;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::stats::Stats;
use tidegate::{Clock, Limiter, WhenFull};
use tokio::task::JoinHandle;

pub use self::config_source::config_warnings;
pub use self::error::ServeError;
pub use self::settings::{ServeArgs, address_warnings};

use self::banner::Banner;
use self::config_source::ConfigSource;
use self::connection_limits::{ConnectionLimits, DescriptorUsers};
use self::envoy_metrics::EnvoyExport;
use self::error::FrontAddress;
use self::reload::{EnvOverrides, ReloadedFronts, Reloader, StartConfig};
use self::settings::{FrontSettings, SettingSources, Settings};
use self::shutdown::RunningFronts;
use crate::admin::{self, AdminFront};
use crate::authentication::Secrets;
use crate::connections::{Bounds, Connections, ListenSocket, Listener, MaxAge, Protocol, TICK};
use crate::envoy_ratelimit::EnvoySettings;
use crate::fronts::grpc::GrpcFront;
use crate::fronts::http::HttpFront;
use crate::fronts::resp::RespFront;
use crate::fronts::{Front, HttpProtocol};
use crate::logs::{self, LogThrottle};
use crate::server_state::{FrontName, ServerState};
use crate::web_pages::{PageAddress, PageLinks};

/// How often a hundredth of the store is swept for expired keys, so that the reported number of
/// tracked keys is approximately right.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How long a gRPC connection that has reached its maximum age may take to finish its calls.
/// Decisions take milliseconds, and a health watch can be started again.
const AGE_GRACE: Duration = Duration::from_secs(20);

/// Serves until a signal stops the server.
///
/// # Errors
/// When the server cannot start.
pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let mut args = args.clone();
    let variables = args.as_envoy_ratelimit.then(EnvoySettings::from_env).transpose()?;
    let variables = variables.map(Arc::new);
    if let Some(variables) = &variables {
        variables.complete(&mut args);
    }
    let args = &args;
    let default_filter = variables.as_ref().map_or(logs::DEFAULT_FILTER, |one| one.log_filter);
    let _logging = logs::start(args.log_format.unwrap_or_default(), default_filter)?;
    unknown_settings::warn_of_unknown();
    unknown_settings::warn_of_envoy(variables.as_deref());
    let source = ConfigSource::new(args, variables)?;
    let (mut config, is_loaded) = source.load_first().map_err(ServeError::Config)?;
    let secrets = Secrets::from_env()?;
    let environment = EnvOverrides { store: secrets.store.clone(), mask: secrets.mask.clone() };
    config.store = environment.store.clone().unwrap_or(config.store);
    let sources = SettingSources { args, variables: source.variables(), config: &config };
    let mut settings = Settings::new(sources, &secrets)?;
    if source.variables().is_some() {
        warn_of_open_fronts(&std::mem::take(&mut settings.exposed));
    }
    for front in &settings.guessable {
        tracing::warn!(
            front = front.name(),
            "a secret of {} can be guessed: use at least 16 bytes, e.g. of `openssl rand -hex 32`",
            settings::secret_of(*front)
        );
    }
    // The secret of the admin front cannot contain a space.
    if secrets.tokens.include_scheme() {
        tracing::warn!(
            "a secret of TIDEGATE_TOKENS begins with `Bearer `, which is not part of it: callers \
             send `Authorization: Bearer SECRET`, so set only SECRET"
        );
    }
    source.log_warnings(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::System)?;
    let result = runtime.block_on(serve(args, source, (config, is_loaded), settings, environment));
    // A thread that reads a file may hang with its file system, so it is not joined.
    runtime.shutdown_background();
    result
}

/// Starts all fronts and serves until a signal arrives. `environment` overrides the config, also
/// after reloads.
async fn serve(
    args: &ServeArgs,
    source: ConfigSource,
    (config, is_loaded): (Config, bool),
    mut settings: Settings,
    environment: EnvOverrides,
) -> Result<(), ServeError> {
    // Installed before anything is printed: a signal may arrive as soon as another process can know
    // of the server.
    let signals = shutdown::Signals::new().map_err(ServeError::System)?;
    let mut export = EnvoyExport::new(source.variables())?;
    let limits = descriptor_users(&config, &settings, &export).limits()?;
    let server = Server::new(&config, &source, &environment).await?;
    let first_config = is_loaded.then_some(&config);
    source.readiness().record_config(&server.state, first_config);
    export.record_first_config(first_config, &source);
    let fronts = server.front_handlers(args, &config, &source, &settings, &export);
    let exposed = std::mem::take(&mut settings.exposed);
    let sockets = Sockets::bind(settings)?;
    server.state.set_page_links(sockets.page_links());
    let banner = Banner::new(&config, server.is_store_up(), &source, sockets.named());

    let grace = source.variables().map_or(AGE_GRACE, |one| one.grpc_max_connection_age_grace);
    let age = MaxAge { age: config.grpc_max_connection_age, grace };
    let running = sockets.listen(&fronts, &server.state, limits, age, &mut export);
    server.spawn_tasks(&config, &source, &fronts.http);
    let reloaded =
        ReloadedFronts { http: fronts.http, grpc: fronts.grpc, metrics: export.metrics.clone() };
    let started = StartConfig { config, args: args.clone(), environment };
    let reloader = Reloader::new(source, started, server.gate, reloaded, Arc::clone(&server.state));
    reloader.start(signals.hangup).map_err(ServeError::System)?;

    let statsd = export.start_statsd();
    server.state.set_ready(true);
    banner.print(&exposed);
    running.until(signals.stop).await;
    if let Some(store) = server.store {
        store.give_back_leases().await;
        store.withdraw().await;
    }
    if let Some(statsd) = statsd {
        statsd.finish().await;
    }
    Ok(())
}

/// The parts that all fronts share.
struct Server {
    gate: Arc<Gate>,
    /// The store that nodes share; `None` for memory.
    store: Option<RedisStore>,
    state: Arc<ServerState>,
}

/// The fronts, without their sockets.
struct FrontHandlers {
    http: Arc<HttpFront>,
    grpc: Arc<GrpcFront>,
    resp: Arc<RespFront>,
    admin: Arc<AdminFront>,
}

impl Server {
    /// Connects to the store and creates the gate.
    async fn new(
        config: &Config,
        source: &ConfigSource,
        environment: &EnvOverrides,
    ) -> Result<Self, ServeError> {
        let clock = Clock::precise();
        let limiter = limiter(config, clock.clone())?;
        let stats = Arc::new(Stats::new(clock));
        environment.show_keys(config, &stats);
        let variables = source.variables().and_then(|variables| variables.store.as_ref());
        let is_by_variables = environment.store.is_none() && variables.is_some();
        let store = store_connection::connect(config, is_by_variables).await?;
        let mut gate = Gate::new(limiter, config.policies.clone(), stats);
        if let Some(store) = &store {
            gate = gate.with_shared_store(Arc::new(store.clone()), config.nodes);
        }
        let state = Arc::new(ServerState::new(config.max_keys).read_from(source.name()));
        state.set_fingerprint(admin::fingerprint(config));
        Ok(Server { gate: Arc::new(gate), store, state })
    }

    fn is_store_up(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.stats().up)
    }

    fn front_handlers(
        &self,
        args: &ServeArgs,
        config: &Config,
        source: &ConfigSource,
        settings: &Settings,
        export: &EnvoyExport,
    ) -> FrontHandlers {
        let (gate, state) = (|| Arc::clone(&self.gate), || Arc::clone(&self.state));
        let access = |front: &Option<FrontSettings>| {
            front.as_ref().map(|front| front.access.clone()).unwrap_or_default()
        };
        let algorithm = args.algorithm.unwrap_or_default();
        let checks = || source.variables().map(|variables| variables.checks.clone());
        let http = HttpFront::new(gate(), state(), config.headers, access(&settings.http))
            .with_algorithm(algorithm)
            .with_envoy_ratelimit(checks())
            .with_metrics(export.metrics.clone());
        let grpc = GrpcFront::new(gate(), state(), config.headers, access(&settings.grpc))
            .with_algorithm(algorithm)
            .with_envoy_ratelimit(checks())
            .with_metrics(export.metrics.clone());
        let resp = RespFront::new(gate(), state(), access(&settings.resp));
        let routes = admin::router(gate(), state(), self.store.clone(), access(&settings.admin));
        FrontHandlers {
            http: Arc::new(http),
            grpc: Arc::new(grpc),
            resp: Arc::new(resp),
            admin: Arc::new(AdminFront::new(routes, state())),
        }
    }

    /// Starts the tasks that run beside the fronts until the process ends.
    fn spawn_tasks(&self, config: &Config, source: &ConfigSource, http: &Arc<HttpFront>) {
        if let Ok(denials) = logs::denials(self.gate.stats().events()) {
            tokio::spawn(denials);
        }
        tokio::spawn(sweep(Arc::clone(&self.gate), Arc::clone(http), config.when_full));
        if let Some(store) = &self.store {
            source.readiness().follow_store(store.clone(), &self.state);
            let (name, state) = (config.store.to_string(), Arc::clone(&self.state));
            tokio::spawn(store_connection::watch(store.clone(), name, state));
        }
    }
}

/// Warns once of all fronts that accept every caller, as those of envoyproxy/ratelimit do.
fn warn_of_open_fronts(exposed: &[FrontName]) {
    if !exposed.is_empty() {
        let fronts: Vec<&str> = exposed.iter().map(|front| front.name()).collect();
        tracing::warn!(
            fronts = fronts.join(", "),
            "every host that can reach these fronts may use them, as with envoyproxy/ratelimit; set \
             TIDEGATE_TOKENS and TIDEGATE_ADMIN_TOKEN, or HOST, GRPC_HOST and DEBUG_HOST"
        );
    }
}

/// The users of file descriptors under these settings. The page for Prometheus takes its part of
/// those of the admin front.
fn descriptor_users(config: &Config, settings: &Settings, export: &EnvoyExport) -> DescriptorUsers {
    let deciding = [&settings.http, &settings.grpc, &settings.resp];
    DescriptorUsers {
        fronts: deciding.into_iter().flatten().count(),
        admin: settings.admin.is_some() || export.serves_page(),
        store: config.store.redis().is_some(),
    }
}

fn limiter(config: &Config, clock: Clock) -> Result<Limiter, ServeError> {
    let builder = Limiter::builder()
        .max_keys(config.max_keys)
        .max_log_entries(config.max_log_entries)
        .max_ids(config.max_ids)
        .when_full(config.when_full)
        .clock(clock);
    Ok(builder.build()?)
}

/// The sockets of all fronts; `None` for a front that is off.
struct Sockets {
    http: Option<BoundFront>,
    grpc: Option<BoundFront>,
    resp: Option<BoundFront>,
    admin: Option<BoundFront>,
}

impl Sockets {
    fn bind(settings: Settings) -> Result<Self, ServeError> {
        let mut bound = Vec::new();
        let mut bind = |front: Option<FrontSettings>| {
            let front = front.map(|settings| BoundFront::new(settings, &bound)).transpose()?;
            bound.extend(front.as_ref().map(BoundFront::address));
            Ok::<_, ServeError>(front)
        };
        Ok(Sockets {
            http: bind(settings.http)?,
            grpc: bind(settings.grpc)?,
            resp: bind(settings.resp)?,
            admin: bind(settings.admin)?,
        })
    }

    fn named(&self) -> [(FrontName, Option<&BoundFront>); 4] {
        [
            (FrontName::Http, self.http.as_ref()),
            (FrontName::Grpc, self.grpc.as_ref()),
            (FrontName::Resp, self.resp.as_ref()),
            (FrontName::Admin, self.admin.as_ref()),
        ]
    }

    fn page_links(&self) -> PageLinks {
        PageLinks {
            http: self.http.as_ref().and_then(BoundFront::page_address),
            admin: self.admin.as_ref().and_then(BoundFront::page_address),
        }
    }

    /// Accepts connections to all fronts. `grpc_age` is the maximum age of those to the gRPC front.
    fn listen(
        self,
        fronts: &FrontHandlers,
        state: &Arc<ServerState>,
        limits: ConnectionLimits,
        grpc_age: MaxAge,
        export: &mut EnvoyExport,
    ) -> RunningFronts {
        let many = Bounds { connections: limits.front, age: None };
        let aging = Bounds { age: Some(grpc_age), ..many };
        let (of_page, of_admin) = export.divide(Bounds { connections: limits.admin, age: None });
        let FrontHandlers { http, grpc, resp, admin } = fronts;
        let mut running = RunningFronts::new(Arc::clone(state));
        running.http = self.http.map(|bound| bound.listen_http(Arc::clone(http), state, many));
        running.grpc = self.grpc.map(|bound| bound.listen_http(Arc::clone(grpc), state, aging));
        running.resp = self.resp.map(|bound| bound.listen(Arc::clone(resp), state, many));
        running.prometheus = export.listen(state, of_page);
        running.admin =
            self.admin.map(|bound| bound.listen_http(Arc::clone(admin), state, of_admin));
        running
    }
}

/// A front and its bound socket.
struct BoundFront {
    settings: FrontSettings,
    socket: ListenSocket,
}

impl BoundFront {
    /// Binds the socket of a front. `bound` are the fronts that are already bound: one of them may
    /// be the reason that the address is in use.
    fn new(settings: FrontSettings, bound: &[FrontAddress]) -> Result<Self, ServeError> {
        match ListenSocket::bind(&settings.address) {
            Ok(socket) => Ok(BoundFront { settings, socket }),
            Err(error) => {
                let FrontSettings { front, address, setting, .. } = settings;
                let second = FrontAddress { front, address, setting };
                let own = bound.iter().find(|first| first.address.overlaps(&second.address));
                match own.filter(|_| error.kind() == io::ErrorKind::AddrInUse) {
                    Some(first) => {
                        Err(ServeError::SameAddress { fronts: Box::new([first.clone(), second]) })
                    }
                    None => Err(ServeError::Bind { bound: second, error }),
                }
            }
        }
    }

    fn address(&self) -> FrontAddress {
        let FrontSettings { front, address, setting, .. } = &self.settings;
        FrontAddress { front: *front, address: address.clone(), setting: setting.clone() }
    }

    fn page_address(&self) -> Option<PageAddress> {
        let is_tls = self.settings.tls.is_some();
        self.socket.tcp_address().map(|address| PageAddress { address, is_tls })
    }

    fn listen_http<F: Front>(
        self,
        front: Arc<F>,
        server_state: &Arc<ServerState>,
        bounds: Bounds,
    ) -> (JoinHandle<()>, Arc<Connections>) {
        let protocol = HttpProtocol::new(front, self.settings.front, server_state);
        self.listen(Arc::new(protocol), server_state, bounds)
    }

    fn listen<P: Protocol>(
        self,
        protocol: Arc<P>,
        server_state: &Arc<ServerState>,
        bounds: Bounds,
    ) -> (JoinHandle<()>, Arc<Connections>) {
        server_state.set_max_connections(self.settings.front, bounds.connections);
        let connections = Arc::new(Connections::new(P::KEEPS_IDLE));
        let listener = Listener {
            socket: self.socket,
            name: self.settings.front,
            protocol,
            tls: self.settings.tls,
            server_state: Arc::clone(server_state),
            connections: Arc::clone(&connections),
            bounds,
        };
        tokio::spawn(reap_idle(Arc::clone(&connections)));
        if let Some(tls) = &listener.tls {
            tokio::spawn(Arc::clone(tls).follow());
        }
        (tokio::spawn(listener.run()), connections)
    }
}

/// Commands connections without progress to close. Never returns.
async fn reap_idle(connections: Arc<Connections>) {
    loop {
        tokio::time::sleep(TICK).await;
        connections.sweep();
    }
}

/// Sweeps the stores for expired keys, and warns if new keys found no room. Never returns.
async fn sweep(gate: Arc<Gate>, front: Arc<HttpFront>, when_full: WhenFull) {
    let treatment = match when_full {
        WhenFull::Overflow => "share one count for each limit",
        WhenFull::Deny => "are denied",
        WhenFull::Allow => "are allowed and not counted",
    };
    let (mut overflowed, warnings) = (0, LogThrottle::default());
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        gate.limiter().sweep();
        front.sweep();
        let before = std::mem::replace(&mut overflowed, gate.limiter().stats().overflowed);
        if overflowed > before && warnings.should_log(Instant::now()).is_some() {
            tracing::warn!(
                decisions = overflowed - before,
                "the memory store is full: new keys {treatment}; raise `max_keys` or, for logs \
                 and permits, `max_log_entries`"
            );
        }
    }
}
