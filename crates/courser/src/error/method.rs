//! Errors of methods that a server does not have as its client has them.

use std::sync::Arc;

/// The server does not have the method. The call was not made.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::RpcError;
///
/// /// The service with a method that the server does not have yet.
/// #[courser::service(name = "Store")]
/// trait NewStore {
///     async fn len(&self, key: String) -> u64;
///     async fn touch(&self, key: String);
/// }
///
/// # fn main() -> Done { run(async |uri| {
/// let store = NewStoreClient::connect(&uri).await?;
/// assert_eq!(store.len("apple".to_owned()).await?, 5);
/// let Err(RpcError::UnknownMethod(unknown)) = store.touch("apple".to_owned()).await else { panic!() };
/// assert_eq!((&*unknown.service, &*unknown.method), ("Store", "touch"));
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the server has no method {service}.{method}; use a server of a version that has it, or do without \
     it until the server is upgraded"
)]
pub struct UnknownMethod {
    /// The name of the service.
    pub service: String,
    /// The name of the method.
    pub method: String,
}

/// The method's values have another shape at the server, so that one end would read wrong ones. The call
/// was not made.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::RpcError;
///
/// /// The service with another type of a parameter.
/// #[courser::service(name = "Store")]
/// trait NewStore {
///     async fn len(&self, key: u32) -> u64;
/// }
///
/// # fn main() -> Done { run(async |uri| {
/// let store = NewStoreClient::connect(&uri).await?;
/// let Err(RpcError::ShapeMismatch(mismatch)) = store.len(1).await else { panic!() };
/// assert_eq!(&*mismatch.method, "len");
/// // The text has the difference and both shapes.
/// println!("{mismatch}");
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "method {service}.{method} differs at the server ({difference}): the client has {client}, the \
     server has {server}; use the same types at both ends, or give the changed method another name"
)]
pub struct ShapeMismatch {
    /// The name of the service.
    pub service: String,
    /// The name of the method.
    pub method: String,
    /// The first difference.
    pub difference: String,
    /// The method as the client has it.
    pub client: String,
    /// The method as the server has it.
    pub server: String,
}

/// Why a method cannot be called.
///
/// Example: [`UnknownMethod`](crate::service::UnknownMethod).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MethodMismatch {
    /// The server does not have it.
    #[error(transparent)]
    Unknown(Arc<UnknownMethod>),
    /// Its values have another shape at the server.
    #[error(transparent)]
    Shape(Arc<ShapeMismatch>),
}
