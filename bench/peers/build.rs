//! Generates the code of the Cap'n Proto service from its compiled schema, which README.md explains.

use std::error::Error;
use std::fs::File;

const COMPILED: &str = "schema/peers.bin";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={COMPILED}");
    capnpc::codegen::CodeGenerationCommand::new()
        .output_directory(std::env::var("OUT_DIR")?)
        .run(File::open(COMPILED)?)?;
    Ok(())
}
