//! The cost that the tower layer adds to a request, compared with tower_governor, on an axum app
//! with an empty handler.
//!
//! No sockets are involved: an app is called as hyper calls it, one request at a time, and its
//! responses are dropped. The time of the same app without a layer is subtracted, so that the
//! figures are the cost of the layers alone. The apps alternate in many short turns and in several
//! processes. A disturbance of one turn also affects its neighbours, and effects of the memory
//! layout of one process do not carry over to the next.
//!
//! - `apps.rs`: the apps;
//! - `rounds.rs`: the timed turns and the checks of the set-up;
//! - `report.rs`: table, thresholds and JSON.

mod apps;
mod report;
mod rounds;

use std::io;

use crate::cli::LayerArgs;

/// Runs the benchmark and prints the report.
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
