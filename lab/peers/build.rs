//! Generates the code of the Cap'n Proto service from its compiled schema, which README.md explains,
//! and that of the key-value service of tonic.

use std::error::Error;
use std::fs::File;

#[path = "build/tonic.rs"]
mod tonic;

const COMPILED: &str = "schema/peers.bin";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={COMPILED}");
    capnpc::codegen::CodeGenerationCommand::new()
        .output_directory(std::env::var("OUT_DIR")?)
        .run(File::open(COMPILED)?)?;
    tonic::generate()
}
