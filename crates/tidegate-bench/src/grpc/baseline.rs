//! The baseline: a tonic service that always answers OK, in a separate process.

use std::io;
use std::net::SocketAddr;

use clap::Args;
use tonic::{Request, Response, Status};

use super::messages::{Code, RateLimitRequest, RateLimitResponse, Server, Service};

#[derive(Args, Clone, Debug)]
pub struct BaselineArgs {
    pub address: SocketAddr,
}

struct AlwaysOk;

#[tonic::async_trait]
impl Service for AlwaysOk {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses: Vec::new() }))
    }
}

/// Serves until the process is killed.
pub fn serve(args: &BaselineArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(Server::new(AlwaysOk));
    runtime.block_on(server.serve(args.address)).map_err(io::Error::other)
}
