//! Generates services in two packages, one of which imports the other.

fn main() -> Result<(), courser_build::Error> {
    courser_build::configure()
        .context("all.things.Things.WithContext")
        .one_way("all.things.Things.Tell")
        .error_type("crate::Fault")
        .compile(&["proto/things.proto", "proto/parts.proto"], &["proto"])
}
