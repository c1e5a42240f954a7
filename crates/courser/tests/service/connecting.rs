//! The check of versions, and the registration of services.

use courser::service::{Codec, HelloError, Service};

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
fn another_version_of_a_service_is_one_error_that_names_both_sides() {
    let (world, _, _) = serve(1);
    let error = world.run(NewerClient::new(world.session())).unwrap_err();
    let text = error.to_string();
    let (ours, theirs) = (NewerClient::SERVICE.fingerprint, KvClient::SERVICE.fingerprint);
    assert!(
        text.contains(&format!("{ours:016x}")) && text.contains(&format!("{theirs:016x}")),
        "{text}"
    );
    assert!(text.matches("Kv").count() == 2 && text.contains("postcard"), "{text}");
    let HelloError::Mismatch(mismatch) = error else { panic!("{text}") };
    assert_eq!((mismatch.client_fingerprint, mismatch.server_fingerprint), (ours, theirs));
    let error = world.run(PlainClient::new(world.session())).unwrap_err().to_string();
    assert!(error.contains("codec bytes") && error.contains("codec postcard"), "{error}");
    assert_eq!(world.services.stats().mismatches, 2);
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
        assert!(all[..i].iter().all(|b| a.fingerprint != b.fingerprint), "{a:?}");
    }
    assert_eq!(KvClient::SERVICE.codec, courser::service::Postcard::NAME);
    // Recorded once: another value would refuse deployed clients.
    let recorded = recorded::KvClient::SERVICE.fingerprint;
    assert_eq!(recorded, KV, "{recorded:#x}");
}

const KV: u64 = 0x1aa2_4de0_510e_49e1;

/// The service whose fingerprint is recorded.
mod recorded {
    use courser::service::{Incoming, Stream};

    use crate::kv::KvError;

    #[courser::service]
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
    for answer in [
        &[][..],
        &[0],
        &[9, 0],
        &[1, 1, 2, 0],
        &[2, 5, 3, b'a', 0],
        &[2, 0, 0],
        &[0xff, 2],
        &[5, 5],
        &[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 7, 0],
        &[0, 77],
        &[0, 0],
        &[0; 16],
        &[0; 18],
    ] {
        let mut world = World::new(1);
        let bytes = answer.to_vec();
        LocalRegistry::on_request(&mut world, 0x03F0, move |_| {
            let bytes = bytes.clone();
            async move { bytes }
        });
        let result = world.run(KvClient::new(world.session()));
        match answer {
            [0, .., 0] if answer.len() == 18 => assert!(result.is_ok()),
            _ => assert!(!result.unwrap_err().to_string().contains('\u{7}'), "{answer:?}"),
        }
    }
}
