//! Generates services in two packages, one of which imports the other, and two versions of a service.

use std::path::Path;

fn main() -> Result<(), courser_build::Error> {
    courser_build::configure()
        .context("all.things.Things.WithContext")
        .one_way("all.things.Things.Tell")
        .error_type("crate::Fault")
        .compile(&["proto/things.proto", "proto/parts.proto"], &["proto"])?;
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    for version in ["old", "new"] {
        let (folder, out) = (Path::new("proto").join(version), Path::new(&out).join(version));
        std::fs::create_dir_all(&out)?;
        let builder = courser_build::configure().out_dir(out);
        builder.compile(&[folder.join("shop.proto")], &[folder])?;
    }
    Ok(())
}
