//! The metrics of envoyproxy/ratelimit: the socket for Prometheus and the task that sends to
//! statsd.

use std::sync::Arc;

use axum::Router;
use tidegate::unstable::config::Config;
use tokio::task::JoinHandle;
use tracing::info;

use super::BoundFront;
use super::config_source::ConfigSource;
use super::error::ServeError;
use super::settings::FrontSettings;
use super::shutdown::RunningFront;
use crate::admin::AdminFront;
use crate::authentication::Access;
use crate::connections::{Bounds, ListenAddr, ListenSocket};
use crate::envoy_ratelimit::{EnvoyMetrics, EnvoySettings, PrometheusSettings, Statsd, router};
use crate::server_state::{FrontName, ServerState};

/// The metrics, and where they go. Empty without `--as-envoy-ratelimit`.
#[derive(Default)]
pub struct EnvoyExport {
    pub metrics: Option<Arc<EnvoyMetrics>>,
    page: Option<(BoundFront, Router)>,
    statsd: Option<Arc<Statsd>>,
}

impl EnvoyExport {
    /// Creates the metrics, and binds the address for Prometheus.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn new(variables: Option<&EnvoySettings>) -> Result<Self, ServeError> {
        let settings = variables.and_then(|one| Some((one, one.metrics.clone()?)));
        let Some((variables, settings)) = settings else { return Ok(EnvoyExport::default()) };
        let shadow_mode = variables.checks.shadow_mode;
        let metrics = Arc::new(EnvoyMetrics::new(settings.near_limit_ratio, shadow_mode));
        let page = |PrometheusSettings { address, path }| {
            let socket = ListenSocket::bind(&ListenAddr::At(address))
                .map_err(|error| ServeError::BindPrometheus { address, error })?;
            let address = socket.tcp_address().unwrap_or(address);
            info!(%address, path, "serving metrics for Prometheus");
            Ok::<_, ServeError>((bound(socket, address), router(Arc::clone(&metrics), path)))
        };
        let page = settings.prometheus.map(page).transpose()?;
        let statsd = |settings| Arc::new(Statsd::new(settings, Arc::clone(&metrics)));
        Ok(EnvoyExport { page, statsd: settings.statsd.map(statsd), metrics: Some(metrics) })
    }

    /// Counts the first config; `None` if it was not loaded.
    pub fn record_first_config(&self, config: Option<&Config>, source: &ConfigSource) {
        let Some(metrics) = &self.metrics else { return };
        match config {
            Some(config) => drop(metrics.set_policies(&config.policies)),
            // The configs of a control plane arrive later.
            None if source.xds().is_some() => {}
            None => metrics.count_rejected_config(),
        }
    }

    /// Whether there is a page for Prometheus.
    pub fn serves_page(&self) -> bool {
        self.page.is_some()
    }

    /// Divides the connections of the admin front with the page. Returns those of the page, then
    /// the rest.
    pub fn divide(&self, admin: Bounds) -> (Bounds, Bounds) {
        let page = if self.serves_page() { admin.connections / 2 } else { 0 };
        let of = |connections| Bounds { connections, ..admin };
        (of(page), of(admin.connections - page))
    }

    /// Serves the page. Its responses and connections are counted as those of the admin front.
    pub fn listen(
        &mut self,
        server_state: &Arc<ServerState>,
        bounds: Bounds,
    ) -> Option<RunningFront> {
        let (bound, routes) = self.page.take()?;
        let front = Arc::new(AdminFront::new(routes, Arc::clone(server_state)));
        Some(bound.listen_http(front, server_state, bounds))
    }

    /// Starts to send to statsd.
    pub fn start_statsd(self) -> Option<RunningStatsd> {
        let statsd = self.statsd?;
        let task = tokio::spawn(Arc::clone(&statsd).run());
        Some(RunningStatsd { statsd, task })
    }
}

/// The task that sends to statsd.
pub struct RunningStatsd {
    statsd: Arc<Statsd>,
    task: JoinHandle<()>,
}

impl RunningStatsd {
    /// Ends the task, and sends what was counted since the last packet.
    pub async fn finish(self) {
        self.task.abort();
        let _ = self.task.await;
        self.statsd.flush().await;
    }
}

fn bound(socket: ListenSocket, address: std::net::SocketAddr) -> BoundFront {
    let address = ListenAddr::At(address);
    // Scrapers send no secret.
    let access = Access::Unrestricted;
    let setting = format!("PROMETHEUS_ADDR={address}");
    let settings = FrontSettings { front: FrontName::Admin, address, setting, access, tls: None };
    BoundFront { settings, socket }
}
