//! Old and new programs of a service whose messages have changed, in both orders of deployment.

use courser::service::{Incoming, RpcError, ShapeMismatch, Stream};
use courser::{Executed, Server, Serving};
use futures::StreamExt;
use futures::executor::block_on;

use crate::{new, old};

/// Implements the service of a version, whose handlers return what they get.
macro_rules! shop {
    ($version:ident, $renamed:ident) => {
        mod $version {
            use courser::grpc::Status;

            use super::*;
            use crate::$version::*;

            pub(super) struct Echo;

            impl Shop for Echo {
                async fn added(&self, request: Added) -> Result<Added, Status> {
                    Ok(request)
                }
                async fn nested(&self, _: Outer) -> Result<(), Status> {
                    Ok(())
                }
                async fn retyped(&self, _: Retyped) -> Result<(), Status> {
                    Ok(())
                }
                async fn returned(&self) -> Result<Retyped, Status> {
                    Ok(Retyped::default())
                }
                fn streamed(
                    &self,
                    requests: Incoming<Retyped>,
                ) -> impl Stream<Item = Result<Added, Status>> {
                    requests.map(|_| Ok(Added::default()))
                }
                async fn wider(&self, _: Wider) -> Result<(), Status> {
                    Ok(())
                }
                async fn zigzag(&self, _: Zigzag) -> Result<(), Status> {
                    Ok(())
                }
                async fn listed(&self, _: Listed) -> Result<(), Status> {
                    Ok(())
                }
                async fn mapped(&self, _: Mapped) -> Result<(), Status> {
                    Ok(())
                }
                async fn chosen(&self, _: Chosen) -> Result<(), Status> {
                    Ok(())
                }
                async fn enumerated(&self, request: Enumerated) -> Result<Enumerated, Status> {
                    Ok(request)
                }
                async fn renamed(&self, request: $renamed) -> Result<$renamed, Status> {
                    Ok(request)
                }
                async fn removed(&self, request: Removed) -> Result<Removed, Status> {
                    Ok(request)
                }
            }

            pub(super) fn serve() -> (String, Serving) {
                let server = Server::bind("udp://127.0.0.1:0").unwrap();
                let server = server.add_service(ShopServer::new(Echo)).unwrap();
                (server.local_uri(), server.serve().unwrap())
            }
        }
    };
}

mod served {
    use super::*;
    shop!(old, Old);
    shop!(new, New);
    pub(super) fn old() -> (String, Serving) {
        old::serve()
    }
    pub(super) fn new() -> (String, Serving) {
        new::serve()
    }
}

#[track_caller]
fn refused<T, E: std::fmt::Debug>(
    result: Result<T, RpcError<E>>,
    difference: &str,
) -> ShapeMismatch {
    match result {
        Err(error @ RpcError::ShapeMismatch(_)) => {
            assert_eq!(error.executed(), Executed::Never);
            let RpcError::ShapeMismatch(mismatch) = error else { unreachable!() };
            assert_eq!(mismatch.difference, difference);
            (*mismatch).clone()
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a changed method was called"),
    }
}

#[test]
fn an_old_client_calls_a_new_server_where_no_value_is_read_as_another() {
    let (uri, _serving) = served::new();
    block_on(async {
        let shop = old::ShopClient::connect(&uri).await.unwrap();
        assert_eq!(shop.added(old::Added { a: 1 }).await, Ok(old::Added { a: 1 }));
        let kind = old::Kind::One.into();
        let value = old::Enumerated { kind, text: "text".to_owned(), maybe: Some(3) };
        assert_eq!(shop.enumerated(value.clone()).await, Ok(value));
        let value = old::Old { text: "text".to_owned(), next: None };
        assert_eq!(shop.renamed(value.clone()).await, Ok(value));
        // The new server does not have the number.
        let value = old::Removed { text: "text".to_owned(), number: 7 };
        let removed = shop.removed(value.clone()).await;
        assert_eq!(removed, Ok(old::Removed { number: 0, ..value }));
        assert_eq!(shop.wider(old::Wider { number: u32::MAX }).await, Ok(()));

        let value = "shop.Retyped.value = 2: the server has i32, the client u32";
        let mismatch = refused(shop.retyped(old::Retyped { key: 1, value: 1 }).await, value);
        assert_eq!(
            mismatch.client,
            "fn(shop.Retyped { key = 1: u32, value = 2: u32 }) -> () or Status"
        );
        assert_eq!(
            mismatch.server,
            "fn(shop.Retyped { key = 1: u32, value = 2: i32 }) -> () or Status"
        );
        refused(
            shop.returned().await,
            "shop.Retyped.value = 2: the client has u32, the server i32",
        );
        refused(shop.streamed().await, value);
        let nested = "shop.Outer.inners = 1[].count = 3: the server has String, the client u32";
        refused(shop.nested(old::Outer::default()).await, nested);
        let zigzag = "shop.Zigzag.number = 1: the server has sint32, the client i32";
        refused(shop.zigzag(old::Zigzag { number: -1 }).await, zigzag);
        let listed = "shop.Listed.number = 1: the server has Vec<u32>, the client u32";
        refused(shop.listed(old::Listed { number: 1 }).await, listed);
        let mapped = "shop.Mapped.numbers = 1[]: the server has String, the client u32";
        refused(shop.mapped(old::Mapped::default()).await, mapped);
        let chosen = "shop.Chosen: the server has one of the fields of `one`, the client fields that \
                      are set together";
        refused(shop.chosen(old::Chosen::default()).await, chosen);
    });
}

#[test]
fn a_new_client_calls_an_old_server_where_no_value_is_read_as_another() {
    let (uri, _serving) = served::old();
    block_on(async {
        let shop = new::ShopClient::connect(&uri).await.unwrap();
        // The old server skips the field.
        let value = new::Added { a: 1, b: "b".to_owned(), more: vec![] };
        assert_eq!(shop.added(value).await, Ok(new::Added { a: 1, ..Default::default() }));
        let value = new::Enumerated { kind: 2, text: b"text".to_vec(), maybe: 3 };
        assert_eq!(shop.enumerated(value.clone()).await, Ok(value.clone()));
        // No text is an error of decoding.
        let no_text = new::Enumerated { text: vec![0xff], ..value };
        assert!(matches!(shop.enumerated(no_text).await, Err(RpcError::Decode(_))));
        let value = new::New { words: "text".to_owned(), after: None };
        assert_eq!(shop.renamed(value.clone()).await, Ok(value));
        let value = new::Removed { text: "text".to_owned() };
        assert_eq!(shop.removed(value.clone()).await, Ok(value));
        assert_eq!(shop.chosen(new::Chosen { one: None }).await, Ok(()));

        // The number may not fit.
        let wider = "shop.Wider.number = 1: the server has u32, the client u64";
        refused(shop.wider(new::Wider { number: 1 }).await, wider);
        let value = "shop.Retyped.value = 2: the server has u32, the client i32";
        refused(shop.retyped(new::Retyped { key: 1, value: -1 }).await, value);
        refused(
            shop.returned().await,
            "shop.Retyped.value = 2: the client has i32, the server u32",
        );
        refused(shop.streamed().await, value);
        let nested = "shop.Outer.inners = 1[].count = 3: the server has u32, the client String";
        refused(shop.nested(new::Outer::default()).await, nested);
        let zigzag = "shop.Zigzag.number = 1: the server has i32, the client sint32";
        refused(shop.zigzag(new::Zigzag { number: -1 }).await, zigzag);
        let listed = "shop.Listed.number = 1: the server has u32, the client Vec<u32>";
        refused(shop.listed(new::Listed::default()).await, listed);
        let mapped = "shop.Mapped.numbers = 1[]: the server has u32, the client String";
        refused(shop.mapped(new::Mapped::default()).await, mapped);
    });
}

/// The first version as a trait, whose messages have no descriptors.
mod written {
    use courser::grpc::Status;

    #[courser::service(codec = Prost, name = "shop.Shop")]
    pub(super) trait Shop {
        async fn added(&self, request: crate::old::Added) -> Result<crate::old::Added, Status>;
        async fn wider(&self, request: crate::old::Wider) -> Result<(), Status>;
    }
}

#[test]
fn messages_that_are_written_by_hand_are_not_compared() {
    let (uri, _serving) = served::new();
    block_on(async {
        let shop = written::ShopClient::connect(&uri).await.unwrap();
        assert_eq!(shop.added(old::Added { a: 1 }).await, Ok(old::Added { a: 1 }));
        assert_eq!(shop.wider(old::Wider { number: 1 }).await, Ok(()));
    });
}

#[test]
fn shapes_of_all_types_come_back_from_the_network_as_they_are() {
    let things = crate::all::things::ThingsClient::<courser::Client>::SERVICE;
    let shop = new::ShopClient::<courser::Client>::SERVICE;
    for shape in things.shapes().iter().chain(shop.shapes()) {
        for part in [shape.arguments(), shape.sent(), shape.value(), shape.error()] {
            assert_eq!(courser::service::Shape::from_bytes(&part.to_bytes()).as_ref(), Ok(part));
        }
    }
    let get = things.shapes()[2].to_string();
    assert!(get.contains("counts = 3: Map<String, u64>"), "{get}");
    assert!(get.contains("entry = 4: Vec<(all.things.T.Entry { n = 1: i32 })>"), "{get}");
    assert!(get.contains("kind = 5: enum"), "{get}");
}
