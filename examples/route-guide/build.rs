//! Generates the service and its messages.

fn main() -> Result<(), courser_build::Error> {
    courser_build::compile_protos(&["proto/route_guide.proto"], &["proto"])
}
