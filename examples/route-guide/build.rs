//! Generates the service and its messages.

fn main() -> Result<(), courser_build::Error> {
    courser_build::configure()
        .context("routeguide.RouteGuide.RouteChat")
        .compile(&["proto/route_guide.proto"], &["proto"])
}
