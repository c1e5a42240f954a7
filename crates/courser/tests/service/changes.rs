//! Changes of a service in each order of deployment, and with servers that are replaced, by codec: one
//! table of what is expected, which the guide `docs/book/changing-a-service.md` repeats.
//!
//! Each program has one service with a method for each change, so that a server is replaced once for all
//! of them.

mod guide;
mod table;
mod types;
mod versions;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use courser::service::{BlockingChannel, RpcError, Service};
use courser::{CallFailure, Client, Config, Executed, Server, Serving};

use self::table::{Codec, rows};
use self::versions::{named, postcard, protobuf, rkyv};
use crate::world::until;

/// The outcome of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum Got {
    /// A value, or an application error, as text.
    Value(String),
    Unknown,
    Shape,
    Decode,
}

/// Outcomes by the names of the methods.
type Outcomes = BTreeMap<&'static str, Got>;

/// The outcome of a call, which is made again where a server that was replaced has not answered it.
fn got<T: Debug, E: Debug>(mut call: impl FnMut() -> Result<T, RpcError<E>>) -> Got {
    let mut outcome = None;
    until(|| {
        let refused =
            |error: &RpcError<E>| assert_eq!(error.executed(), Executed::Never, "{error:?}");
        outcome = match call() {
            Ok(value) => Some(Got::Value(format!("{value:?}"))),
            Err(RpcError::Service(error)) => Some(Got::Value(format!("Err({error:?})"))),
            Err(RpcError::Decode(_)) => Some(Got::Decode),
            Err(RpcError::Call(CallFailure::Lost { .. } | CallFailure::NotConnected { .. })) => {
                None
            }
            Err(error) => {
                refused(&error);
                match error {
                    RpcError::UnknownMethod(_) => Some(Got::Unknown),
                    RpcError::ShapeMismatch(_) => Some(Got::Shape),
                    error => panic!("{error:?}"),
                }
            }
        };
        outcome.is_some()
    });
    outcome.expect("the loop ends with an outcome")
}

/// The number that a one-way message has left at the server.
fn arrived<E: Debug>(mut told: impl FnMut() -> Result<i64, RpcError<E>>) -> Got {
    let mut value = 0;
    until(|| {
        value = told().unwrap();
        value != 0
    });
    Got::Value(value.to_string())
}

fn start<S: Service>(uri: &str, service: S) -> (String, Serving) {
    let server = Server::bind(uri).unwrap().add_service(service).unwrap();
    (server.local_uri(), server.serve().unwrap())
}

fn stop(serving: Serving) {
    serving.handle().stop();
    serving.wait().unwrap();
}

fn connect(uri: &str) -> Client {
    let config = Config { connect_timeout: Duration::from_secs(10), ..Config::default() };
    Client::connect_with(uri, config).wait().unwrap()
}

/// Checks the outcomes of a client: with `order`, its place in the table, or of a client and a server of
/// one version, where all methods have a value.
fn check(codec: Codec, outcomes: &Outcomes, order: Option<usize>, when: &str) {
    let mut methods = Vec::new();
    for row in rows() {
        for (method, expected) in row.of(codec) {
            methods.push(method);
            let got = outcomes.get(method);
            let is_as_expected = match order {
                Some(order) => expected[order].is(got),
                None => got.is_none_or(|got| matches!(got, Got::Value(_))),
            };
            assert!(is_as_expected, "{codec:?} {method} {when}: {got:?}, not {expected:?}");
        }
    }
    for method in outcomes.keys() {
        assert!(methods.contains(method), "{method} of {codec:?} is in no row");
    }
}

/// Programs of both versions, with each order of deployment, a server that is replaced by a newer one and
/// then by the older one again, and clients that were made at each time.
macro_rules! check {
    ($codec:ident, $module:ident) => {{
        use $module::{new, old};

        /// A client of each version.
        struct Both(Client, old::ChangesClient<Client>, new::ChangesClient<Client>);

        let both = |uri: &str| {
            let client = connect(uri);
            let old = client.wait(old::ChangesClient::new(client.clone())).unwrap();
            let new = new::ChangesClient::unchecked(client.clone());
            Both(client, old, new)
        };
        let of_old = |Both(client, old, new): &Both, when| {
            assert_eq!(got(|| old.steady(1).wait_for_ready(true).wait()), Got::Value("2".into()));
            check(Codec::$codec, &old::calls(client, old), None, when);
            check(Codec::$codec, &new::calls(client, new), Some(1), when);
        };
        let of_new = |Both(client, old, new): &Both, when| {
            assert_eq!(got(|| new.steady(1).wait_for_ready(true).wait()), Got::Value("2".into()));
            check(Codec::$codec, &old::calls(client, old), Some(0), when);
            check(Codec::$codec, &new::calls(client, new), None, when);
        };
        let (uri, serving) =
            start("udp://127.0.0.1:0", old::ChangesServer::new(old::Impl::default()));
        let clients = both(&uri);
        of_old(&clients, "at an old server");
        stop(serving);
        let (_, serving) = start(&uri, new::ChangesServer::new(new::Impl::default()));
        of_new(&clients, "at a server that was upgraded");
        of_new(&both(&uri), "at a new server");
        stop(serving);
        let (_, serving) = start(&uri, old::ChangesServer::new(old::Impl::default()));
        of_old(&clients, "at a server whose upgrade was undone");
        stop(serving);
    }};
}

#[test]
fn changes_of_services_with_names_have_the_outcomes_of_the_table() {
    check!(Named, named);
}

#[test]
fn changes_of_services_by_postcard_have_the_outcomes_of_the_table() {
    check!(Postcard, postcard);
}

#[test]
fn changes_of_services_of_protocol_buffers_have_the_outcomes_of_the_table() {
    check!(Prost, protobuf);
}

#[test]
fn changes_of_services_by_rkyv_have_the_outcomes_of_the_table() {
    check!(Rkyv, rkyv);
}

#[test]
fn a_service_with_another_codec_is_refused_with_all_its_methods() {
    macro_rules! refuse {
        ([$($module:ident)*] at $server:ident) => {
            let server = $server::old::ChangesServer::new($server::old::Impl::default());
            let (uri, serving) = start("udp://127.0.0.1:0", server);
            let client = connect(&uri);
            $(
                let other = $module::old::ChangesClient::unchecked(client.clone());
                assert_eq!(got(|| other.steady(1).wait()), Got::Shape);
                assert_eq!(got(|| other.moved().wait()), Got::Shape);
                let error = other.steady(1).wait().unwrap_err().to_string();
                assert!(error.contains("the codecs"), "{error}");
            )*
            drop(client);
            stop(serving);
        };
    }
    refuse!([postcard protobuf rkyv] at named);
    refuse!([named protobuf rkyv] at postcard);
    refuse!([named postcard rkyv] at protobuf);
    refuse!([named postcard protobuf] at rkyv);
}

#[test]
fn a_required_field_is_named_with_what_to_do() {
    let server = named::new::ChangesServer::new(named::new::Impl::default());
    let (uri, serving) = start("udp://127.0.0.1:0", server);
    let client = connect(&uri);
    let old = named::old::ChangesClient::unchecked(client.clone());
    use types::Sample;
    let value = types::by_serde::old::Required::sample();
    let error = old.required_in(value).wait().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("Required.b: the server has a required field"), "{text}");
    assert!(text.contains("`#[serde(default)]`"), "{text}");
    stop(serving);
}
