//! A store whose calls never end.

use courser::service::Stream;
use courser_example_kv::{Change, Kv, KvError};

/// Each call holds a result of the function until it is dropped.
pub(crate) struct Endless<F>(pub(crate) F);

impl<F: Fn() -> D, D> Endless<F> {
    async fn wait<T>(&self) -> T {
        let _held = (self.0)();
        std::future::pending().await
    }
}

impl<F, D> Kv for Endless<F>
where
    F: Fn() -> D + Send + Sync + 'static,
    D: Send,
{
    async fn get(&self, _: String) -> Result<Vec<u8>, KvError> {
        self.wait().await
    }

    async fn put(&self, _: String, _: Vec<u8>) -> Result<(), KvError> {
        self.wait().await
    }

    async fn delete(&self, _: String) -> Result<(), KvError> {
        self.wait().await
    }

    fn scan(&self, _: String) -> impl Stream<Item = (String, Vec<u8>)> {
        futures::stream::pending()
    }

    fn watch(&self) -> impl Stream<Item = Change> {
        futures::stream::pending()
    }

    async fn wait_for(&self, _: String) -> Result<Vec<u8>, KvError> {
        self.wait().await
    }
}
