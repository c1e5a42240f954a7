//! Attempts of dials in virtual time: names with several addresses, and names that move.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use courser_proto::CONTROL_GREETING;

use super::scripted::{Bytes, Script, driver_at};
use crate::control::driver::Driver;
use crate::control::event::Event;
use crate::control::mailbox::Mailbox;
use crate::control::network::Ready;
use crate::control::{Command, Dialed, Limits, Mail};
use crate::error::{DialError, SessionError};
use crate::machine::VirtualClock;
use crate::platform::{Clock, Platform};

/// A host's answer to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Host {
    /// It greets.
    Greets,
    /// It accepts and says nothing.
    Silent,
    /// The network has no route to it.
    Unreachable,
    /// It closes the connection when it has accepted it.
    Closes,
}

/// Hosts by their address, of which others are silent; and the addresses of all names.
#[derive(Default)]
struct Hosts {
    hosts: BTreeMap<String, Host>,
    /// `None`: the resolver does not answer.
    name: Option<Vec<SocketAddr>>,
    /// Addresses that were dialed, in order.
    dialed: Vec<String>,
}

impl Script for Hosts {
    type Bytes = Answer;

    fn connect(&mut self, to: SocketAddr) -> io::Result<Answer> {
        self.dialed.push(to.ip().to_string());
        let host = self.hosts.get(&to.ip().to_string()).copied().unwrap_or(Host::Silent);
        match host {
            Host::Unreachable => Err(ErrorKind::NetworkUnreachable.into()),
            _ => Ok(Answer { host, greeting: io::Cursor::new(CONTROL_GREETING.to_vec()) }),
        }
    }

    fn resolve(&mut self, _: u16) -> Option<Vec<SocketAddr>> {
        self.name.clone()
    }
}

#[derive(Debug)]
struct Answer {
    host: Host,
    greeting: io::Cursor<Vec<u8>>,
}

impl Bytes for Answer {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self.host {
            Host::Closes => Ok(0),
            Host::Greets if self.greeting.position() < self.greeting.get_ref().len() as u64 => {
                self.greeting.read(to)
            }
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
}

/// A driver, the clock that it reads, and an endpoint.
struct Bench {
    driver: Driver<Hosts>,
    commands: mpsc::Sender<Event>,
    clock: Arc<VirtualClock>,
    mailbox: Mailbox,
    now_ms: u64,
}

impl Bench {
    fn new(name: &[&str], hosts: &[(&str, Host)]) -> Self {
        Self::with_limits(name, hosts, Limits::default())
    }

    fn with_limits(name: &[&str], hosts: &[(&str, Host)], limits: Limits) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let hosts = hosts.iter().map(|(ip, host)| ((*ip).to_owned(), *host)).collect();
        let network = Hosts { hosts, name: Some(addrs(name)), dialed: Vec::new() };
        let (mut driver, commands) = driver_at(network, Clock::Virtual(clock.clone()));
        driver.parts.limits = limits;
        let mailbox = Mailbox::new(&Platform::System, 1).unwrap();
        let register =
            Command::Register { index: 1, id: 9, mailbox: mailbox.clone(), accepts: false };
        commands.send(Event::Command(register)).unwrap();
        Bench { driver, commands, clock, mailbox, now_ms: 0 }
    }

    /// Dials a host and runs until `ms` later.
    fn dial(&mut self, host: &str, ms: u64) {
        let dial = Command::Dial { index: 1, ticket: 5, host: host.into(), port: 7 };
        self.commands.send(Event::Command(dial)).unwrap();
        self.run(ms);
    }

    /// Runs the driver each millisecond; all its connections are ready all the time.
    fn run(&mut self, ms: u64) {
        for at in self.now_ms..=self.now_ms + ms {
            self.clock.set(at * 1_000_000);
            self.driver.pass(&mut Vec::new());
            let ready = |&n: &u64| Ready::Conn { n, writable: true };
            let mut ready = self.driver.conns.keys().map(ready).collect();
            self.driver.pass(&mut ready);
        }
        self.now_ms += ms;
    }

    /// The result of the dial.
    fn result(&self) -> Option<Result<Dialed, DialError>> {
        let mut mail = Vec::new();
        self.mailbox.take(&mut mail);
        mail.into_iter().find_map(|mail| match mail {
            Mail::Dialed { result, .. } => Some(result),
            _ => None,
        })
    }

    /// The host that was connected.
    fn connected(&self) -> String {
        self.result().expect("ended").expect("connected").remote.ip().to_string()
    }
}

fn addrs(name: &[&str]) -> Vec<SocketAddr> {
    name.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 7)).collect()
}

#[test]
fn the_next_address_is_tried_after_250_ms_and_the_first_greeting_wins() {
    let name = ["fd00::1", "10.0.0.1", "10.0.0.2"];
    let mut b = Bench::new(&name, &[("10.0.0.2", Host::Greets)]);
    b.dial("db", 249);
    assert_eq!(b.driver.net.dialed, ["fd00::1"]);
    b.run(1);
    assert_eq!(b.driver.net.dialed, ["fd00::1", "10.0.0.1"]);
    assert_eq!(b.driver.conns.len(), 2, "the first one is still tried");
    b.run(250);
    assert_eq!(b.driver.net.dialed, ["fd00::1", "10.0.0.1", "10.0.0.2"]);
    assert_eq!(b.connected(), "10.0.0.2");
    assert_eq!(b.driver.conns.len(), 1, "the others are closed");
    b.run(100);
    assert_eq!(b.driver.dials.len(), 0);
    assert_eq!(b.driver.timers.len(), 1, "that of the connection");
}

#[test]
fn a_late_answer_of_an_earlier_address_wins() {
    let mut b = Bench::new(&["fd00::1", "10.0.0.1"], &[]);
    b.dial("db", 300);
    assert_eq!(b.driver.conns.len(), 2);
    let first = *b.driver.conns.keys().next().unwrap();
    b.driver.conns.get_mut(&first).unwrap().stream.0.host = Host::Greets;
    b.run(1);
    assert_eq!(b.connected(), "fd00::1");
    assert_eq!(b.driver.conns.len(), 1);
}

#[test]
fn an_address_that_fails_gives_way_to_the_next_one_at_once() {
    let hosts =
        [("fd00::1", Host::Unreachable), ("10.0.0.1", Host::Closes), ("10.0.0.2", Host::Greets)];
    let mut b = Bench::new(&["fd00::1", "10.0.0.1", "10.0.0.2"], &hosts);
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.2");
}

#[test]
fn a_dial_fails_when_no_address_answers_and_names_the_best_reason() {
    let mut b = Bench::new(&["fd00::1", "10.0.0.1", "10.0.0.2"], &[("fd00::1", Host::Unreachable)]);
    b.dial("db", 4_990);
    assert!(b.result().is_none(), "two addresses are tried until the end");
    b.run(1_500);
    let error = b.result().expect("ended").unwrap_err();
    // A host without IPv6 has no route to it, which says nothing about the server.
    assert!(matches!(error, DialError::NoGreeting { .. }), "{error:?}");
    assert_eq!((b.driver.conns.len(), b.driver.timers.len()), (0, 0));
    assert_eq!(b.driver.tables().targets, 0);
    // The same target can be dialed again.
    b.driver.net.hosts.insert("10.0.0.1".to_owned(), Host::Greets);
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.1");
}

#[test]
fn a_name_is_resolved_at_each_dial() {
    let hosts = [("10.0.0.1", Host::Greets), ("10.0.0.2", Host::Greets)];
    let mut b = Bench::new(&["10.0.0.1"], &hosts);
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.1");
    b.dial("DB", 1);
    b.dial("10.0.0.1", 1);
    assert_eq!(b.connected(), "10.0.0.1");
    assert_eq!(b.driver.net.dialed.len(), 1, "an address has one connection");
    // The name moves while its first host runs on.
    b.driver.net.name = Some(addrs(&["10.0.0.2"]));
    b.result();
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.2");
    // Either address has a connection, so that none is opened.
    b.driver.net.name = Some(addrs(&["10.0.0.7", "10.0.0.1"]));
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.1");
    assert_eq!(b.driver.net.dialed.len(), 2);
}

#[test]
fn a_name_that_cannot_be_resolved_leads_to_its_open_connection() {
    let mut b = Bench::new(&["10.0.0.1"], &[("10.0.0.1", Host::Greets)]);
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.1");
    b.driver.net.name = Some(Vec::new());
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.1", "the resolver knows it no longer");
    b.driver.net.name = None;
    b.dial("db", 249);
    assert!(b.result().is_none(), "the resolver has not answered");
    b.run(1);
    assert_eq!(b.connected(), "10.0.0.1");
    b.dial("other", 300);
    assert!(b.result().is_none(), "it has no connection");
    let n = *b.driver.conns.keys().next().unwrap();
    b.driver.conns.get_mut(&n).unwrap().stream.0.host = Host::Closes;
    b.run(1);
    b.dial("db", 300);
    assert!(b.result().is_none(), "the connection has ended");
}

#[test]
fn a_name_that_has_moved_does_not_lead_back_to_its_old_host() {
    // One silent host; and two, the first of which ends at once, so that the second one is the last.
    let closes = ("10.0.0.3", Host::Closes);
    for name in [&["10.0.0.2"][..], &["10.0.0.3", "10.0.0.2"]] {
        let mut b = Bench::new(&["10.0.0.1"], &[("10.0.0.1", Host::Greets), closes]);
        b.dial("db", 1);
        assert_eq!(b.connected(), "10.0.0.1");
        b.driver.net.name = Some(addrs(name));
        b.dial("db", 600);
        assert!(b.result().is_none(), "the new host is silent, and the old one is no answer");
        assert_eq!(b.driver.net.dialed.last().unwrap(), "10.0.0.2");
        b.run(6_000);
        assert!(matches!(b.result(), Some(Err(_))), "{name:?}");
    }
}

/// Limits with a time of dials.
fn dial_within(ms: u64) -> Limits {
    Limits { dial: Duration::from_millis(ms), ..Limits::default() }
}

#[test]
fn a_short_time_is_divided_among_the_addresses() {
    let good = [("10.0.0.1", Host::Greets)];
    let mut b = Bench::with_limits(&["fd00::1", "10.0.0.1"], &good, dial_within(200));
    b.dial("db", 99);
    assert_eq!(b.driver.net.dialed, ["fd00::1"]);
    b.run(1);
    assert_eq!(b.connected(), "10.0.0.1");
    // A resolver leaves a part for the open connection.
    b.driver.net.name = None;
    b.dial("db", 99);
    assert!(b.result().is_none());
    b.run(1);
    assert_eq!(b.connected(), "10.0.0.1");
}

#[test]
fn no_address_is_tried_at_the_end_of_a_dial() {
    let mut b = Bench::with_limits(&["10.0.0.1", "10.0.0.2"], &[], dial_within(200));
    b.dial("db", 50);
    // The second address is never due.
    let at = b.driver.dials.values_mut().next().unwrap().next_at.take().unwrap();
    b.driver.timers.retain(|(due, _)| *due != at);
    b.run(200);
    assert_eq!(b.driver.net.dialed, ["10.0.0.1"]);
    let error = b.result().expect("ended").unwrap_err().to_string();
    assert!(error.starts_with("10.0.0.1:7 "), "{error}");
    assert_eq!(b.driver.tables().dials, 0);
}

#[test]
fn a_dial_has_at_most_four_attempts_at_a_time() {
    let ips: Vec<String> = (1..=16).map(|n| format!("10.0.0.{n}")).collect();
    let name: Vec<&str> = ips.iter().map(String::as_str).collect();
    let mut b = Bench::new(&name, &[("10.0.0.16", Host::Greets)]);
    b.dial("db", 0);
    for _ in 0..15 {
        b.run(249);
        assert!(b.driver.conns.len() <= 4, "{}", b.driver.conns.len());
        b.run(1);
    }
    assert_eq!(b.driver.net.dialed, name, "each address is tried once, in order");
    assert_eq!(b.connected(), "10.0.0.16");
    assert_eq!((b.driver.conns.len(), b.driver.timers.len()), (1, 1));
}

#[test]
fn a_known_name_follows_its_host_when_there_is_no_room_for_another_one() {
    let hosts = [("10.0.0.1", Host::Greets), ("10.0.0.2", Host::Greets)];
    let limits = Limits { outbound: 3, ..Limits::default() };
    let mut b = Bench::with_limits(&["10.0.0.1"], &hosts, limits);
    for name in ["db", "other", "third", "fourth"] {
        b.dial(name, 1);
        assert_eq!(b.connected(), "10.0.0.1");
    }
    assert_eq!(b.driver.names.len(), 3);
    b.driver.net.name = Some(addrs(&["10.0.0.2"]));
    b.dial("db", 1);
    assert_eq!(b.connected(), "10.0.0.2");
    b.driver.net.name = None;
    b.dial("db", 300);
    assert_eq!(b.connected(), "10.0.0.2");
}

#[test]
fn an_absent_interface_may_come_up() {
    let mut b = Bench::new(&[], &[]);
    b.dial("fe80::1%absent", 1);
    let error = b.result().expect("ended").unwrap_err();
    assert!(matches!(&error, DialError::Zone(e) if e.is_absent()), "{error:?}");
    assert!(SessionError::Dial(error).may_pass());
}
