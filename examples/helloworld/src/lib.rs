//! gRPC's helloworld: the service is generated from `proto/helloworld.proto` by the build script.

use courser::grpc::Status;

/// The generated service and its messages.
#[allow(missing_docs)]
pub mod helloworld {
    courser::include_proto!("helloworld");
}

use helloworld::{Greeter, HelloReply, HelloRequest};

/// A server's implementation.
#[derive(Debug, Default)]
pub struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(&self, request: HelloRequest) -> Result<HelloReply, Status> {
        if request.name.is_empty() {
            return Err(Status::invalid_argument("a greeting needs a name"));
        }
        Ok(HelloReply { message: format!("Hello {}!", request.name) })
    }
}
