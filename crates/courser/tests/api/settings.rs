//! Settings at the ends of their ranges and beyond: each is refused when it is set, with its range, or
//! works.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use courser::{
    Allowed, BindError, CallFailure, Client, ClientError, Config, Nexus, Server, Setting, Tuning,
};

use crate::common::{LOOPBACK, PATIENCE};

const ECHO: u16 = 1;

type Set = fn(&mut Config, u128);
type SetAny = Box<dyn Fn(&mut Config, u128)>;
type Get = Box<dyn Fn(&Config) -> Option<u128>>;

/// Nothing, the least time there is, and the most.
const ENDS: [Duration; 3] = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];

/// No end is in the range.
const MIDDLE: Allowed = Allowed { from: 2, to: u64::MAX as u128, powers_of_two: false, text: "" };

/// The bounds of the retransmission timeout, which are one setting.
const BOUNDS: [(&str, Set); 2] =
    [("rto.0", |c, ns| c.rto.0 = time(ns)), ("rto.1", |c, ns| c.rto.1 = time(ns))];

fn time(ns: u128) -> Duration {
    let seconds = u64::try_from(ns / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(seconds, (ns % 1_000_000_000) as u32)
}

/// A declared setting that is a number.
struct Number {
    name: &'static str,
    is_time: bool,
    set: SetAny,
    get: Get,
    /// Any value, where none is declared.
    allowed: Box<dyn Fn(&Config) -> Allowed>,
}

impl Number {
    fn new<C>(s: &'static Setting<C>, all: fn(&mut Config) -> &mut C) -> Self {
        let any = Allowed { from: 0, to: u128::MAX, powers_of_two: false, text: "" };
        Number {
            name: s.name,
            is_time: s.is_time,
            set: Box::new(move |config, value| (s.set)(all(config), value)),
            get: Box::new(move |config| (s.get)(all(&mut config.clone()))),
            allowed: Box::new(move |config| match s.allowed {
                Some(allowed) => allowed(all(&mut config.clone())),
                None => any,
            }),
        }
    }
}

/// The declared settings that are times, or other numbers.
fn settings(are_times: bool) -> impl Iterator<Item = Number> {
    let config = Config::SETTINGS.iter().map(|s| Number::new(s, |config| config));
    let tuning = Tuning::SETTINGS.iter().map(|s| Number::new(s, |config| &mut config.tuning));
    let is_number = |number: &Number| {
        let mut config = Config::default();
        (number.set)(&mut config, 1);
        (number.get)(&config).is_some()
    };
    config.chain(tuning).filter(move |number| number.is_time == are_times).filter(is_number)
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
    let bounds = BOUNDS.map(|(name, set)| Number {
        name,
        is_time: true,
        set: Box::new(set),
        get: Box::new(|_| None),
        allowed: Box::new(|_| MIDDLE),
    });
    for Number { name, set, allowed, .. } in settings(true).chain(bounds) {
        for value in ENDS {
            let mut config = Config::default();
            set(&mut config, value.as_nanos());
            let refused = refusal(&config);
            let is_out = !allowed(&config).contains(value.as_nanos());
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
    for setting in settings(false) {
        let name = setting.name;
        let Allowed { from, to, text, .. } = (setting.allowed)(&Config::default());
        for value in [0, from.saturating_sub(1), from, to, to.saturating_add(1), u128::MAX] {
            let mut config = Config::default();
            (setting.set)(&mut config, value);
            // The nearest value that the type has.
            let value = (setting.get)(&config).expect("it is set");
            let refused = refusal(&config);
            let is_out = !(setting.allowed)(&config).contains(value);
            assert_eq!(refused.is_some(), is_out, "{name} = {value}: {refused:?}");
            for part in [name, text] {
                let says = refused.as_ref().is_none_or(|text| text.contains(part));
                assert!(says, "{name} = {value}, no {part:?}: {refused:?}");
            }
        }
    }
}

#[test]
fn sizes_at_their_ends_are_refused_or_work() {
    let (uri, _serving) = server();
    for setting in settings(false) {
        for value in [0, 1, usize::MAX as u128] {
            let mut config = Config::default();
            (setting.set)(&mut config, value);
            if let Err(text) = try_out(setting.name, config, &uri) {
                assert!(text.contains(';'), "{} = {value}: {text}", setting.name);
            }
        }
    }
}
