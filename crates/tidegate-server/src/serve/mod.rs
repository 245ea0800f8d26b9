//! `tidegate serve`: settings, sockets, reloads, and an orderly end.
//!
//! ```text
//!   args.rs, settings.rs          settings: flag > environment > file > default
//!   unknown_env.rs                warns of misspelt environment variables
//!   file_limits.rs                file descriptors, and how many connections each front may have
//!   listener.rs                   sockets -> TLS (tls.rs) -> connections of any protocol
//!   http_protocol.rs              connections over HTTP -> requests to a front
//!   tracked_stream.rs             records the progress of a connection
//!   paced_stream.rs               bounds the bytes read per poll
//!   connections.rs                open connections, and their deadlines
//!   shared_store.rs               the store that nodes share
//!   config_source.rs, reload.rs   policies from files; SIGHUP and changed files
//!   shutdown.rs                   signals, draining, the end
//!   banner.rs                     what is printed at the start
//! ```

mod args;
mod banner;
mod config_source;
mod connections;
mod error;
mod file_limits;
mod http_protocol;
mod listener;
mod paced_stream;
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
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use self::args::ServeArgs;
pub use self::connections::{Connection, InFlight, Order};
pub use self::error::ServeError;
pub use self::http_protocol::host_error;
pub use self::listener::{Protocol, Stream};
pub use self::tracked_stream::Watched;

use self::banner::Announced;
use self::config_source::Source;
use self::connections::{Connections, TICK};
use self::http_protocol::HttpProtocol;
use self::listener::{Bounds, Listener, bind};
use self::reload::{Environment, Reloaded, Reloader, Started};
use self::settings::{FrontName, Settings, Site};
use self::shutdown::Served;
use crate::access::Secrets;
use crate::admin::{self, Facts, Routed};
use crate::fronts::grpc::GrpcFront;
use crate::fronts::http::HttpFront;
use crate::fronts::resp::RespFront;
use crate::fronts::response_future::Front;
use crate::logs;

/// How often a hundredth of the store is looked through for expired keys, so that
/// the number of tracked keys shown is about true.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Serves until told to stop.
///
/// # Errors
/// When it cannot start.
pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let _logging = logs::start(args.log_format)?;
    unknown_env::warn_of_unknown();
    let source = Source::new(args);
    let mut config = source.load().map_err(ServeError::Config)?;
    let secrets = Secrets::from_env()?;
    let environment = Environment { store: secrets.store.clone(), mask: secrets.mask.clone() };
    config.store = environment.store.clone().unwrap_or(config.store);
    let settings = Settings::new(args, &config, secrets)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::System)?;
    let served = runtime.block_on(serve(args, source, config, settings, environment));
    // A thread that reads a file may hang with its file system; nobody waits for it.
    runtime.shutdown_background();
    served
}

/// `environment` has what holds whatever the config says.
async fn serve(
    args: &ServeArgs,
    source: Source,
    config: Config,
    settings: Settings,
    environment: Environment,
) -> Result<(), ServeError> {
    // Before anything is printed: a signal may come as soon as somebody could know of us.
    let signals = shutdown::Signals::new().map_err(ServeError::System)?;
    let shares = files(&config, &settings).shares()?;
    let clock = Clock::precise();
    let limiter = limiter(&config, clock.clone())?;
    let stats = Arc::new(Stats::new(clock));
    environment.show_keys(&config, &stats);
    let store = shared_store::connect(&config).await?;
    let mut gate = Gate::new(limiter, config.policies.clone(), stats);
    if let Some(store) = &store {
        gate = gate.over(Arc::new(store.clone()), config.nodes);
    }
    let gate = Arc::new(gate);
    let facts = Arc::new(Facts::new(config.max_keys).read_from(source.name()));
    let Settings { http, grpc, resp, admin, exposed } = settings;
    let access = |site: &Option<Site>| site.as_ref().map(|site| site.access.clone());
    let access = |site| access(site).unwrap_or_default();

    let (gate_, facts_) = (|| Arc::clone(&gate), || Arc::clone(&facts));
    let front = HttpFront::new(gate_(), facts_(), config.headers, access(&http));
    let front = Arc::new(front.counting(args.algorithm));
    let calls = GrpcFront::new(gate_(), facts_(), config.headers, access(&grpc));
    let calls = Arc::new(calls.counting(args.algorithm));
    let asking = RespFront::new(gate_(), facts_(), access(&resp));
    let routes = admin::router(gate_(), facts_(), store.clone(), access(&admin));
    let routed = Arc::new(Routed::new(routes, facts_()));
    let http = http.map(Bound::new).transpose()?;
    let grpc = grpc.map(Bound::new).transpose()?;
    let resp = resp.map(Bound::new).transpose()?;
    let admin = admin.map(Bound::new).transpose()?;
    let is_up = store.as_ref().is_none_or(|store| store.stats().up);
    let fronts = [
        (FrontName::Http, http.as_ref()),
        (FrontName::Grpc, grpc.as_ref()),
        (FrontName::Resp, resp.as_ref()),
        (FrontName::Admin, admin.as_ref()),
    ];
    let announced = Announced::new(&config, is_up, &source, fronts);

    let mut served = Served::new(Arc::clone(&facts));
    let many = Bounds { connections: shares.front, age: None };
    let aging = Bounds { age: Some(config.grpc_max_connection_age), ..many };
    let few = Bounds { connections: shares.admin, age: None };
    served.http = http.map(|bound| bound.listen_http(Arc::clone(&front), &facts, many));
    served.grpc = grpc.map(|bound| bound.listen_http(Arc::clone(&calls), &facts, aging));
    served.resp = resp.map(|bound| bound.listen(asking, &facts, many));
    served.admin = admin.map(|bound| bound.listen_http(routed, &facts, few));
    if let Ok(denials) = logs::denials(gate.stats().events()) {
        tokio::spawn(denials);
    }
    tokio::spawn(sweep(Arc::clone(&gate), Arc::clone(&front)));
    if let Some(store) = store {
        tokio::spawn(shared_store::watch(store, config.store.to_string()));
    }
    let started = Started { config, environment };
    let fronts = Reloaded { http: front, grpc: calls };
    let reloader = Reloader::new(source, started, gate, fronts, Arc::clone(&facts));
    tokio::spawn(reloader.run(signals.hangup));

    facts.set_ready(true);
    announced.print(&exposed);
    served.until(signals.stop).await;
    Ok(())
}

/// What needs file descriptors.
fn files(config: &Config, settings: &Settings) -> file_limits::Served {
    let deciding = [&settings.http, &settings.grpc, &settings.resp];
    file_limits::Served {
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

/// A front with its socket.
struct Bound {
    site: Site,
    socket: TcpListener,
}

impl Bound {
    fn new(site: Site) -> Result<Self, ServeError> {
        let (front, address) = (site.front, site.address);
        let socket = bind(address);
        let socket = socket.map_err(|error| ServeError::Bind { front, address, error })?;
        Ok(Bound { site, socket })
    }

    fn listen_http<F: Front>(
        self,
        front: Arc<F>,
        facts: &Arc<Facts>,
        bounds: Bounds,
    ) -> (JoinHandle<()>, Arc<Connections>) {
        let protocol = HttpProtocol::new(front, self.site.front, facts);
        self.listen(protocol, facts, bounds)
    }

    fn listen<P: Protocol>(
        self,
        protocol: P,
        facts: &Arc<Facts>,
        bounds: Bounds,
    ) -> (JoinHandle<()>, Arc<Connections>) {
        facts.set_max_connections(self.site.front, bounds.connections);
        let connections = Arc::new(Connections::new(P::KEEPS_IDLE));
        let listener = Listener {
            socket: self.socket,
            name: self.site.front,
            protocol: Arc::new(protocol),
            tls: self.site.tls,
            facts: Arc::clone(facts),
            connections: Arc::clone(&connections),
            bounds,
        };
        tokio::spawn(watch_over(Arc::clone(&connections)));
        (tokio::spawn(listener.run()), connections)
    }
}

/// Tells connections that have overstayed to close, for ever.
async fn watch_over(connections: Arc<Connections>) {
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
