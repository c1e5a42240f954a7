//! Settings at the ends of their ranges and beyond: each is refused when it is set, with its range, or
//! works.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use courser::{BindError, CallFailure, Client, ClientError, Config, Nexus, Server};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;

type Set<T> = fn(&mut Config, T);

/// Nothing, the least time there is, and the most.
const ENDS: [Duration; 3] = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];

/// Each time of the settings: which of [`ENDS`] are out of its range.
const TIMES: [(&str, Set<Duration>, [bool; 3]); 10] = [
    ("connect_timeout", |c, d| c.connect_timeout = d, [true; 3]),
    ("datapath_timeout", |c, d| c.datapath_timeout = d, [true; 3]),
    ("idle_after", |c, d| c.idle_after = d, [true; 3]),
    ("failure_timeout", |c, d| c.failure_timeout = d, [true; 3]),
    ("spin", |c, d| c.spin = Some(d), [false, false, true]),
    ("rto.0", |c, d| c.rto.0 = d, [true; 3]),
    ("rto.1", |c, d| c.rto.1 = d, [true; 3]),
    ("batch_budget", |c, d| c.batch_budget = d, [false, false, true]),
    ("tuning.timestamp_interval", |c, d| c.tuning.timestamp_interval = d, [false, false, true]),
    ("tuning.base_rtt", |c, d| c.tuning.base_rtt = d, [false, false, true]),
];

const MILLION: usize = 1 << 20;
const ANY: usize = usize::MAX;

/// Each size of the settings: the least and the most that are allowed, and the text of its range.
const SIZES: [(&str, Set<usize>, usize, usize, &str); 25] = [
    ("slots", |c, n| c.slots = n.min(255) as u8, 1, 32, "a power of two, 1 to 32"),
    ("credits", |c, n| c.credits = Some(narrow(n)), 1, 65_535, "1 to 65,535"),
    ("max_msg_size", |c, n| c.max_msg_size = narrow(n), 0, (1 << 28) - 1, "0 to 268,435,455 bytes"),
    ("memory_limit", |c, n| c.memory_limit = n, 0, ANY, ""),
    ("call_queue", |c, n| c.call_queue = n, 0, ANY, ""),
    ("message_queue", |c, n| c.message_queue = n, 1, 1 << 16, "1 to 65,536"),
    ("max_sessions", |c, n| c.max_sessions = n, 1, MILLION, "1 to 1,048,576"),
    ("max_sessions_per_peer", |c, n| c.max_sessions_per_peer = n, 1, MILLION, "1 to 1,048,576"),
    (
        "max_sessions_per_address",
        |c, n| c.max_sessions_per_address = n,
        1,
        MILLION,
        "1 to 1,048,576",
    ),
    ("reserved_sessions", |c, n| c.reserved_sessions = n, 0, MILLION, "0 to 1,048,576"),
    ("max_paths_per_peer", |c, n| c.max_paths_per_peer = n, 1, MILLION, "1 to 1,048,576"),
    ("max_connections", |c, n| c.max_connections = n, 1, MILLION, "1 to 1,048,576"),
    (
        "max_connections_per_address",
        |c, n| c.max_connections_per_address = n,
        1,
        MILLION,
        "1 to 1,048,576",
    ),
    ("max_held_per_peer", |c, n| c.max_held_per_peer = n, 1, ANY, "at least 1 byte"),
    ("max_streams_per_peer", |c, n| c.max_streams_per_peer = n, 1, MILLION, "1 to 1,048,576"),
    ("max_frame", |c, n| c.max_frame = Some(n), 0, ANY, ""),
    ("socket_buffer", |c, n| c.socket_buffer = n, 0, ANY, ""),
    ("inline_max", |c, n| c.inline_max = n, 0, 2_048, "0 to 2,048 bytes"),
    ("workers", |c, n| c.workers = n, 0, 1_024, "at most 1,024"),
    ("worker_queue", |c, n| c.worker_queue = n, 1, MILLION, "1 to 1,048,576"),
    ("tuning.tx_frames", |c, n| c.tuning.tx_frames = n, 1, ANY, "at least 1"),
    ("tuning.tx_items", |c, n| c.tuning.tx_items = n, 1, ANY, "at least 1"),
    ("tuning.gather_from", |c, n| c.tuning.gather_from = n, 1, 2_048, "1 to 2,048 bytes"),
    ("tuning.gather_to", |c, n| c.tuning.gather_to = n, 0, 65_535, "0 to 65,535 bytes"),
    ("tuning.reorder_span", |c, n| c.tuning.reorder_span = narrow(n), 1, 1_024, "1 to 1,024"),
];

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The refusal when a nexus binds with these settings.
fn refusal(config: &Config) -> Option<String> {
    Nexus::bind_with(LOOPBACK, config.clone()).err().map(|e| e.to_string())
}

/// Uses a setting for calls. `Err`: the text of its refusal.
fn try_out(name: &str, config: Config, uri: &str) -> Result<(), String> {
    let (uri, (done, ended)) = (uri.to_string(), channel());
    // Its own thread, so that a setting with which a call never ends fails the test.
    std::thread::spawn(move || done.send(use_it(config, &uri)));
    match ended.recv_timeout(2 * PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => panic!("{name} panics"),
        Err(RecvTimeoutError::Timeout) => panic!("{name} hangs"),
    }
}

fn use_it(config: Config, uri: &str) -> Result<(), String> {
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
    for (name, set, is_out) in TIMES {
        for (value, is_out) in ENDS.into_iter().zip(is_out) {
            let mut config = Config::default();
            set(&mut config, value);
            let refused = refusal(&config);
            assert_eq!(refused.is_some(), is_out, "{name} = {value:?}: {refused:?}");
            match refused {
                Some(text) => {
                    assert!(text.contains("set it"), "{name} = {value:?}: {text}");
                    assert!(text.contains(name), "{name} = {value:?}: {text}");
                    assert!(Server::bind_with(LOOPBACK, config).is_err(), "refused when it is set");
                }
                None => assert_eq!(try_out(name, config, &uri), Ok(()), "{value:?}"),
            }
        }
    }
    // No bound of the other is exceeded here.
    let config = Config { rto: (Duration::from_millis(1), Duration::ZERO), ..Config::default() };
    let error = Nexus::bind_with(LOOPBACK, config).unwrap_err();
    assert!(matches!(error, BindError::Duration { name: "rto.1", .. }), "{error}");
}

#[test]
fn sizes_out_of_their_ranges_are_refused_with_them_when_a_nexus_binds() {
    for (name, set, least, most, range) in SIZES {
        let last = name.rsplit('.').next().unwrap();
        for value in [0, least.saturating_sub(1), most.saturating_add(1), usize::MAX] {
            let mut config = Config::default();
            set(&mut config, value);
            let refused = refusal(&config);
            let is_out = !(least..=most).contains(&value);
            assert_eq!(refused.is_some(), is_out, "{name} = {value}: {refused:?}");
            for part in [last, range] {
                let says = refused.as_ref().is_none_or(|text| text.contains(part));
                assert!(says, "{name} = {value}, no {part:?}: {refused:?}");
            }
        }
    }
}

#[test]
fn sizes_at_their_ends_are_refused_or_work() {
    let (uri, _serving) = server();
    for (name, set, ..) in SIZES {
        for value in [0, 1, usize::MAX] {
            let mut config = Config::default();
            set(&mut config, value);
            if let Err(text) = try_out(name, config, &uri) {
                assert!(text.contains(';'), "{name} = {value}: {text}");
            }
        }
    }
}
