//! The check of versions, and the registration of services.

use courser::service::{Codec, HelloError, RpcError, Service};

use crate::calls::serve;
use crate::kv::KvClient;
use crate::world::World;

/// Other versions of services, and names that the generated code must not mix with its own.
mod others {
    use courser::service::{Incoming, Stream};

    #[courser::service(name = "Kv")]
    pub trait Newer {
        async fn get(&self, key: u64) -> u64;
    }

    #[courser::service(name = "Kv", codec = Bytes)]
    pub trait Plain {
        async fn get(&self, key: Vec<u8>) -> Vec<u8>;
    }

    #[courser::service]
    #[allow(clippy::too_many_arguments)]
    pub trait Names {
        async fn service(&self, service: u8, services: u8, received: u8, opened: u8) -> u8;
        async fn registry(&self, registry: u8, number: u8, f: u8, cx: u8, out: u8) -> u8;
        async fn r#type(&self, r#fn: u8) -> u8;
        fn outgoing(&self, outgoing: u8) -> impl Stream<Item = u8>;
        async fn incoming(&self, incoming: Incoming<u8>, open: u8, outcome: u8) -> u8;
        async fn clone(&self) -> u8;
    }

    #[derive(Clone, Default)]
    pub struct Impl;

    impl Names for Impl {
        async fn service(&self, service: u8, services: u8, received: u8, opened: u8) -> u8 {
            service + services + received + opened
        }
        async fn registry(&self, registry: u8, number: u8, f: u8, cx: u8, out: u8) -> u8 {
            registry + number + f + cx + out
        }
        async fn r#type(&self, r#fn: u8) -> u8 {
            r#fn
        }
        fn outgoing(&self, outgoing: u8) -> impl Stream<Item = u8> {
            futures::stream::iter(0..outgoing)
        }
        async fn incoming(&self, mut incoming: Incoming<u8>, open: u8, outcome: u8) -> u8 {
            let mut sum = open + outcome;
            while let Some(Ok(item)) = incoming.next().await {
                sum += item;
            }
            sum
        }
        async fn clone(&self) -> u8 {
            9
        }
    }

    /// Where a program has the library under another name.
    pub mod reexported {
        pub use ::courser as library;
    }

    #[courser::service(crate = crate::connecting::others::reexported::library)]
    trait Private {
        async fn one(&self) -> u8;
    }

    struct One;

    impl LocalPrivate for One {
        async fn one(&self) -> u8 {
            1
        }
    }

    #[test]
    fn a_private_service_of_a_renamed_library_works() {
        use courser::service::LocalService;
        let mut world = crate::world::World::new(1);
        PrivateServer::local(One).register_local(&mut world).unwrap();
        let client = world.run(PrivateClient::new(world.session())).unwrap();
        assert_eq!(world.run(async { client.one().await }), Ok(1));
    }

    #[courser::service]
    pub trait Empty {}
}

use others::*;

#[test]
fn generated_code_does_not_mix_its_names_with_those_of_the_service() {
    let mut world = World::new(1);
    NamesServer::new(Impl).register(&mut world).unwrap();
    let names = world.run(NamesClient::new(world.session())).unwrap();
    world.run(async {
        assert_eq!(names.service(1, 2, 3, 4).await, Ok(10));
        assert_eq!(names.registry(1, 2, 3, 4, 5).await, Ok(15));
        assert_eq!(names.r#type(5).await, Ok(5));
        assert_eq!(NamesClient::clone(&names).await, Ok(9));
        let mut items = names.outgoing(3).await.unwrap();
        assert_eq!(items.next().await, Some(Ok(0)));
        let mut upload = names.incoming(1, 2).await.unwrap();
        upload.send(&7).await.unwrap();
        assert_eq!(upload.finish().await, Ok(10));
    });
}

#[test]
fn another_codec_of_a_service_is_one_error_that_names_both_sides() {
    let (world, _, _) = serve(1);
    let error = world.run(PlainClient::new(world.session())).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("codec bytes") && text.contains("codec postcard"), "{text}");
    let HelloError::Mismatch(mismatch) = error else { panic!("{text}") };
    assert_eq!((&*mismatch.client_codec, &*mismatch.server_codec), ("bytes", "postcard"));
    assert_eq!(world.services.stats().mismatches, 1);
    // Without a check first, its call is refused.
    let plain = PlainClient::unchecked(world.session());
    let error = world.run(async { plain.get(vec![1]).await }).unwrap_err();
    let text = error.to_string();
    let RpcError::ShapeMismatch(mismatch) = error else { panic!("{text}") };
    assert_eq!((&*mismatch.service, &*mismatch.method), ("Kv", "get"));
    assert!(text.contains("by bytes") && text.contains("by postcard"), "{text}");
    world.assert_clean();
}

#[test]
fn a_server_with_other_services_names_them() {
    let (mut world, _, _) = serve(1);
    NamesServer::new(Impl).register(&mut world).unwrap();
    let error = world.run(EmptyClient::new(world.session())).unwrap_err();
    assert!(matches!(error, HelloError::NoService { .. }), "{error:?}");
    assert!(error.to_string().contains("no service Empty, but Kv, Names;"), "{error}");
    let bare = World::new(1);
    let error = bare.run(EmptyClient::new(bare.session())).unwrap_err();
    assert!(error.to_string().contains("handlers without a service"), "{error}");
}

#[test]
fn fingerprints_cover_names_kinds_types_and_the_codec() {
    let all = [
        KvClient::SERVICE,
        NewerClient::SERVICE,
        PlainClient::SERVICE,
        NamesClient::SERVICE,
        EmptyClient::SERVICE,
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a.fingerprint() != b.fingerprint()), "{a:?}");
    }
    assert_eq!(KvClient::SERVICE.codec, courser::service::Postcard::NAME);
    // Recorded once: with another value, builds of one definition would differ.
    let recorded = recorded::KvClient::SERVICE.fingerprint();
    assert_eq!(recorded, KV, "{recorded:#x}");
}

const KV: u64 = 0x3c16_3b81_7689_10fd;

/// The service whose fingerprint is recorded.
mod recorded {
    use courser::service::{Incoming, Stream};

    use crate::kv::KvError;

    #[courser::service(codec = Postcard)]
    #[allow(dead_code)] // only its fingerprint is used
    pub trait Kv {
        async fn get(&self, key: String) -> Result<String, KvError>;
        async fn put(&self, key: String, value: String) -> Result<(), KvError>;
        async fn len(&self) -> u64;
        #[oneway]
        async fn hint(&self, service: String);
        fn scan(&self, from: String) -> impl Stream<Item = Result<(String, String), KvError>>;
        fn count(&self, to: u64, size: u32) -> impl Stream<Item = (u64, Vec<u8>)>;
        async fn upload(&self, name: String, chunks: Incoming<Vec<u8>>) -> Result<u64, KvError>;
        async fn hang(&self);
    }
}

#[test]
fn answers_to_hellos_of_any_bytes_are_errors() {
    use courser::service::LocalRegistry;
    let has = |methods: &[u8]| [&[0, 0][..], b"\x08postcard", methods, &[0]].concat();
    let eight = |method: &[u8]| has(&method.repeat(8));
    let answers = [
        vec![],
        vec![0],
        vec![9, 0],
        vec![1, 1, 2, 0],
        vec![2, 5, 3, b'a', 0],
        vec![2, 0, 0],
        vec![0xff, 2],
        vec![5, 5],
        vec![0, 0, 1, 7, 0],
        vec![0, 77],
        vec![0, 0, 0, 0],
        [&[0, 0][..], b"\x08post\x07ard", &[0]].concat(),
        // States of methods: unknown, without a number, without a shape, with one that ends early.
        eight(&[7]),
        eight(&[0]),
        eight(&[2, 0, 0x40]),
        eight(&[2, 0, 0x40, 0xff, 0xff, 0xff, 0xff]),
        has(&[0; 16]),
    ];
    for answer in answers {
        let result = greet(answer.clone()).0;
        let text = result.expect_err(&format!("{answer:?}")).to_string();
        assert!(!text.contains('\u{7}'), "{answer:?}");
    }
    // Shapes of a later version, or malformed ones, concern their method only.
    for good in [
        &[0, 0, 0x40][..],
        &[1],
        &[2, 0, 0x40, 0, 0, 0, 0],
        &[2, 0, 0x40, 1, 0, 0, 0, 9],
        &[2, 0, 0x40, 5, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        &[2, 0, 0x40, 9, 0, 0, 0, 0, 4, 0, 0, 0, 0xff, 0xff, 7, 7],
    ] {
        let (result, world) = greet(eight(good));
        let kv = result.unwrap();
        let answer = world.run(async { kv.len().await });
        let text = answer.as_ref().map_or_else(RpcError::to_string, u64::to_string);
        match good[0] {
            0 => assert!(matches!(answer, Err(RpcError::Call(_))), "it is not served: {text}"),
            1 => assert!(matches!(answer, Err(RpcError::UnknownMethod(_))), "{text}"),
            _ if good[3] == 0 => assert!(text.contains("too long to be compared"), "{text}"),
            _ => assert!(text.contains("none that this version of Courser reads"), "{text}"),
        }
    }

    /// The client of a server that answers a hello so.
    #[allow(clippy::type_complexity)]
    fn greet(answer: Vec<u8>) -> (Result<KvClient<crate::world::Session>, HelloError>, World) {
        let mut world = World::new(1);
        LocalRegistry::on_request(&mut world, 0x03F0, move |_| {
            let answer = answer.clone();
            async move { answer }
        });
        let result = world.run(KvClient::new(world.session()));
        (result, world)
    }
}

/// A parameter that gets a required field.
mod keys {
    pub mod old {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct Key {
            pub n: u32,
        }

        #[courser::service(name = "Keys", codec = Named)]
        pub trait Keys {
            async fn of(&self, key: Key) -> u32;
        }
    }

    pub mod new {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct Key {
            pub n: u32,
            pub part: u8,
        }

        #[courser::service(name = "Keys", codec = Named)]
        pub trait Keys {
            async fn of(&self, key: Key) -> u32;
        }

        pub struct Impl;

        impl Keys for Impl {
            async fn of(&self, key: Key) -> u32 {
                key.n + u32::from(key.part)
            }
        }
    }
}

#[test]
fn ends_that_do_not_exchange_required_fields_find_them_when_they_decode() {
    use courser::service::LocalRegistry;
    let mut world = World::new(1);
    keys::new::KeysServer::new(keys::new::Impl).register(&mut world).unwrap();
    let hello = |extensions: u8| {
        let service = b"\x04Keys\x0bmessagepack\x01\x00\x02of\x07\x07\x07\x07\x07\x07\x07\x07";
        let hello = [&[3, extensions][..], service].concat();
        world.run(world.raw(1, 0x03F0, &hello)).unwrap().to_vec()
    };
    let (without, with) = (hello(0), hello(1));
    assert_eq!(with.len(), without.len() + 1, "two fields of the parameter");
    assert_eq!(hello(0xfe), without, "bits that are not known");
    let call = |world: &World| {
        let keys = world.run(keys::old::KeysClient::new(world.session())).unwrap();
        world.run(async { keys.of(keys::old::Key { n: 1 }).await }).unwrap_err()
    };
    let error = call(&world);
    assert!(matches!(error, RpcError::ShapeMismatch(_)), "{error}");
    assert!(error.to_string().contains("Key.part: the server has a required field"), "{error}");
    // A server that does not state them.
    world.forget_hello();
    LocalRegistry::on_request(&mut world, 0x03F0, move |_| {
        let answer = without.clone();
        async move { answer }
    });
    let error = call(&world);
    assert!(matches!(error, RpcError::Decode(_)), "{error}");
    assert_eq!(error.executed(), courser::Executed::Never);
    world.assert_clean();
}
