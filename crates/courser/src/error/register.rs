//! Errors of registering services.

/// A service could not be registered.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use courser::service::RegisterError;
///
/// # fn main() -> Done {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// // The server has a service of this name.
/// let error = server.add_service(StoreServer::new(Texts)).unwrap_err();
/// assert!(matches!(error, RegisterError::Name { .. }));
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A handler without a service has a request type that the server assigns to methods, or that of
    /// the library.
    #[error(
        "request type {number:#06x} has a handler without a service, and service {service} needs it; \
         set one below 0x4000 for the handler, except 0x03f0 to 0x03ff"
    )]
    Taken {
        /// The service that is registered.
        service: &'static str,
        /// The request type of both.
        number: u16,
    },
    /// The services of the server have more methods than there are request types.
    #[error(
        "service {service} has {methods} methods, and the server has request types for {left} more; \
         split the services over several servers"
    )]
    Full {
        /// The service that is registered.
        service: &'static str,
        /// Its methods.
        methods: usize,
        /// Request types that are left.
        left: usize,
    },
    /// Services have the same name.
    #[error(
        "the server has a service named {service}; name one of them otherwise with \
         #[service(name = \"..\")]"
    )]
    Name {
        /// The name of both.
        service: &'static str,
    },
}
