//! The service: what the client, the server and the test share.

/// Greets people.
#[courser::service]
pub trait Greeter {
    /// A greeting for somebody of that name.
    async fn hello(&self, name: String) -> String;
}

/// A server's implementation.
#[derive(Debug, Default)]
pub struct Polite;

impl Greeter for Polite {
    async fn hello(&self, name: String) -> String {
        format!("Hello, {name}!")
    }
}
