//! Changes of a service, each with an old client at a new server, a new client at an old server, and a
//! client whose server is replaced: methods that did not change answer, and no changed one gives a wrong
//! value.

use std::time::Duration;

use courser::service::{BlockingChannel, Incoming, RpcError, Service, Stream};
use courser::{Client, Config, Executed, Server, Serving};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::world::{World, until};

/// A version of a service: its types, its methods beside `steady`, and their implementations.
macro_rules! version {
    ($version:ident, $types:tt, $methods:tt, $answers:tt) => {
        version!($version by Postcard, $types, $methods, $answers);
    };
    ($version:ident by $codec:ident, { $($types:tt)* }, { $($methods:tt)* }, { $($answers:tt)* }) => {
        pub(crate) mod $version {
            #[allow(unused_imports)]
            use super::*;

            $($types)*

            #[courser::service(name = "Table", codec = $codec)]
            pub trait Table {
                async fn steady(&self, n: u32) -> u32;
                $($methods)*
            }

            pub struct Impl;

            impl Table for Impl {
                async fn steady(&self, n: u32) -> u32 {
                    n + 1
                }
                $($answers)*
            }
        }
    };
}

/// A version whose method `row` returns a struct, or an enum, of this definition.
macro_rules! row {
    ($version:ident, $row:tt, $value:expr) => {
        row!($version by Postcard, $row, $value);
    };
    ($version:ident by $codec:ident, { $($row:tt)* }, $value:expr) => {
        version!(
            $version by $codec,
            { #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)] $($row)* },
            { async fn row(&self, key: u32) -> Row; },
            { async fn row(&self, _: u32) -> Row { $value } }
        );
    };
}

row!(
    first,
    {
        pub struct Row {
            pub a: u32,
            pub b: u32,
        }
    },
    Row { a: 1, b: 2 }
);
row!(
    swapped,
    {
        pub struct Row {
            pub b: u32,
            pub a: u32,
        }
    },
    Row { a: 1, b: 2 }
);
row!(
    retyped,
    {
        pub struct Row {
            pub a: i32,
            pub b: u32,
        }
    },
    Row { a: -1, b: 2 }
);
row!(
    wider,
    {
        pub struct Row {
            pub a: u64,
            pub b: u32,
        }
    },
    Row { a: 1 << 40, b: 2 }
);
row!(
    shorter,
    {
        pub struct Row {
            pub a: u32,
        }
    },
    Row { a: 1 }
);
row!(
    longer,
    {
        pub struct Row {
            pub a: u32,
            pub b: u32,
            pub c: Option<u32>,
        }
    },
    Row { a: 1, b: 2, c: Some(3) }
);
row!(
    renamed_field,
    {
        pub struct Row {
            pub a: u32,
            pub size: u32,
        }
    },
    Row { a: 1, size: 2 }
);
row!(
    three,
    {
        pub enum Row {
            A,
            B(u32),
        }
    },
    Row::B(2)
);
row!(
    four,
    {
        pub enum Row {
            A,
            B(u32),
            C,
        }
    },
    Row::C
);
row!(
    reordered,
    {
        pub enum Row {
            B(u32),
            A,
        }
    },
    Row::A
);
row!(
    refilled,
    {
        pub enum Row {
            A,
            B(i32),
        }
    },
    Row::B(-2)
);
version!(
    renamed_type,
    {
        #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
        pub struct Line {
            a: u32,
            b: u32,
        }
    },
    {
        async fn row(&self, number: u32) -> Line;
    },
    {
        async fn row(&self, _: u32) -> Line {
            Line { a: 1, b: 2 }
        }
    }
);
version!(
    more_methods,
    {},
    {
        async fn added(&self) -> u32;
        async fn row(&self, key: u32) -> first::Row;
        fn stream(&self, to: u32) -> impl Stream<Item = u32>;
        async fn upload(&self, items: Incoming<u32>) -> u32;
        #[oneway]
        async fn note(&self, text: String);
    },
    {
        async fn added(&self) -> u32 {
            7
        }
        async fn row(&self, _: u32) -> first::Row {
            first::Row { a: 1, b: 2 }
        }
        fn stream(&self, to: u32) -> impl Stream<Item = u32> {
            futures::stream::iter(0..to)
        }
        async fn upload(&self, _: Incoming<u32>) -> u32 {
            0
        }
        async fn note(&self, _: String) {}
    }
);
version!(
    other_argument,
    {},
    {
        async fn row(&self, key: i32) -> first::Row;
    },
    {
        async fn row(&self, _: i32) -> first::Row {
            first::Row { a: 1, b: 2 }
        }
    }
);
version!(
    more_arguments,
    {},
    {
        async fn row(&self, key: u32, part: u32) -> first::Row;
    },
    {
        async fn row(&self, _: u32, _: u32) -> first::Row {
            first::Row { a: 1, b: 2 }
        }
    }
);
version!(
    two_arguments,
    {},
    {
        async fn row(&self, from: u32, to: u32) -> u32;
    },
    {
        async fn row(&self, from: u32, to: u32) -> u32 {
            to - from
        }
    }
);
version!(
    swapped_arguments,
    {},
    {
        async fn row(&self, to: u32, from: u32) -> u32;
    },
    {
        async fn row(&self, to: u32, from: u32) -> u32 {
            to - from
        }
    }
);
version!(
    renamed_argument,
    {},
    {
        async fn row(&self, first: u32, to: u32) -> u32;
    },
    {
        async fn row(&self, first: u32, to: u32) -> u32 {
            to - first
        }
    }
);
version!(
    with_error,
    {},
    {
        async fn row(&self, key: u32) -> Result<first::Row, u32>;
    },
    {
        async fn row(&self, key: u32) -> Result<first::Row, u32> {
            Err(key)
        }
    }
);
version!(
    streamed,
    {},
    {
        fn row(&self, key: u32) -> impl Stream<Item = first::Row>;
    },
    {
        fn row(&self, _: u32) -> impl Stream<Item = first::Row> {
            futures::stream::iter([first::Row { a: 1, b: 2 }])
        }
    }
);

version!(
    conversing,
    {},
    {
        fn row(&self, key: u32, keys: Incoming<u32>) -> impl Stream<Item = first::Row>;
    },
    {
        fn row(&self, _: u32, _: Incoming<u32>) -> impl Stream<Item = first::Row> {
            futures::stream::iter([first::Row { a: 1, b: 2 }])
        }
    }
);
version!(
    uploading,
    {},
    {
        async fn row(&self, key: u32, keys: Incoming<u32>) -> first::Row;
    },
    {
        async fn row(&self, _: u32, _: Incoming<u32>) -> first::Row {
            first::Row { a: 1, b: 2 }
        }
    }
);

/// The same changes with names on the network.
mod named {
    use super::*;

    row!(first by Named, { pub struct Row { pub a: u32, pub b: u32 } }, Row { a: 1, b: 2 });
    row!(swapped by Named, { pub struct Row { pub b: u32, pub a: u32 } }, Row { a: 1, b: 2 });
    row!(retyped by Named, { pub struct Row { pub a: i32, pub b: u32 } }, Row { a: -1, b: 2 });
    row!(
        longer by Named,
        { pub struct Row { pub a: u32, pub b: u32, #[serde(default)] pub c: Option<u32> } },
        Row { a: 1, b: 2, c: Some(3) }
    );
    row!(three by Named, { pub enum Row { A, B(u32) } }, Row::B(2));
    row!(four by Named, { pub enum Row { A, C, B(u32) } }, Row::B(2));
    row!(fourth by Named, { pub enum Row { A, C, B(u32) } }, Row::C);
    version!(
        with_error by Named,
        {},
        { async fn row(&self, key: u32) -> Result<first::Row, u32>; },
        { async fn row(&self, key: u32) -> Result<first::Row, u32> { Err(key) } }
    );
    version!(
        short_items by Named,
        { #[derive(Serialize, Deserialize)] pub struct Item { pub n: u32 } },
        { fn row(&self, items: Incoming<Item>) -> impl Stream<Item = Item>; },
        { fn row(&self, items: Incoming<Item>) -> impl Stream<Item = Item> {
            items.map(|item| Item { n: item.unwrap().n + 1 })
        } }
    );
    version!(
        long_items by Named,
        {
            #[derive(Serialize, Deserialize)]
            pub struct Item { #[serde(default)] pub part: u8, pub n: u32 }
        },
        { fn row(&self, items: Incoming<Item>) -> impl Stream<Item = Item>; },
        { fn row(&self, items: Incoming<Item>) -> impl Stream<Item = Item> {
            items.map(|item| item.map(|Item { part, n }| Item { part: part + 2, n: n + 2 }).unwrap())
        } }
    );
    version!(
        two_arguments by Named,
        {},
        { async fn row(&self, from: u32, to: u32) -> u32; },
        { async fn row(&self, from: u32, to: u32) -> u32 { to - from } }
    );
    version!(
        swapped_arguments by Named,
        {},
        { async fn row(&self, to: u32, from: u32) -> u32; },
        { async fn row(&self, to: u32, from: u32) -> u32 { to - from } }
    );
    version!(
        told by Named,
        {},
        { #[oneway] async fn row(&self, key: u32); },
        { async fn row(&self, _: u32) {} }
    );
    version!(
        argument by Named,
        { #[derive(Serialize, Deserialize)] pub struct Key { pub n: u32 } },
        { async fn row(&self, key: Key) -> u32; },
        { async fn row(&self, key: Key) -> u32 { key.n } }
    );
    version!(
        more_of_argument by Named,
        {
            #[derive(Serialize, Deserialize)]
            pub struct Key { #[serde(default)] pub part: u8, pub n: u32 }
        },
        { async fn row(&self, key: Key) -> u32; },
        { async fn row(&self, key: Key) -> u32 { key.n + u32::from(key.part) } }
    );
}

/// The outcome of the changed method.
#[derive(Clone, PartialEq, Debug)]
enum Got {
    /// A value, as text.
    Value(String),
    Unknown,
    Shape,
}

fn got<T: std::fmt::Debug, E: std::fmt::Display>(outcome: Result<T, RpcError<E>>) -> Got {
    match outcome {
        Ok(value) => Got::Value(format!("{value:?}")),
        Err(error) => {
            assert_eq!(error.executed(), Executed::Never, "{error}");
            match error {
                RpcError::UnknownMethod(_) => Got::Unknown,
                RpcError::ShapeMismatch(mismatch) => {
                    let text = mismatch.to_string();
                    assert!(text.contains("Table.row differs"), "{text}");
                    assert!(mismatch.client != mismatch.server, "{text}");
                    Got::Shape
                }
                error => panic!("{error}"),
            }
        }
    }
}

/// The outcome of `row` of a client of one version at the server of another one, with a client that asked
/// first, and one that did not.
macro_rules! row_of {
    ($client:ident at $server:ident) => {
        row_of!($client at $server, |client| client.row(5).await)
    };
    ($client:ident at $server:ident, |$called:ident| $call:expr) => {{
        let mut world = World::new(7);
        $server::TableServer::new($server::Impl).register(&mut world).unwrap();
        let checked = world.run($client::TableClient::new(world.session())).unwrap();
        let lazy = $client::TableClient::unchecked(world.session());
        let outcomes = [checked, lazy].map(|client| {
            world.run(async {
                assert_eq!(client.steady(1).await, Ok(2), "a method that did not change");
                let $called = &client;
                let outcome = got($call);
                assert_eq!(client.steady(2).await, Ok(3), "after the call of the changed one");
                outcome
            })
        });
        world.assert_clean();
        assert_eq!(outcomes[0], outcomes[1]);
        outcomes[0].clone()
    }};
}

/// Both orders of deployment of a change from `first`.
macro_rules! both {
    ($new:ident) => {
        [row_of!(first at $new), row_of!($new at first)]
    };
}

#[test]
fn methods_are_found_by_name_and_shape_whatever_their_types_are_called() {
    let value = |text: &str| Got::Value(text.to_owned());
    assert_eq!(both!(renamed_type), [value("Row { a: 1, b: 2 }"), value("Line { a: 1, b: 2 }")]);
    assert_eq!(both!(more_methods), [value("Row { a: 1, b: 2 }"), value("Row { a: 1, b: 2 }")]);
}

#[test]
fn changed_types_of_postcard_are_refused_for_their_method_alone() {
    let refused = [Got::Shape, Got::Shape];
    assert_eq!(both!(swapped), refused);
    assert_eq!(both!(retyped), refused);
    assert_eq!(both!(wider), refused);
    assert_eq!(both!(shorter), refused);
    assert_eq!(both!(longer), refused);
    assert_eq!(both!(renamed_field), refused);
    assert_eq!(both!(other_argument), refused);
    assert_eq!(both!(with_error), refused);
    assert_eq!([row_of!(three at reordered), row_of!(reordered at three)], refused);
    assert_eq!([row_of!(three at refilled), row_of!(refilled at three)], refused);
    assert_eq!([row_of!(three at four), row_of!(four at three)], refused);
}

#[test]
fn fields_with_names_are_added_and_moved() {
    use named::*;
    let value = |text: &str| Got::Value(text.to_owned());
    let row = value("Row { a: 1, b: 2 }");
    assert_eq!(
        [row_of!(first at swapped), row_of!(swapped at first)],
        [row.clone(), value("Row { b: 2, a: 1 }")]
    );
    assert_eq!(
        [row_of!(first at longer), row_of!(longer at first)],
        [row, value("Row { a: 1, b: 2, c: None }")]
    );
    let b = value("B(2)");
    assert_eq!([row_of!(three at four), row_of!(four at three)], [b.clone(), b]);
    assert_eq!([row_of!(first at retyped), row_of!(retyped at first)], [Got::Shape, Got::Shape]);
    assert_eq!(row_of!(first at with_error), Got::Shape);
    assert_eq!(row_of!(with_error at first), Got::Shape);
    let swapped = row_of!(two_arguments at swapped_arguments, |c| c.row(3, 7).await);
    assert_eq!([swapped, row_of!(first at two_arguments)], [Got::Shape, Got::Shape]);
    assert_eq!([row_of!(first at told), row_of!(told at first)], [Got::Shape, Got::Shape]);
    // In the other direction: the server reads.
    use {argument::Key, more_of_argument::Key as More};
    let old = row_of!(argument at more_of_argument, |c| c.row(Key { n: 7 }).await);
    let new = row_of!(more_of_argument at argument, |c| c.row(More { part: 1, n: 7 }).await);
    assert_eq!([old, new], [value("7"), value("7")]);
    // The items of a stream each way.
    use {long_items::Item as Long, short_items::Item as Short};
    let old = row_of!(short_items at long_items, |c| {
        let mut chat = c.row().await.unwrap();
        chat.send(&Short { n: 5 }).await.unwrap();
        chat.next().await.unwrap().map(|item| item.n)
    });
    let new = row_of!(long_items at short_items, |c| {
        let mut chat = c.row().await.unwrap();
        chat.send(&Long { part: 1, n: 5 }).await.unwrap();
        chat.next().await.unwrap().map(|item| (item.part, item.n))
    });
    assert_eq!([old, new], [value("7"), value("(0, 6)")]);
}

#[test]
fn a_variant_that_the_reader_does_not_have_is_an_error_of_decoding() {
    let mut world = World::new(7);
    named::fourth::TableServer::new(named::fourth::Impl).register(&mut world).unwrap();
    let client = world.run(named::three::TableClient::new(world.session())).unwrap();
    world.run(async {
        let error = client.row(5).await.unwrap_err();
        assert!(matches!(error, RpcError::Decode(_)), "{error}");
        assert_eq!(error.executed(), Executed::Yes);
        assert_eq!(client.steady(1).await, Ok(2));
    });
    world.assert_clean();
}

#[test]
fn a_method_of_another_kind_or_with_more_arguments_is_refused() {
    assert_eq!(row_of!(first at more_arguments), Got::Shape);
    assert_eq!(row_of!(first at streamed), Got::Shape);
    assert_eq!(row_of!(first at conversing), Got::Shape);
    let other = row_of!(streamed at conversing, |client| client.row(5).await.map(drop));
    assert_eq!(other, Got::Shape);
    let other = row_of!(conversing at streamed, |client| client.row(5).await.map(drop));
    assert_eq!(other, Got::Shape);
    let other = row_of!(conversing at uploading, |client| client.row(5).await.map(drop));
    assert_eq!(other, Got::Shape);
    let other = row_of!(uploading at conversing, |client| client.row(5).await.map(drop));
    assert_eq!(other, Got::Shape);
    let mut world = World::new(7);
    first::TableServer::new(first::Impl).register(&mut world).unwrap();
    let client = world.run(streamed::TableClient::new(world.session())).unwrap();
    let more = world.run(more_arguments::TableClient::new(world.session())).unwrap();
    world.run(async {
        assert_eq!(got(more.row(5, 6).await), Got::Shape);
        assert_eq!(got(client.row(5).await.map(drop)), Got::Shape);
        assert_eq!(client.steady(1).await, Ok(2));
    });
    world.assert_clean();
}

#[test]
fn parameters_that_change_places_are_refused_and_renamed_ones_are_not() {
    let swapped = row_of!(two_arguments at swapped_arguments, |c| c.row(3, 7).await);
    let back = row_of!(swapped_arguments at two_arguments, |c| c.row(7, 3).await);
    assert_eq!([swapped, back], [Got::Shape, Got::Shape]);
    let renamed = row_of!(two_arguments at renamed_argument, |c| c.row(3, 7).await);
    assert_eq!(renamed, Got::Value("4".to_owned()));
}

#[test]
fn each_kind_of_method_that_a_server_does_not_have_is_unknown() {
    let mut world = World::new(7);
    first::TableServer::new(first::Impl).register(&mut world).unwrap();
    let checked = world.run(more_methods::TableClient::new(world.session())).unwrap();
    let lazy = more_methods::TableClient::unchecked(world.session());
    for client in [checked, lazy] {
        world.run(async {
            for _ in 0..3 {
                assert_eq!(got(client.added().await), Got::Unknown);
                assert_eq!(got(client.stream(3).await.map(drop)), Got::Unknown);
                assert_eq!(got(client.upload().await.map(drop)), Got::Unknown);
                assert_eq!(got(client.note("text".to_owned()).await), Got::Unknown);
            }
            assert_eq!(client.steady(1).await, Ok(2));
        });
    }
    // Streams have a session of their own, which asks too, and is used again.
    assert_eq!(world.services.stats().mismatches, 4);
    world.assert_clean();
}

mod other {
    #[courser::service]
    pub trait Other {
        async fn one(&self) -> u32;
    }

    pub struct Impl;

    impl Other for Impl {
        async fn one(&self) -> u32 {
            1
        }
    }
}

fn start<S: Service>(uri: &str, service: S) -> (String, Serving) {
    let server = Server::bind(uri).unwrap().add_service(service).unwrap();
    (server.local_uri(), server.serve().unwrap())
}

fn stop(serving: Serving) {
    serving.handle().stop();
    serving.wait().unwrap();
}

#[test]
fn a_method_that_a_server_does_not_have_is_unknown_also_with_metadata() {
    let (uri, serving) = start("udp://127.0.0.1:0", first::TableServer::new(first::Impl));
    let client = Client::connect(&uri).wait().unwrap();
    let lazy = more_methods::TableClient::unchecked(client.clone());
    let checked = client.wait(more_methods::TableClient::new(client.clone())).unwrap();
    for client in [lazy, checked] {
        assert_eq!(got(client.added().metadata("k", "v").wait()), Got::Unknown);
        assert_eq!(got(client.added().with_response_metadata().wait().0), Got::Unknown);
        assert_eq!(got(client.note("text".to_owned()).metadata("k", "v").wait()), Got::Unknown);
        assert_eq!(client.steady(1).metadata("k", "v").wait(), Ok(2));
    }
    stop(serving);
}

#[test]
fn a_client_goes_on_when_its_server_is_replaced_by_another_version() {
    let (uri, serving) = start("udp://127.0.0.1:0", first::TableServer::new(first::Impl));
    let config = Config { connect_timeout: Duration::from_secs(10), ..Config::default() };
    let client = Client::connect_with(&uri, config).wait().unwrap();
    let checked = client.wait(first::TableClient::new(client.clone())).unwrap();
    let lazy = more_methods::TableClient::unchecked(client.clone());
    let steady = |checked: &first::TableClient| {
        let call = checked.steady(1).wait_for_ready(true);
        // The first call may be the one that notices the loss.
        call.wait().or_else(|_| checked.steady(1).wait_for_ready(true).wait())
    };
    assert_eq!(steady(&checked), Ok(2));
    assert_eq!(got(checked.row(1).wait()), Got::Value("Row { a: 1, b: 2 }".to_owned()));
    assert_eq!(got(lazy.added().wait()), Got::Unknown);
    stop(serving);

    let (_, serving) = start(&uri, more_methods::TableServer::new(more_methods::Impl));
    assert_eq!(steady(&checked), Ok(2), "a method more");
    assert_eq!(got(checked.row(1).wait()), Got::Value("Row { a: 1, b: 2 }".to_owned()));
    assert_eq!(got(lazy.added().wait()), Got::Value("7".to_owned()));
    stop(serving);

    let (_, serving) = start(&uri, retyped::TableServer::new(retyped::Impl));
    assert_eq!(steady(&checked), Ok(2), "a type changed");
    for _ in 0..3 {
        assert_eq!(got(checked.row(1).wait()), Got::Shape);
        assert_eq!(got(lazy.added().wait()), Got::Unknown);
    }
    stop(serving);

    // Another codec, and a server without the service. Other services of the client are not affected.
    let (_, serving) = start(&uri, named::first::TableServer::new(named::first::Impl));
    let by_names = |outcome: &Result<_, _>| match outcome {
        Err(RpcError::ShapeMismatch(mismatch)) => mismatch.server.ends_with("by messagepack"),
        _ => false,
    };
    until(|| by_names(&checked.row(1).wait()));
    stop(serving);
    let (_, serving) = start(&uri, other::OtherServer::new(other::Impl));
    until(|| matches!(checked.row(1).wait(), Err(RpcError::UnknownMethod(_))));
    let other = other::OtherClient::unchecked(client.clone());
    assert_eq!(other.one().wait(), Ok(1));
    stop(serving);

    // Back to the first version, as an upgrade that is undone.
    let (_, serving) = start(&uri, first::TableServer::new(first::Impl));
    until(|| steady(&checked) == Ok(2));
    assert_eq!(got(checked.row(1).wait()), Got::Value("Row { a: 1, b: 2 }".to_owned()));
    stop(serving);
}
