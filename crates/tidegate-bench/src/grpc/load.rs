//! The load generator: a tonic client in a separate process that sends requests, checks every
//! answer and counts.
//!
//! It has one thread and, for every server, several connections with several requests in flight
//! each. The servers are loaded in turns, as in `http/alternating_load.rs`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Instant;

use clap::Args;
use tokio::task::LocalSet;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use super::messages::{Client, Code, Descriptor, Entry, RateLimitRequest, RateLimitResponse};
use crate::http::{
    LoadReport, TurnArgs, TurnGate, WorkerGroup, record_answer, take_turns, with_answer_timeout,
};
use crate::workloads::Random;

/// The domain of all requests.
pub const DOMAIN: &str = "bench";

/// Arguments of the load process.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    #[arg(required = true)]
    pub targets: Vec<Target>,
    #[arg(long)]
    pub connections: u32,
    /// Requests in flight on each connection.
    #[arg(long)]
    pub in_flight: u32,
    /// Distinct keys.
    #[arg(long)]
    pub keys: u32,
    /// Instead of turns: send every key once; each must be new to the server.
    #[arg(long)]
    pub fill: bool,
    #[command(flatten)]
    pub turn_args: TurnArgs,
}

/// A server and the requests to send to it, written `address/entry/process`.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    /// The key of the descriptor entry, which selects the limits.
    pub entry: String,
    /// The server's process id, for its processor time.
    pub process: u32,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.address, self.entry, self.process)
    }
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or("a target is address/entry/process");
        Ok(Target {
            address: next()?.parse().map_err(|_| "invalid address")?,
            entry: next()?.to_owned(),
            process: next()?.parse().map_err(|_| "the process is not a number")?,
        })
    }
}

/// Runs the load on this thread.
pub fn run(args: &LoadArgs) -> io::Result<LoadReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, with_answer_timeout(work(args)))
}

async fn work(args: &LoadArgs) -> io::Result<LoadReport> {
    if args.fill {
        fill(args).await?;
        return Ok(LoadReport::default());
    }
    let mut groups = Vec::new();
    for target in &args.targets {
        groups.push(open(args, target).await?);
    }
    take_turns(&groups, &args.turn_args).await
}

/// Opens the connections to one server and starts their workers, which wait for a turn.
async fn open(args: &LoadArgs, target: &Target) -> io::Result<WorkerGroup> {
    let gate = Rc::new(TurnGate::new(args.connections * args.in_flight));
    for seed in 0..args.connections {
        let client = connect(target.address).await?;
        for position in 0..args.in_flight {
            let mut client = client.clone();
            let mut random = Random(u64::from(seed * args.in_flight + position));
            let (gate, keys, entry) = (Rc::clone(&gate), args.keys, target.entry.clone());
            tokio::task::spawn_local(async move {
                let failed = loop {
                    gate.wait_open().await;
                    let sent = Instant::now();
                    match send_request(&mut client, &entry, random.below(keys)).await {
                        Ok(response) if is_ok(&response) => gate.count(sent.elapsed()),
                        Ok(response) => {
                            break io::Error::other(format!("not allowed: {response:?}"));
                        }
                        Err(error) => break error,
                    }
                };
                gate.fail(failed);
            });
        }
    }
    Ok(WorkerGroup { process: target.process, gate })
}

/// The descriptor entries with one loose limit, with two loose limits, and with a tight limit.
pub const ONE_LIMIT: &str = "user";
pub const TWO_LIMITS: &str = "member";
pub const TIGHT: &str = "tight";

/// Opens a connection.
pub async fn connect(address: SocketAddr) -> io::Result<Client<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
    let channel = endpoint.tcp_nodelay(true).connect().await.map_err(io::Error::other)?;
    Ok(Client::new(channel))
}

/// Sends one request.
pub async fn send_request(
    client: &mut Client<Channel>,
    entry: &str,
    key: u32,
) -> io::Result<RateLimitResponse> {
    let entry = Entry { key: entry.to_owned(), value: format!("user:{key:08}") };
    let request = RateLimitRequest {
        domain: DOMAIN.to_owned(),
        descriptors: vec![Descriptor { entries: vec![entry] }],
        hits_addend: 0,
    };
    let response =
        client.should_rate_limit(Request::new(request)).await.map_err(io::Error::other)?;
    record_answer();
    Ok(response.into_inner())
}

/// Returns whether an answer allows the request.
pub fn is_ok(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::Ok)
}

async fn fill(args: &LoadArgs) -> io::Result<()> {
    let mut tasks = Vec::new();
    for first in 0..args.connections {
        let (keys, step, target) = (args.keys, args.connections as usize, args.targets[0].clone());
        tasks.push(tokio::task::spawn_local(async move {
            let mut client = connect(target.address).await?;
            for key in (first..keys).step_by(step) {
                let response = send_request(&mut client, &target.entry, key).await?;
                let status = response.statuses.first();
                let limit = status.and_then(|status| status.current_limit.as_ref());
                let new = status.zip(limit).is_some_and(|(status, limit)| {
                    status.limit_remaining + 1 == limit.requests_per_unit
                });
                if !is_ok(&response) || !new {
                    return Err(io::Error::other(format!("key {key} was not new: {response:?}")));
                }
            }
            Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
