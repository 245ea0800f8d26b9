//! `/admin/v1/fleet`: the nodes that share the store, and whether their policies agree.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tidegate::redis::{LiveNode, RedisStore};

use super::AdminState;
use super::json;
use super::policies::shown_fingerprint;

/// Lists the nodes; none if counts are kept in memory.
pub async fn list(State(state): State<AdminState>) -> Response {
    #[derive(Serialize)]
    struct Page {
        fingerprint: String,
        differing: usize,
        nodes: Vec<NodeView>,
    }
    let fingerprint = state.server_state.fingerprint();
    let nodes = state.store.as_ref().map(RedisStore::live_nodes).unwrap_or_default();
    json(&Page {
        fingerprint: shown_fingerprint(fingerprint),
        differing: differing(&nodes, fingerprint),
        nodes: nodes.iter().map(|node| NodeView::new(node, fingerprint)).collect(),
    })
}

/// The number of nodes whose policies are not those with this fingerprint.
pub fn differing(nodes: &[LiveNode], fingerprint: u64) -> usize {
    nodes.iter().filter(|node| differs(node, fingerprint)).count()
}

/// Whether another node has other policies. What the store knows of this node itself may be older
/// than a reload.
fn differs(node: &LiveNode, fingerprint: u64) -> bool {
    !node.is_self && node.fingerprint != fingerprint
}

#[derive(Serialize)]
struct NodeView {
    name: String,
    /// Identifies the node until it is restarted.
    id: String,
    fingerprint: String,
    last_seen_seconds: f64,
    /// Whether this is the server that answers.
    own: bool,
    differs: bool,
}

impl NodeView {
    fn new(node: &LiveNode, fingerprint: u64) -> Self {
        NodeView {
            name: node.name.clone(),
            id: format!("{:016x}", node.id),
            fingerprint: shown_fingerprint(node.fingerprint),
            last_seen_seconds: node.last_seen.as_secs_f64(),
            own: node.is_self,
            differs: differs(node, fingerprint),
        }
    }
}
