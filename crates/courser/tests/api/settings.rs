//! Settings at the ends of their ranges and beyond: each is refused when it is set, with its range, or
//! works.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use courser::{BindError, CallFailure, Client, ClientError, Config, Nexus, Server};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;

type Set<T> = fn(&mut Config, T);

const TIMES: [(&str, Set<Duration>); 10] = [
    ("connect_timeout", |c, d| c.connect_timeout = d),
    ("datapath_timeout", |c, d| c.datapath_timeout = d),
    ("idle_after", |c, d| c.idle_after = d),
    ("failure_timeout", |c, d| c.failure_timeout = d),
    ("spin", |c, d| c.spin = Some(d)),
    ("rto.0", |c, d| c.rto.0 = d),
    ("rto.1", |c, d| c.rto.1 = d),
    ("batch_budget", |c, d| c.batch_budget = d),
    ("tuning.timestamp_interval", |c, d| c.tuning.timestamp_interval = d),
    ("tuning.base_rtt", |c, d| c.tuning.base_rtt = d),
];

const SIZES: [(&str, Set<usize>); 23] = [
    ("slots", |c, n| c.slots = n.min(255) as u8),
    ("credits", |c, n| c.credits = Some(u32::try_from(n).unwrap_or(u32::MAX))),
    ("max_msg_size", |c, n| c.max_msg_size = u32::try_from(n).unwrap_or(u32::MAX)),
    ("memory_limit", |c, n| c.memory_limit = n),
    ("call_queue", |c, n| c.call_queue = n),
    ("message_queue", |c, n| c.message_queue = n),
    ("max_sessions", |c, n| c.max_sessions = n),
    ("max_sessions_per_peer", |c, n| c.max_sessions_per_peer = n),
    ("max_sessions_per_address", |c, n| c.max_sessions_per_address = n),
    ("reserved_sessions", |c, n| c.reserved_sessions = n),
    ("max_paths_per_peer", |c, n| c.max_paths_per_peer = n),
    ("max_connections", |c, n| c.max_connections = n),
    ("max_connections_per_address", |c, n| c.max_connections_per_address = n),
    ("max_held_per_peer", |c, n| c.max_held_per_peer = n),
    ("max_streams_per_peer", |c, n| c.max_streams_per_peer = n),
    ("max_frame", |c, n| c.max_frame = Some(n)),
    ("socket_buffer", |c, n| c.socket_buffer = n),
    ("inline_max", |c, n| c.inline_max = n),
    ("workers", |c, n| c.workers = n),
    ("worker_queue", |c, n| c.worker_queue = n),
    ("tuning.tx_frames", |c, n| c.tuning.tx_frames = n),
    ("tuning.tx_items", |c, n| c.tuning.tx_items = n),
    ("tuning.gather_to", |c, n| c.tuning.gather_to = n),
];

/// Uses a setting for calls. `Err`: the text of its refusal.
fn try_out(name: &str, config: Config, uri: &str) -> Result<(), String> {
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let nexus = match Nexus::bind_with(LOOPBACK, config.clone()) {
            Ok(nexus) => nexus,
            Err(e) => return Err(e.to_string()),
        };
        drop(nexus.endpoint().map_err(|e| e.to_string())?);
        let client = match Client::connect_with(uri, config).wait() {
            Ok(client) => client,
            Err(ClientError::Bind(e)) => return Err(e.to_string()),
            Err(ClientError::Stopped) => panic!("the thread of the endpoint has panicked"),
            Err(_) => return Ok(()), // for instance no memory
        };
        for len in [8, 3_000] {
            let Ok(request) = client.alloc_recycled(len) else { continue };
            let ended = client.call(ECHO, request).deadline(PATIENCE).wait();
            assert!(!matches!(ended, Err(CallFailure::Stopped)), "the thread has panicked");
        }
        Ok(())
    }));
    tried.unwrap_or_else(|_| panic!("{name} panics"))
}

fn server() -> (String, courser::Serving) {
    let mut server = Server::bind(LOOPBACK).unwrap();
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    (server.local_uri(), server.serve().unwrap())
}

#[test]
fn times_at_their_ends_are_refused_with_their_range_or_work() {
    let (uri, _serving) = server();
    for (name, set) in TIMES {
        for value in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let mut config = Config::default();
            set(&mut config, value);
            if let Err(text) = try_out(name, config.clone(), &uri) {
                assert!(text.contains("set it"), "{name} = {value:?}: {text}");
                assert!(text.contains(name) || name == "rto.0", "{name} = {value:?}: {text}");
                assert!(Server::bind_with(LOOPBACK, config).is_err(), "refused when it is set");
            }
        }
    }
    // No bound of the other is exceeded here.
    let config = Config { rto: (Duration::from_millis(1), Duration::ZERO), ..Config::default() };
    let error = Nexus::bind_with(LOOPBACK, config).unwrap_err();
    assert!(matches!(error, BindError::Duration { name: "rto.1", .. }), "{error}");
}

#[test]
fn sizes_at_their_ends_are_refused_or_work() {
    let (uri, _serving) = server();
    for (name, set) in SIZES {
        for value in [0, 1, usize::MAX] {
            let mut config = Config::default();
            set(&mut config, value);
            if let Err(text) = try_out(name, config.clone(), &uri) {
                assert!(text.contains(';'), "{name} = {value}: {text}");
            }
        }
    }
}
