//! Courser's conformance suite against this transport.

use courser_net::{DelayedCompletion, DelayedCompletionConfig, conformance};
use courser_unix_datagram::{UnixOptions, UnixTransport};

fn endpoint(max_frame: Option<usize>) -> UnixTransport {
    let namespace = Some("conformance".to_owned());
    let options = UnixOptions { max_frame, namespace };
    UnixTransport::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap()
}

#[test]
fn the_transport_alone() {
    conformance::run(|| (endpoint(None), endpoint(None)));
}

#[test]
fn with_small_frames() {
    conformance::run(|| (endpoint(Some(600)), endpoint(Some(600))));
}

#[test]
fn within_middleware_that_holds_frames() {
    let held = || DelayedCompletion::new(endpoint(None), DelayedCompletionConfig::default());
    conformance::run(|| (held(), held()));
}
