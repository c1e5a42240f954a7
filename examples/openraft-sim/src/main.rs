//! Runs the scenario of a seed, and prints what happened.
//!
//! ```sh
//! cargo run -p courser-example-openraft-sim 7
//! ```

use anyhow::{Result, bail, ensure};
use courser_example_openraft_sim::scenario::run;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seed = match args.as_slice() {
        [] => 1,
        [seed] => match seed.parse() {
            Ok(seed) => seed,
            Err(_) => bail!("usage: courser-example-openraft-sim [SEED], a whole number"),
        },
        _ => bail!("usage: courser-example-openraft-sim [SEED]"),
    };
    let outcome = run(seed)?;
    println!("{}", outcome.story.join("\n"));
    let faults = outcome.faults();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    println!(
        "All {} acknowledged writes are on all nodes. Digest of the run: {:016x}",
        outcome.acknowledged.len(),
        outcome.digest
    );
    Ok(())
}
