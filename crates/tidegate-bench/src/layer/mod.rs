//! What the tower layer adds to a request, beside tower_governor's, on an axum app whose
//! handler does nothing.
//!
//! No sockets: an app is called as hyper calls it, request by request, and its responses are
//! dropped. What the same app takes without any layer is taken off, so that the
//! figures are the layers' own. All take turns, many short ones, in several processes:
//! what disturbs one turn disturbs its neighbours too, and what is luck of a process is not
//! that of the next.
//!
//! - `apps.rs`: the apps, and the proof that they do what is claimed;
//! - `rounds.rs`: the turns; `report.rs`: what they say.

mod apps;
mod report;
mod rounds;

use std::io;

use crate::cli::LayerArgs;

/// Measures and prints.
pub fn run(args: &LayerArgs) -> io::Result<()> {
    if args.once {
        println!("{}", serde_json::to_string(&rounds::measure_once())?);
        return Ok(());
    }
    let results = rounds::run(args)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}
