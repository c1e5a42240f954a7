//! Forms of methods: aliases of results, conditions, deprecation.

#![deny(warnings, clippy::all)]

use courser::service::{Incoming, RpcError, Service, Stream};

use futures::StreamExt;

use crate::world::World;

type Answer<T> = Result<T, String>;

mod inner {
    pub(super) type Result<T> = std::result::Result<T, String>;
    /// A type whose name ends like that of a result, which is none.
    #[derive(serde::Serialize, serde::Deserialize, PartialEq, Eq, Debug)]
    pub(crate) struct TestResult(pub(crate) u8);
}

use inner::TestResult;

#[courser::service]
pub(crate) trait Forms {
    async fn alias(&self, fails: bool) -> Answer<u8>;
    async fn other(&self, fails: bool) -> inner::Result<TestResult>;
    async fn std(&self) -> std::result::Result<u8, ()>;
    async fn nested(&self) -> Answer<Answer<u8>>;
    async fn optional(&self) -> Option<Answer<u8>>;
    fn items(&self) -> impl Stream<Item = Answer<u8>>;
    async fn upload(&self, items: Incoming<Answer<u8>>) -> inner::Result<u64>;
    fn both(&self, items: Incoming<Answer<u8>>, more: u8) -> impl Stream<Item = Answer<u8>>;
    fn plain(&self, first: u8, items: Incoming<u8>) -> impl Stream<Item = TestResult>;
    #[must_use]
    fn named(&self, items: Incoming<u8>) -> impl Stream<Item = Result<u8, ()>> + Unpin;
    #[deprecated(note = "use `alias`")]
    async fn old(&self) -> u8;
    #[must_use]
    async fn weighty(&self) -> u8;
    #[expect(clippy::too_many_arguments)]
    async fn many(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8) -> u8;
    /// Not there.
    #[cfg(not(test))]
    async fn absent(&self, of: NoSuchType) -> u8;
    #[cfg(test)]
    async fn chosen(&self) -> u8;
    #[cfg(not(test))]
    async fn chosen(&self) -> u16;
}

pub(crate) struct Impl;

fn answer<T>(fails: bool, value: T) -> Answer<T> {
    if fails { Err("it fails".to_owned()) } else { Ok(value) }
}

impl Forms for Impl {
    async fn alias(&self, fails: bool) -> Answer<u8> {
        answer(fails, 1)
    }
    async fn other(&self, fails: bool) -> inner::Result<TestResult> {
        answer(fails, TestResult(2))
    }
    async fn std(&self) -> std::result::Result<u8, ()> {
        Err(())
    }
    async fn nested(&self) -> Answer<Answer<u8>> {
        Ok(answer(true, 3))
    }
    async fn optional(&self) -> Option<Answer<u8>> {
        Some(answer(true, 4))
    }
    fn items(&self) -> impl Stream<Item = Answer<u8>> {
        futures::stream::iter([answer(false, 5), answer(true, 6)])
    }
    async fn upload(&self, mut items: Incoming<Answer<u8>>) -> inner::Result<u64> {
        let mut sum = 0;
        while let Some(Ok(item)) = items.next().await {
            sum += u64::from(item?);
        }
        Ok(sum)
    }
    fn both(&self, items: Incoming<Answer<u8>>, more: u8) -> impl Stream<Item = Answer<u8>> {
        items.map(move |item| item.map_err(|e| e.to_string())?.map(|item| item + more))
    }
    fn plain(&self, first: u8, items: Incoming<u8>) -> impl Stream<Item = TestResult> {
        let items = items.map(|item| TestResult(item.unwrap_or(0)));
        futures::stream::iter([TestResult(first)]).chain(items)
    }
    fn named(&self, items: Incoming<u8>) -> impl Stream<Item = Result<u8, ()>> + Unpin {
        items.map(|item| item.map_err(|_| ()))
    }
    async fn old(&self) -> u8 {
        7
    }
    async fn weighty(&self) -> u8 {
        8
    }
    async fn many(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8) -> u8 {
        a + b + c + d + e + f + g
    }
    async fn chosen(&self) -> u8 {
        9
    }
}

#[test]
fn errors_of_results_under_any_name_are_errors_of_the_call() {
    let mut world = World::new(1);
    FormsServer::new(Impl).register(&mut world).unwrap();
    let forms = world.run(FormsClient::new(world.session())).unwrap();
    let failed = || RpcError::Service("it fails".to_owned());
    world.run(async {
        assert_eq!(forms.alias(false).await, Ok(1));
        assert_eq!(forms.alias(true).await, Err(failed()));
        assert_eq!(forms.other(false).await, Ok(TestResult(2)));
        assert_eq!(forms.other(true).await, Err(failed()));
        assert_eq!(forms.std().await, Err(RpcError::Service(())));
        assert_eq!(forms.nested().await, Ok(answer(true, 3)));
        assert_eq!(forms.optional().await, Ok(Some(answer(true, 4))));
        let mut items = forms.items().await.unwrap();
        assert_eq!(items.next().await, Some(Ok(5)));
        assert_eq!(items.next().await, Some(Err(failed())));
        assert_eq!(items.next().await, None);
        let mut upload = forms.upload().await.unwrap();
        upload.send(&Ok(3)).await.unwrap();
        upload.send(&answer(true, 4)).await.unwrap();
        assert_eq!(upload.finish().await, Err(failed()));
        let mut both = forms.both(2).await.unwrap();
        both.send(&Ok(3)).await.unwrap();
        both.send(&answer(true, 4)).await.unwrap();
        assert_eq!(both.next().await, Some(Ok(5)));
        assert_eq!(both.next().await, Some(Err(failed())));
        assert_eq!(both.next().await, None);
        let mut plain = forms.plain(1).await.unwrap();
        plain.send(&2).await.unwrap();
        let items: Vec<_> = plain.finish().collect().await;
        assert_eq!(items, [Ok(TestResult(1)), Ok(TestResult(2))]);
        assert_eq!(forms.named().await.unwrap().finish().next().await, None);
    });
    world.assert_clean();
}

#[test]
fn methods_may_be_conditional_deprecated_and_of_many_parameters() {
    let mut world = World::new(1);
    FormsServer::new(Impl).register(&mut world).unwrap();
    let forms = world.run(FormsClient::new(world.session())).unwrap();
    world.run(async {
        #[allow(deprecated)]
        let old = forms.old().await;
        assert_eq!((old, forms.weighty().await, forms.chosen().await), (Ok(7), Ok(8), Ok(9)));
        assert_eq!(forms.many(1, 1, 1, 1, 1, 1, 1).await, Ok(7));
    });
    let names: Vec<_> = FormsClient::SERVICE.methods.iter().map(|m| m.name).collect();
    assert!(names.contains(&"chosen") && !names.contains(&"absent"), "{names:?}");
}
