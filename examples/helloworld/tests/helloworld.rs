//! Server and client in one process, over sockets and in a simulated datacenter.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::grpc::{Code, Status};
use courser::service::RpcError;
use courser::{Nexus, Server};
use courser_example_helloworld::MyGreeter;
use courser_example_helloworld::helloworld::{
    GreeterClient, GreeterServer, HelloReply, HelloRequest,
};
use courser_sim::fabric::Topology;
use courser_sim::{World, WorldConfig};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_greeted_and_its_errors_have_codes() {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(GreeterServer::new(MyGreeter)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = GreeterClient::connect(&uri).await.unwrap();
    let hello = |name: &str| client.say_hello(HelloRequest { name: name.to_owned() });
    assert_eq!(hello("Tonic").await.unwrap().message, "Hello Tonic!");
    let error = hello("").await.unwrap_err();
    assert_eq!(error, RpcError::Service(Status::invalid_argument("a greeting needs a name")));
    assert_eq!(Status::from(error).code(), Code::InvalidArgument);
    drop((client, serving));
}

#[test]
fn the_generated_service_runs_in_the_simulator() {
    let mut world = World::new(WorldConfig::new(1, Topology::one_switch(2))).unwrap();
    let [server, client] = world.hosts().collect::<Vec<_>>()[..] else { unreachable!() };
    let setup = |nexus: &Nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.add_service(GreeterServer::local(MyGreeter))?;
        anyhow::Ok(rpc)
    };
    world.start(server, setup).unwrap();
    world.start(client, Nexus::endpoint).unwrap();
    let (uri, local) = (world.uri(server), world.rpc(client).local());
    let reply = Rc::new(RefCell::new(HelloReply::default()));
    let result = reply.clone();
    drop(local.clone().spawn(async move {
        let greeter = GreeterClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        let request = HelloRequest { name: "Ada".to_owned() };
        *result.borrow_mut() = greeter.say_hello(request).await.unwrap();
    }));
    world.rpc(client).handle().wake();
    let ended = world.run_until(Duration::from_secs(10), |_| !reply.borrow().message.is_empty());
    assert!(ended && reply.borrow().message == "Hello Ada!");
}
