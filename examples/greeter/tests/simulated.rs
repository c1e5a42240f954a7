//! The service in a simulated datacenter: the same code, with lost packets, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::Nexus;
use courser_example_greeter::{GreeterClient, GreeterServer, Polite};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{LinkId, World, WorldConfig};

#[test]
fn a_client_is_greeted_although_a_tenth_of_the_packets_is_lost() {
    for seed in 0..20 {
        let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(2))).unwrap();
        for link in 0..world.fabric().links() {
            let faults = LinkFaults { loss_ppm: 100_000, ..LinkFaults::default() };
            world.set_link_faults(LinkId(link), faults);
        }
        let [server, client] = world.hosts().collect::<Vec<_>>()[..] else { unreachable!() };
        let setup = |nexus: &Nexus| {
            let mut rpc = nexus.endpoint()?;
            rpc.add_service(GreeterServer::local(Polite))?;
            anyhow::Ok(rpc)
        };
        world.start(server, setup).unwrap();
        world.start(client, Nexus::endpoint).unwrap();

        let (uri, local) = (world.uri(server), world.rpc(client).local());
        let greeting = Rc::new(RefCell::new(String::new()));
        let result = greeting.clone();
        drop(local.clone().spawn(async move {
            let greeter = GreeterClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
            *result.borrow_mut() = greeter.hello("Ada".to_owned()).await.unwrap();
        }));
        world.rpc(client).handle().wake();
        let ended = world.run_until(Duration::from_secs(10), |_| !greeting.borrow().is_empty());
        assert!(ended, "seed {seed}: no answer");
        assert_eq!(*greeting.borrow(), "Hello, Ada!", "seed {seed}");
    }
}
