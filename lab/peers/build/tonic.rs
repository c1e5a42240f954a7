//! The part of the build script that a user of tonic writes. protox takes the place of protoc.

pub(crate) fn generate() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["proto/kv.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo::rerun-if-changed=proto/kv.proto");
    Ok(())
}
