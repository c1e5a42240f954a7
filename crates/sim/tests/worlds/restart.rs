//! Many clients of one server that restarts.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use courser::parts::machine::VirtualClients;
use courser::{CallFailure, Client, ClientConnect, Endpoints, MsgBuf, Nexus, Rpc};
use courser_sim::fabric::Topology;
use courser_sim::{HostId, World, WorldConfig};

const ECHO: u16 = 1;
const SERVER: HostId = HostId(0);
const CLIENTS: u32 = 2_000;
const MS: Duration = Duration::from_millis(1);

fn echo(nexus: &Nexus) -> Result<Rpc, courser::BindError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(ECHO, |cx, req| cx.reply(req));
    Ok(rpc)
}

/// Starts a process on a host whose endpoint is one of clients.
fn start_client(world: &mut World, host: HostId) -> Endpoints {
    let made = Rc::new(RefCell::new(None));
    let to = made.clone();
    world
        .start(host, move |nexus| {
            let mut rpc = nexus.endpoint()?;
            *to.borrow_mut() = Some(VirtualClients::new(&mut rpc));
            Ok::<_, courser::BindError>(rpc)
        })
        .unwrap();
    let (mut clients, endpoints) = made.take().unwrap();
    world.set_beside(host, 0, move |rpc| clients.turn(rpc));
    endpoints
}

/// Advances the world in steps until all futures have ended, and returns their results and the
/// time of the last one; `None`: not within `limit`.
fn finish<F: Future + Unpin>(
    world: &mut World,
    futures: Vec<F>,
    limit: Duration,
) -> Option<(Vec<F::Output>, Duration)> {
    let mut waiting = futures;
    let mut results = Vec::new();
    let mut took = Duration::ZERO;
    while !waiting.is_empty() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting.retain_mut(|future| match Pin::new(future).poll(&mut cx) {
            Poll::Ready(result) => {
                results.push(result);
                false
            }
            Poll::Pending => true,
        });
        if took > limit {
            return None;
        }
        world.run_for(MS);
        took += MS;
    }
    Some((results, took))
}

fn call(client: &Client) -> impl Future<Output = Result<MsgBuf, CallFailure>> + Unpin + use<> {
    let request = client.alloc(8).unwrap();
    client.call(ECHO, request).wait_for_ready(true)
}

/// After a restart the server runs little at first: it is starved of CPU time by all that restarts
/// with it.
#[test]
fn thousands_of_clients_are_served_soon_after_a_restart_and_greet_once() {
    let mut world = World::new(WorldConfig::new(7, Topology::one_switch(CLIENTS + 1))).unwrap();
    world.start(SERVER, echo).unwrap();
    let uri = world.uri(SERVER);
    let endpoints: Vec<_> =
        (1..=CLIENTS).map(|host| start_client(&mut world, HostId(host))).collect();
    let connects: Vec<ClientConnect> =
        endpoints.iter().map(|on| Client::connect_on(on, &uri)).collect();
    let (clients, took) = finish(&mut world, connects, 3_000 * MS).expect("all connect");
    let clients: Vec<_> = clients.into_iter().map(Result::unwrap).collect();
    assert_eq!(world.control_established(), u64::from(CLIENTS), "after {took:?}");

    world.kill(SERVER);
    world.run_for(10 * MS);
    let mut calls: Vec<_> = clients.iter().map(call).collect();
    for call in &mut calls {
        let polled = Pin::new(call).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    world.run_for(700 * MS);
    world.restart(SERVER).unwrap();
    for n in 0..4 {
        world.after(n * 400 * MS, |world| world.pause(SERVER, 350 * MS));
    }
    let before = world.control_established();
    let (results, took) = finish(&mut world, calls, 3_000 * MS).expect("all are served");
    assert!(results.iter().all(Result::is_ok));
    assert!(took <= 3_000 * MS, "{took:?}");
    // None is lost again.
    world.run_for(2_000 * MS);
    let greeted = world.control_established() - before;
    println!("served after {took:?}, {greeted} greetings of {CLIENTS} clients");
    assert!(greeted * 10 <= u64::from(CLIENTS) * 12, "{greeted} greetings");
    let again: Vec<_> = clients.iter().map(call).collect();
    let (results, _) = finish(&mut world, again, 1_000 * MS).expect("all are served");
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(world.control_established() - before, greeted);
}
