//! Connecting: what works, and what is refused with a reason.

use super::stand::{Engine, Server, connect, run};

#[test]
fn a_server_is_found() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            assert!(store.stats().up, "{engine:?}: {:?}", store.last_error());
            assert_eq!(store.warnings(), Vec::<String>::new());
        });
    }
}
