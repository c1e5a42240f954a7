use super::parse::{Batch, Line, line};
use super::*;
use crate::config::Config;
use crate::route::{Exit, NextHop};

fn config() -> Config {
    let text = "[cluster]\nname='x'\ntopology='switch'\n[[node]]\nname='a'\naddress='h:1'\n\
                [[node.port]]\ninterface='lan0'\naddresses=['10.0.1.1/24','fd00:1::1/64']\n";
    Config::parse(text, ".").unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn lines_are_requests() {
    let config = config();
    let members = vec![(NextHop { node: 0, exit: Exit::Connected(0) }, 1)];
    let (prefix, address) = (net("192.0.2.0/24"), "192.0.2.7".parse().unwrap());
    let routes = |within| Line::Request(Request::Routes { within, after: None });
    for (text, expected) in [
        ("route add 192.0.2.0/24 via a:lan0", Line::Change(Change::Add(prefix, members.clone()))),
        (
            "  route\treplace  192.0.2.0/24 via a:lan0 # x",
            Line::Change(Change::Replace(prefix, members)),
        ),
        ("route add 192.0.2.0/24 unreachable", Line::Change(Change::Add(prefix, vec![]))),
        ("route del 192.0.2.0/24", Line::Change(Change::Delete(prefix))),
        ("route get 192.0.2.7", Line::Request(Request::Find(address, 0))),
        ("route get 192.0.2.7 4294967295", Line::Request(Request::Find(address, u32::MAX))),
        ("routes", routes(None)),
        ("routes 192.0.2.0/24", routes(Some(prefix))),
        ("nodes", Line::Request(Request::Nodes)),
        ("stats\r", Line::Request(Request::Stats)),
        ("batch begin", Line::Begin),
        ("batch commit", Line::Commit),
        ("batch abort", Line::Abort),
        ("help", Line::Help),
        (" # comment", Line::Empty),
        ("", Line::Empty),
    ] {
        assert_eq!(line(&config, text), Ok(expected), "{text}");
    }
}

#[test]
fn other_lines_are_errors_that_say_what_is_wrong() {
    let config = config();
    for (text, expected) in [
        ("reboot", "\"reboot\" is no request: `help` lists them"),
        ("batch", "\"batch\" is no request"),
        ("batch begin now", "\"batch begin now\" is no request"),
        ("stats all", "\"stats all\" is no request"),
        ("routes 10.0.0.0/8 x", "\"routes 10.0.0.0/8 x\" is no request"),
        ("routes x", "\"x\" is no prefix"),
        ("route get x", "\"x\" is no IP address"),
        ("route get 10.0.0.1 x", "\"x\" is no hash of a flow"),
        ("route get 10.0.0.1 4294967296", "\"4294967296\" is no hash of a flow"),
        ("route del", "\"\" is no prefix"),
        ("route del 10.0.0.0/8 via a:lan0", "\"10.0.0.0/8 via a:lan0\" is no prefix"),
        ("route del 10.0.0.1/8", "10.0.0.1/8 has bits beyond its length"),
        ("route add 10.0.0.0/8", "\"10.0.0.0/8\" is no route"),
        ("route replace 10.0.0.0/8 via b:lan0", "next hop \"b:lan0\": there is no such node"),
    ] {
        let error = line(&config, text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    let long = line(&config, &"\u{1b}".repeat(100_000)).unwrap_err().to_string();
    assert!(long.len() < 1_000 && !long.contains('\u{1b}'), "{long}");
}

#[test]
fn a_batch_has_limits() {
    let members = |hops: usize| -> Vec<(NextHop, u16)> {
        vec![(NextHop { node: 0, exit: Exit::Connected(0) }, 1); hops]
    };
    let fill = |change: Change| {
        let mut batch = Batch::default();
        let added = (0..10_000).take_while(|_| batch.add(Ok(change.clone())).is_ok()).count();
        (added, batch.commit().unwrap_err())
    };
    let host = net("192.0.2.1/32");
    let wrong =
        |line: usize| format!("nothing is changed: line {line} of the batch: a batch has at most ");
    for (change, most) in [
        (Change::Delete(host), BATCH_CHANGES),
        (Change::Delete(net("192.0.2.0/25")), BATCH_CHANGES),
        (Change::Replace(host, members(64)), BATCH_HOPS / 64),
        (Change::Add(net("0.0.0.0/1"), members(1)), 2),
        (Change::Delete(net("10.0.0.0/8")), 264),
    ] {
        let (added, error) = fill(change);
        assert_eq!(added, most);
        assert!(error.starts_with(&wrong(most + 1)), "{error}");
    }
}

#[test]
fn a_batch_with_a_wrong_line_fails_with_the_first_one() {
    let mut batch = Batch::default();
    batch.add(Ok(Change::Delete(net("10.0.0.0/8")))).unwrap();
    assert_eq!(batch.add(Err("first".to_owned())), Err("first".to_owned()));
    batch.add(Ok(Change::Delete(net("10.0.0.0/8")))).unwrap();
    assert_eq!(batch.add(Err("second".to_owned())), Err("second".to_owned()));
    assert_eq!(batch.commit(), Err("nothing is changed: line 2 of the batch: first".to_owned()));
}
