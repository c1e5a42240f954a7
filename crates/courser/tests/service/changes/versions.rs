//! The services: each changed method is named after its change. Methods of one text in both versions
//! have types that differ.

use std::sync::atomic::{AtomicI64, Ordering};

use courser::Client;
use courser::service::{BlockingChannel, Incoming, Stream};
use futures::{StreamExt, stream};

use super::types::Sample;
use super::{Got, Outcomes, arrived, got};

/// Calls methods, and notes their outcomes by their names.
macro_rules! unary {
    ($all:ident $table:ident $($method:ident($($argument:expr),*))*) => {
        $($all.insert(stringify!($method), got(|| $table.$method($($argument),*).wait()));)*
    };
}

/// The first item of streams of the server.
macro_rules! down {
    ($all:ident $table:ident $client:ident $($method:ident)*) => {
        $($all.insert(stringify!($method), got(|| $client.wait(async {
            let mut items = $table.$method().await?;
            items.next().await.unwrap()
        })));)*
    };
}

/// The answer to streams of one item of the client.
macro_rules! up {
    ($all:ident $table:ident $client:ident $($method:ident($item:expr))*) => {
        $($all.insert(stringify!($method), got(|| $client.wait(async {
            let mut upload = $table.$method().await?;
            upload.send(&$item).await?;
            upload.finish().await
        })));)*
    };
}

/// An item that comes back.
macro_rules! both {
    ($all:ident $table:ident $client:ident $($method:ident($item:expr))*) => {
        $($all.insert(stringify!($method), got(|| $client.wait(async {
            let mut chat = $table.$method().await?;
            chat.send(&$item).await?;
            chat.next().await.unwrap()
        })));)*
    };
}

/// The value of a one-way message, as the server has read it.
macro_rules! told {
    ($all:ident $table:ident $($method:ident($value:expr))*) => {
        $($all.insert(stringify!($method), {
            let sent = got(|| $table.$method($value).wait());
            if matches!(sent, Got::Value(_)) { arrived(|| $table.told().wait()) } else { sent }
        });)*
    };
}

/// Methods whose types have changed: as results (`x`), as parameters (`x_in`), as the items of the server
/// (`x_down`), of the client (`x_up`) and of both (`x_both`), and as one-way messages (`x_told`).
macro_rules! version {
    ($version:ident by $codec:ident of $family:ident, { $($methods:tt)* }, { $($answers:tt)* }, |$client:ident, $table:ident, $all:ident| { $($calls:tt)* }) => {
        pub mod $version {
            use super::*;
            use crate::changes::types::$family::$version::*;

            #[courser::service(name = "Changes", codec = $codec)]
            pub trait Changes {
                async fn steady(&self, n: u32) -> u32;
                async fn told(&self) -> i64;
                async fn moved(&self) -> Moved;
                async fn moved_in(&self, value: Moved) -> i64;
                async fn retyped(&self) -> Retyped;
                async fn retyped_in(&self, value: Retyped) -> i64;
                async fn wider(&self) -> Wider;
                async fn wider_in(&self, value: Wider) -> i64;
                async fn defaulted(&self) -> Defaulted;
                async fn defaulted_in(&self, value: Defaulted) -> i64;
                async fn required(&self) -> Required;
                async fn required_in(&self, value: Required) -> i64;
                async fn required_error(&self) -> Result<u32, Required>;
                async fn shortened(&self) -> Shortened;
                async fn shortened_in(&self, value: Shortened) -> i64;
                async fn renamed(&self) -> Renamed;
                async fn renamed_in(&self, value: Renamed) -> i64;
                fn retyped_down(&self) -> impl Stream<Item = Retyped>;
                fn defaulted_down(&self) -> impl Stream<Item = Defaulted>;
                fn required_down(&self) -> impl Stream<Item = Required>;
                async fn retyped_up(&self, items: Incoming<Retyped>) -> i64;
                async fn defaulted_up(&self, items: Incoming<Defaulted>) -> i64;
                async fn required_up(&self, items: Incoming<Required>) -> i64;
                fn retyped_both(&self, items: Incoming<Retyped>) -> impl Stream<Item = Retyped>;
                fn defaulted_both(&self, items: Incoming<Defaulted>) -> impl Stream<Item = Defaulted>;
                fn required_both(&self, items: Incoming<Required>) -> impl Stream<Item = Required>;
                #[oneway]
                async fn retyped_told(&self, value: Retyped);
                #[oneway]
                async fn defaulted_told(&self, value: Defaulted);
                #[oneway]
                async fn required_told(&self, value: Required);
                $($methods)*
            }

            #[derive(Default)]
            pub struct Impl {
                told: AtomicI64,
            }

            impl Changes for Impl {
                async fn steady(&self, n: u32) -> u32 {
                    n + 1
                }
                async fn told(&self) -> i64 {
                    self.told.swap(0, Ordering::Relaxed)
                }
                async fn moved(&self) -> Moved {
                    Moved::sample()
                }
                async fn moved_in(&self, value: Moved) -> i64 {
                    value.sum()
                }
                async fn retyped(&self) -> Retyped {
                    Retyped::sample()
                }
                async fn retyped_in(&self, value: Retyped) -> i64 {
                    value.sum()
                }
                async fn wider(&self) -> Wider {
                    Wider::sample()
                }
                async fn wider_in(&self, value: Wider) -> i64 {
                    value.sum()
                }
                async fn defaulted(&self) -> Defaulted {
                    Defaulted::sample()
                }
                async fn defaulted_in(&self, value: Defaulted) -> i64 {
                    value.sum()
                }
                async fn required(&self) -> Required {
                    Required::sample()
                }
                async fn required_in(&self, value: Required) -> i64 {
                    value.sum()
                }
                async fn required_error(&self) -> Result<u32, Required> {
                    Err(Required::sample())
                }
                async fn shortened(&self) -> Shortened {
                    Shortened::sample()
                }
                async fn shortened_in(&self, value: Shortened) -> i64 {
                    value.sum()
                }
                async fn renamed(&self) -> Renamed {
                    Renamed::sample()
                }
                async fn renamed_in(&self, value: Renamed) -> i64 {
                    value.sum()
                }
                fn retyped_down(&self) -> impl Stream<Item = Retyped> {
                    stream::iter([Retyped::sample()])
                }
                fn defaulted_down(&self) -> impl Stream<Item = Defaulted> {
                    stream::iter([Defaulted::sample()])
                }
                fn required_down(&self) -> impl Stream<Item = Required> {
                    stream::iter([Required::sample()])
                }
                async fn retyped_up(&self, items: Incoming<Retyped>) -> i64 {
                    items.map(|item| item.unwrap().sum()).fold(0, |a, b| async move { a + b }).await
                }
                async fn defaulted_up(&self, items: Incoming<Defaulted>) -> i64 {
                    items.map(|item| item.unwrap().sum()).fold(0, |a, b| async move { a + b }).await
                }
                async fn required_up(&self, items: Incoming<Required>) -> i64 {
                    items.map(|item| item.unwrap().sum()).fold(0, |a, b| async move { a + b }).await
                }
                fn retyped_both(&self, items: Incoming<Retyped>) -> impl Stream<Item = Retyped> {
                    items.map(|item| item.unwrap())
                }
                fn defaulted_both(&self, items: Incoming<Defaulted>) -> impl Stream<Item = Defaulted> {
                    items.map(|item| item.unwrap())
                }
                fn required_both(&self, items: Incoming<Required>) -> impl Stream<Item = Required> {
                    items.map(|item| item.unwrap())
                }
                async fn retyped_told(&self, value: Retyped) {
                    self.told.store(value.sum(), Ordering::Relaxed);
                }
                async fn defaulted_told(&self, value: Defaulted) {
                    self.told.store(value.sum(), Ordering::Relaxed);
                }
                async fn required_told(&self, value: Required) {
                    self.told.store(value.sum(), Ordering::Relaxed);
                }
                $($answers)*
            }

            /// The outcomes of all methods that this version has.
            pub fn calls($client: &Client, $table: &ChangesClient<Client>) -> Outcomes {
                let mut $all = Outcomes::new();
                unary! { $all $table
                    moved() moved_in(Moved::sample())
                    retyped() retyped_in(Retyped::sample())
                    wider() wider_in(Wider::sample())
                    defaulted() defaulted_in(Defaulted::sample())
                    required() required_in(Required::sample()) required_error()
                    shortened() shortened_in(Shortened::sample())
                    renamed() renamed_in(Renamed::sample())
                }
                down! { $all $table $client retyped_down defaulted_down required_down }
                up! { $all $table $client
                    retyped_up(Retyped::sample())
                    defaulted_up(Defaulted::sample())
                    required_up(Required::sample())
                }
                both! { $all $table $client
                    retyped_both(Retyped::sample())
                    defaulted_both(Defaulted::sample())
                    required_both(Required::sample())
                }
                told! { $all $table
                    retyped_told(Retyped::sample())
                    defaulted_told(Defaulted::sample())
                    required_told(Required::sample())
                }
                $($calls)*
                $all
            }
        }
    };
}

/// Both versions with a codec. The methods that are not of one text in both are here.
macro_rules! codec {
    ($module:ident by $codec:ident of $family:ident, { $($methods:tt)* }, { $($answers:tt)* }, |$client:ident, $table:ident, $all:ident| { $($calls:tt)* }) => {
        pub mod $module {
            use super::*;

            version!(old by $codec of $family, {
                async fn removed(&self) -> u32;
                async fn old_name(&self) -> u32;
                async fn renamed_type(&self, key: u32) -> Row;
                async fn renamed_parameter(&self, from: u32, to: u32) -> u32;
                async fn swapped(&self, from: u32, to: u32) -> u32;
                async fn parameter(&self, key: u32) -> u32;
                async fn result(&self) -> u32;
                async fn error(&self) -> u32;
                async fn streamed(&self) -> u32;
                async fn one_way(&self, key: u32) -> u32;
                async fn attributes(&self) -> u32;
                $($methods)*
            }, {
                async fn removed(&self) -> u32 { 3 }
                async fn old_name(&self) -> u32 { 4 }
                async fn renamed_type(&self, _: u32) -> Row { Row::sample() }
                async fn renamed_parameter(&self, from: u32, to: u32) -> u32 { to - from }
                async fn swapped(&self, from: u32, to: u32) -> u32 { to - from }
                async fn parameter(&self, key: u32) -> u32 { key }
                async fn result(&self) -> u32 { 5 }
                async fn error(&self) -> u32 { 6 }
                async fn streamed(&self) -> u32 { 7 }
                async fn one_way(&self, key: u32) -> u32 { key }
                async fn attributes(&self) -> u32 { 8 }
                $($answers)*
            }, |$client, $table, $all| {
                unary! { $all $table
                    removed() old_name() renamed_type(1) renamed_parameter(3, 7) swapped(3, 7)
                    parameter(9) result() error() streamed() one_way(9) attributes()
                }
                $($calls)*
            });
            version!(new by $codec of $family, {
                async fn added(&self) -> u32;
                async fn new_name(&self) -> u32;
                async fn renamed_type(&self, number: u32) -> Line;
                async fn renamed_parameter(&self, first: u32, to: u32) -> u32;
                async fn swapped(&self, to: u32, from: u32) -> u32;
                async fn parameter(&self, key: u32, part: u32) -> u32;
                async fn result(&self) -> String;
                async fn error(&self) -> Result<u32, u32>;
                fn streamed(&self) -> impl Stream<Item = u32>;
                #[oneway]
                async fn one_way(&self, key: u32);
                #[idempotent]
                #[deadline("60 s")]
                async fn attributes(&self) -> u32;
                $($methods)*
            }, {
                async fn added(&self) -> u32 { 3 }
                async fn new_name(&self) -> u32 { 4 }
                async fn renamed_type(&self, _: u32) -> Line { Line::sample() }
                async fn renamed_parameter(&self, first: u32, to: u32) -> u32 { to - first }
                async fn swapped(&self, to: u32, from: u32) -> u32 { to - from }
                async fn parameter(&self, key: u32, part: u32) -> u32 { key + part }
                async fn result(&self) -> String { "five".to_owned() }
                async fn error(&self) -> Result<u32, u32> { Ok(6) }
                fn streamed(&self) -> impl Stream<Item = u32> { stream::iter([7]) }
                async fn one_way(&self, _: u32) {}
                async fn attributes(&self) -> u32 { 8 }
                $($answers)*
            }, |$client, $table, $all| {
                unary! { $all $table
                    added() new_name() renamed_type(1) renamed_parameter(3, 7) swapped(7, 3)
                    parameter(9, 1) result() error() one_way(9) attributes()
                }
                down! { $all $table $client streamed }
                $($calls)*
            });
        }
    };
}

/// Both versions with a codec of serde, with enums.
macro_rules! codec_of_serde {
    ($module:ident by $codec:ident) => {
        codec!($module by $codec of by_serde, {
            async fn variant(&self) -> More;
            async fn variant_added(&self) -> More;
            async fn variant_kept(&self) -> Less;
            async fn variant_removed(&self) -> Less;
            async fn variant_in(&self, value: More) -> i64;
            async fn variant_added_in(&self, value: More) -> i64;
            async fn error_variant(&self) -> Result<u32, More>;
            async fn error_variant_added(&self) -> Result<u32, More>;
        }, {
            async fn variant(&self) -> More { More::B(2) }
            async fn variant_added(&self) -> More { ADDED }
            async fn variant_kept(&self) -> Less { Less::B(2) }
            async fn variant_removed(&self) -> Less { REMOVED }
            async fn variant_in(&self, value: More) -> i64 { i64::from(value == More::B(2)) }
            async fn variant_added_in(&self, value: More) -> i64 { i64::from(value == ADDED) }
            async fn error_variant(&self) -> Result<u32, More> { Err(More::B(2)) }
            async fn error_variant_added(&self) -> Result<u32, More> { Err(ADDED) }
        }, |client, table, all| {
            unary! { all table
                variant() variant_added() variant_kept() variant_removed()
                variant_in(More::B(2)) variant_added_in(ADDED)
                error_variant() error_variant_added()
            }
        });
    };
}

codec_of_serde!(named by Named);
codec_of_serde!(postcard by Postcard);
codec!(protobuf by Prost of by_prost, {}, {}, |client, table, all| {});

/// The methods for which rkyv has a rule. It compares names, sizes and alignments of types.
macro_rules! version_of_rkyv {
    ($version:ident, { $($methods:tt)* }, { $($answers:tt)* }, |$client:ident, $table:ident, $all:ident| { $($calls:tt)* }) => {
        pub mod $version {
            use super::*;
            use crate::changes::types::by_rkyv::$version::*;

            #[courser::service(name = "Changes", codec = Rkyv)]
            pub trait Changes {
                async fn steady(&self, n: u32) -> u32;
                async fn moved(&self) -> Moved;
                async fn moved_in(&self, value: Moved) -> i64;
                async fn wider(&self) -> Wider;
                async fn required(&self) -> Required;
                async fn required_in(&self, value: Required) -> i64;
                $($methods)*
            }

            #[derive(Default)]
            pub struct Impl;

            impl Changes for Impl {
                async fn steady(&self, n: u32) -> u32 {
                    n + 1
                }
                async fn moved(&self) -> Moved {
                    Moved::sample()
                }
                async fn moved_in(&self, value: Moved) -> i64 {
                    value.sum()
                }
                async fn wider(&self) -> Wider {
                    Wider::sample()
                }
                async fn required(&self) -> Required {
                    Required::sample()
                }
                async fn required_in(&self, value: Required) -> i64 {
                    value.sum()
                }
                $($answers)*
            }

            /// The outcomes of all methods that this version has.
            pub fn calls($client: &Client, $table: &ChangesClient<Client>) -> Outcomes {
                let mut $all = Outcomes::new();
                unary! { $all $table
                    moved() moved_in(Moved::sample()) wider() required() required_in(Required::sample())
                }
                $($calls)*
                $all
            }
        }
    };
}

pub mod rkyv {
    use super::*;

    version_of_rkyv!(
        old,
        {
            async fn removed(&self) -> u32;
            async fn old_name(&self) -> u32;
            async fn renamed_type(&self, key: u32) -> Row;
            async fn renamed_parameter(&self, from: u32, to: u32) -> u32;
            async fn swapped(&self, from: u32, to: u32) -> u32;
            async fn parameter(&self, key: u32) -> u32;
            async fn error(&self) -> u32;
            async fn streamed(&self) -> u32;
            async fn attributes(&self) -> u32;
        },
        {
            async fn removed(&self) -> u32 {
                3
            }
            async fn old_name(&self) -> u32 {
                4
            }
            async fn renamed_type(&self, _: u32) -> Row {
                Row::sample()
            }
            async fn renamed_parameter(&self, from: u32, to: u32) -> u32 {
                to - from
            }
            async fn swapped(&self, from: u32, to: u32) -> u32 {
                to - from
            }
            async fn parameter(&self, key: u32) -> u32 {
                key
            }
            async fn error(&self) -> u32 {
                6
            }
            async fn streamed(&self) -> u32 {
                7
            }
            async fn attributes(&self) -> u32 {
                8
            }
        },
        |_client, table, all| {
            unary! { all table
                removed() old_name() renamed_type(1) renamed_parameter(3, 7) swapped(3, 7)
                parameter(9) error() streamed() attributes()
            }
        }
    );
    version_of_rkyv!(
        new,
        {
            async fn added(&self) -> u32;
            async fn new_name(&self) -> u32;
            async fn renamed_type(&self, number: u32) -> Line;
            async fn renamed_parameter(&self, first: u32, to: u32) -> u32;
            async fn swapped(&self, to: u32, from: u32) -> u32;
            async fn parameter(&self, key: u32, part: u32) -> u32;
            async fn error(&self) -> Result<u32, u32>;
            fn streamed(&self) -> impl Stream<Item = u32>;
            #[idempotent]
            #[deadline("60 s")]
            async fn attributes(&self) -> u32;
        },
        {
            async fn added(&self) -> u32 {
                3
            }
            async fn new_name(&self) -> u32 {
                4
            }
            async fn renamed_type(&self, _: u32) -> Line {
                Line::sample()
            }
            async fn renamed_parameter(&self, first: u32, to: u32) -> u32 {
                to - first
            }
            async fn swapped(&self, to: u32, from: u32) -> u32 {
                to - from
            }
            async fn parameter(&self, key: u32, part: u32) -> u32 {
                key + part
            }
            async fn error(&self) -> Result<u32, u32> {
                Ok(6)
            }
            fn streamed(&self) -> impl Stream<Item = u32> {
                stream::iter([7])
            }
            async fn attributes(&self) -> u32 {
                8
            }
        },
        |client, table, all| {
            unary! { all table
                added() new_name() renamed_type(1) renamed_parameter(3, 7) swapped(7, 3)
                parameter(9, 1) error() attributes()
            }
            down! { all table client streamed }
        }
    );
}
