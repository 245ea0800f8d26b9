//! `tidegate serve`: settings, sockets, reloads and shutdown.
//!
//! ```text
//!   args.rs, settings.rs          settings: flag > environment > file > default
//!   unknown_env.rs                warns of misspelt environment variables
//!   file_limits.rs                file descriptors, and how many connections each front may have
//!   listener.rs                   sockets -> TLS (tls.rs, client_name.rs) -> connections of any protocol
//!   http_protocol.rs              connections over HTTP -> requests to a front
//!   tracked_stream.rs             records the progress of a connection
//!   paced_stream.rs               bounds the bytes read per poll
//!   connections.rs                open connections, and their deadlines
//!   shared_store.rs               the store that nodes share
//!   config_source.rs, reload.rs   policies from files; SIGHUP and changed files
//!   readiness.rs                  whether a config is loaded and the store is available
//!   shutdown.rs                   signals, draining, exit
//!   envoy_metrics.rs              the metrics of envoyproxy/ratelimit, served and sent
//!   banner.rs, example.rs         the text printed at start, and its command to try
//! ```

mod args;
mod banner;
mod client_name;
mod config_source;
mod connections;
mod envoy_metrics;
mod error;
mod example;
mod file_limits;
mod http_protocol;
mod listener;
mod paced_stream;
mod readiness;
mod reload;
mod settings;
mod shared_store;
mod shutdown;
mod tls;
mod tracked_stream;
mod unknown_env;

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::config::Config;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::stats::Stats;
use tidegate::{Clock, Limiter};
use tokio::task::JoinHandle;

pub use self::args::{ListenAddr, ServeArgs};
pub use self::config_source::config_warnings;
pub use self::connections::{ConnCommand, ConnectionProgress, InFlight};
pub use self::error::ServeError;
pub use self::http_protocol::host_error;
pub use self::listener::{Protocol, Stream};
pub use self::tracked_stream::TrackedStream;

use self::banner::Banner;
use self::config_source::ConfigSource;
use self::connections::{Connections, MaxAge, TICK};
use self::envoy_metrics::EnvoyExport;
use self::http_protocol::HttpProtocol;
use self::listener::{Bounds, ListenSocket, Listener};
use self::reload::{EnvOverrides, ReloadedFronts, Reloader, StartConfig};
use self::settings::{FrontName, FrontSettings, Settings};
use self::shutdown::RunningFronts;
use crate::access::Secrets;
use crate::admin::{self, AdminFront, ServerState};
use crate::envoy_ratelimit::EnvoySettings;
use crate::fronts::grpc::GrpcFront;
use crate::fronts::http::HttpFront;
use crate::fronts::resp::RespFront;
use crate::fronts::response_future::Front;
use crate::logs;
use crate::page_links::{PageAddress, PageLinks};

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
    let _logging = logs::start(args.log_format, default_filter)?;
    unknown_env::warn_of_unknown();
    unknown_env::warn_of_envoy(variables.as_deref());
    let source = ConfigSource::new(args, variables)?;
    let (mut config, is_loaded) = source.load_first().map_err(ServeError::Config)?;
    let secrets = Secrets::from_env()?;
    let environment = EnvOverrides { store: secrets.store.clone(), mask: secrets.mask.clone() };
    config.store = environment.store.clone().unwrap_or(config.store);
    let mut settings = Settings::new(args, &config, secrets)?;
    if source.variables().is_some() {
        warn_of_open_fronts(&std::mem::take(&mut settings.exposed));
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
    settings: Settings,
    environment: EnvOverrides,
) -> Result<(), ServeError> {
    // Installed before anything is printed: a signal may arrive as soon as another process can know
    // of the server.
    let signals = shutdown::Signals::new().map_err(ServeError::System)?;
    let mut export = EnvoyExport::new(source.variables())?;
    let users = files(&config, &settings);
    let admin = users.admin || export.serves_page();
    let limits = file_limits::DescriptorUsers { admin, ..users }.limits()?;
    let clock = Clock::precise();
    let limiter = limiter(&config, clock.clone())?;
    let stats = Arc::new(Stats::new(clock));
    environment.show_keys(&config, &stats);
    let store = shared_store::connect(&config).await?;
    let mut gate = Gate::new(limiter, config.policies.clone(), stats);
    if let Some(store) = &store {
        gate = gate.with_shared_store(Arc::new(store.clone()), config.nodes);
    }
    let gate = Arc::new(gate);
    let server_state = Arc::new(ServerState::new(config.max_keys).read_from(source.name()));
    let readiness = source.readiness();
    readiness.record_config(&server_state, is_loaded.then_some(&config));
    export.record_first_config(is_loaded.then_some(&config), &source);
    let algorithm = args.algorithm.unwrap_or_default();
    let Settings { http, grpc, resp, admin, exposed } = settings;
    let access = |settings: &Option<FrontSettings>| {
        settings.as_ref().map(|settings| settings.access.clone())
    };
    let access = |settings| access(settings).unwrap_or_default();

    let (clone_gate, clone_state) = (|| Arc::clone(&gate), || Arc::clone(&server_state));
    let http_front = HttpFront::new(clone_gate(), clone_state(), config.headers, access(&http));
    let replies = || source.variables().map(|variables| variables.replies.clone());
    let http_front = http_front.with_algorithm(algorithm).with_reference(replies());
    let http_front = http_front.with_metrics(export.metrics.clone());
    let http_front = Arc::new(http_front);
    let grpc_front = GrpcFront::new(clone_gate(), clone_state(), config.headers, access(&grpc));
    let grpc_front = grpc_front.with_algorithm(algorithm).with_reference(replies());
    let grpc_front = grpc_front.with_metrics(export.metrics.clone());
    let grpc_front = Arc::new(grpc_front);
    let resp_front = RespFront::new(clone_gate(), clone_state(), access(&resp));
    let routes = admin::router(clone_gate(), clone_state(), store.clone(), access(&admin));
    let admin_front = Arc::new(AdminFront::new(routes, clone_state()));
    let http = http.map(BoundFront::new).transpose()?;
    let grpc = grpc.map(BoundFront::new).transpose()?;
    let resp = resp.map(BoundFront::new).transpose()?;
    let admin = admin.map(BoundFront::new).transpose()?;
    let is_up = store.as_ref().is_none_or(|store| store.stats().up);
    let fronts = [
        (FrontName::Http, http.as_ref()),
        (FrontName::Grpc, grpc.as_ref()),
        (FrontName::Resp, resp.as_ref()),
        (FrontName::Admin, admin.as_ref()),
    ];
    server_state.set_page_links(PageLinks {
        http: http.as_ref().and_then(BoundFront::page_address),
        admin: admin.as_ref().and_then(BoundFront::page_address),
    });
    let banner = Banner::new(&config, is_up, &source, fronts);

    let mut running = RunningFronts::new(Arc::clone(&server_state));
    let many = Bounds { connections: limits.front, age: None };
    let grace = source.variables().map_or(AGE_GRACE, |one| one.grpc_max_connection_age_grace);
    let age = MaxAge { age: config.grpc_max_connection_age, grace };
    let aging = Bounds { age: Some(age), ..many };
    let few = Bounds { connections: limits.admin, age: None };
    let (few_for_page, few) = export.divide(few);
    running.http =
        http.map(|bound| bound.listen_http(Arc::clone(&http_front), &server_state, many));
    running.grpc =
        grpc.map(|bound| bound.listen_http(Arc::clone(&grpc_front), &server_state, aging));
    running.resp = resp.map(|bound| bound.listen(resp_front, &server_state, many));
    running.prometheus = export.listen(&server_state, few_for_page);
    running.admin = admin.map(|bound| bound.listen_http(admin_front, &server_state, few));
    if let Ok(denials) = logs::denials(gate.stats().events()) {
        tokio::spawn(denials);
    }
    tokio::spawn(sweep(Arc::clone(&gate), Arc::clone(&http_front)));
    if let Some(store) = store {
        readiness.follow_store(store.clone(), &server_state);
        tokio::spawn(shared_store::watch(store, config.store.to_string()));
    }
    let started = StartConfig { config, environment };
    let fronts =
        ReloadedFronts { http: http_front, grpc: grpc_front, metrics: export.metrics.clone() };
    let reloader = Reloader::new(source, started, gate, fronts, Arc::clone(&server_state));
    tokio::spawn(reloader.run(signals.hangup));

    let statsd = export.start_statsd();
    server_state.set_ready(true);
    banner.print(&exposed);
    running.until(signals.stop).await;
    if let Some(statsd) = statsd {
        statsd.finish().await;
    }
    Ok(())
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

/// The users of file descriptors under these settings.
fn files(config: &Config, settings: &Settings) -> file_limits::DescriptorUsers {
    let deciding = [&settings.http, &settings.grpc, &settings.resp];
    file_limits::DescriptorUsers {
        fronts: deciding.into_iter().flatten().count(),
        admin: settings.admin.is_some(),
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

/// A front and its bound socket.
struct BoundFront {
    settings: FrontSettings,
    socket: ListenSocket,
}

impl BoundFront {
    fn new(settings: FrontSettings) -> Result<Self, ServeError> {
        match ListenSocket::bind(&settings.address) {
            Ok(socket) => Ok(BoundFront { settings, socket }),
            Err(error) => {
                let FrontSettings { front, address, .. } = settings;
                Err(ServeError::Bind { front, address, error })
            }
        }
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
        self.listen(protocol, server_state, bounds)
    }

    fn listen<P: Protocol>(
        self,
        protocol: P,
        server_state: &Arc<ServerState>,
        bounds: Bounds,
    ) -> (JoinHandle<()>, Arc<Connections>) {
        server_state.set_max_connections(self.settings.front, bounds.connections);
        let connections = Arc::new(Connections::new(P::KEEPS_IDLE));
        let listener = Listener {
            socket: self.socket,
            name: self.settings.front,
            protocol: Arc::new(protocol),
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

/// Commands connections past a deadline to close. Never returns.
async fn reap_idle(connections: Arc<Connections>) {
    loop {
        tokio::time::sleep(TICK).await;
        connections.sweep();
    }
}

async fn sweep(gate: Arc<Gate>, front: Arc<HttpFront>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        gate.limiter().sweep();
        front.sweep();
    }
}
