//! Services of `.proto` files with all that a file can have: that the generated code compiles, and does
//! what the file says.

#![allow(missing_docs, deprecated, clippy::all)]

/// The error of all methods.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Fault {
    #[prost(string, tag = "1")]
    pub text: String,
}

/// Nested as the packages are.
pub mod all {
    pub mod parts {
        courser::include_proto!("all.parts");
    }
    pub mod things {
        courser::include_proto!("all.things");
    }
}

/// Two versions of a service.
pub mod old {
    include!(concat!(env!("OUT_DIR"), "/old/shop.rs"));
}
pub mod new {
    include!(concat!(env!("OUT_DIR"), "/new/shop.rs"));
}

#[cfg(test)]
mod versions;

#[cfg(test)]
mod tests {
    use courser::Server;
    use courser::service::{CallContext, Incoming, RpcError, Stream};
    use futures::executor::block_on;
    use futures::{StreamExt, stream};

    use super::Fault;
    use super::all::parts::Part;
    use super::all::things::{Chan, Ptr, T, Things, ThingsClient, ThingsServer, t};

    struct Store;

    impl Things for Store {
        async fn get(&self, request: Ptr) -> Result<T, Fault> {
            match request.name {
                None => Err(Fault { text: "no name".to_owned() }),
                Some(name) => Ok(T { of: Some(t::Of::Text(name)), ..T::default() }),
            }
        }
        async fn r#type(&self, request: Chan) -> Result<Chan, Fault> {
            Ok(request)
        }
        async fn connect_(&self) -> Result<(), Fault> {
            Ok(())
        }
        async fn with_context(&self, cx: CallContext, request: Part) -> Result<Part, Fault> {
            Ok(Part { name: cx.method().to_owned(), ..request })
        }
        async fn tell(&self, _: Ptr) {}
        fn list(&self, request: Chan) -> impl Stream<Item = Result<Ptr, Fault>> {
            stream::iter(0..request.number()).map(|n| Ok(Ptr { name: Some(n.to_string()) }))
        }
        async fn load(&self, requests: Incoming<T>) -> Result<Chan, Fault> {
            let counts = requests.filter_map(|thing| async { thing.ok() });
            let counts = counts.map(|thing| thing.entry.len() as u32);
            Ok(Chan { number: Some(counts.fold(0, |sum, n| async move { sum + n }).await) })
        }
        fn chat(&self, requests: Incoming<Chan>) -> impl Stream<Item = Result<Chan, Fault>> {
            requests.map(|item| item.map_err(|e| Fault { text: e.to_string() }))
        }
    }

    #[test]
    fn each_kind_of_method_and_message_is_generated_and_called() {
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.add_service(ThingsServer::new(Store)).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        block_on(async {
            let things = ThingsClient::connect(&uri).await.unwrap();
            let thing = things.get(Ptr { name: Some("a".to_owned()) }).await.unwrap();
            assert_eq!(thing.of, Some(t::Of::Text("a".to_owned())));
            let fault = Fault { text: "no name".to_owned() };
            assert_eq!(things.get(Ptr::default()).await, Err(RpcError::Service(fault)));
            let number = |n| Chan { number: Some(n) };
            assert_eq!(things.r#type(number(7)).await, Ok(number(7)));
            assert_eq!(things.connect_().await, Ok(()));
            let part = things.with_context(Part::default()).await.unwrap();
            assert_eq!(part.name, "with_context");
            things.tell(Ptr::default()).await.unwrap();
            assert_eq!(things.list(number(3)).await.unwrap().count().await, 3);
            let mut load = things.load().await.unwrap();
            load.send(&T { entry: vec![t::Entry::default(); 4], ..T::default() }).await.unwrap();
            assert_eq!(load.finish().await, Ok(number(4)));
            let mut chat = things.chat().await.unwrap();
            chat.send(&number(9)).await.unwrap();
            assert_eq!(chat.next().await, Some(Ok(number(9))));
        });
    }

    #[test]
    fn methods_have_the_names_of_the_file_on_the_network() {
        let service = ThingsClient::<courser::Client>::SERVICE;
        assert_eq!(service.name, "all.things.Things");
        let names: Vec<_> = service.methods.iter().map(|method| method.name).collect();
        let expected = ["chat", "connect", "get", "list", "load", "tell", "type", "with_context"];
        assert_eq!(names, expected);
        assert!(service.methods[2].is_idempotent);
    }
}
