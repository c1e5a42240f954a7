//! A service that calls another one: the same implementation in the simulator and over sockets.

use std::cell::RefCell;
use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use courser::{EndpointHandle, Local, Nexus, Rpc, Session};
use courser_sim::fabric::Topology;
use courser_sim::{HostId, World, WorldConfig};
use futures::future::join_all;

/// A store of texts.
#[courser::service]
trait Shelf {
    /// Reads a text.
    async fn text(&self, key: u32) -> Option<String>;
}

/// Counts in the texts of a [`Shelf`].
#[courser::service]
trait Reader {
    /// The words of some texts.
    async fn words(&self, keys: Vec<u32>) -> Result<u32, String>;
}

struct Texts;

impl LocalShelf for Texts {
    async fn text(&self, key: u32) -> Option<String> {
        (key < 3).then(|| "word ".repeat(key as usize))
    }
}

struct Words {
    local: Local,
    shelf: String,
    connected: RefCell<Option<ShelfClient<Session>>>,
}

impl Words {
    /// The connection, made by the first call.
    async fn shelf(&self) -> Result<ShelfClient<Session>, Box<dyn Error>> {
        if let Some(shelf) = &*self.connected.borrow() {
            return Ok(shelf.clone());
        }
        let shelf = ShelfClient::new(self.local.connect(&self.shelf).await?).await?;
        Ok(self.connected.borrow_mut().insert(shelf).clone())
    }
}

impl LocalReader for Words {
    async fn words(&self, keys: Vec<u32>) -> Result<u32, String> {
        let shelf = self.shelf().await.map_err(|error| error.to_string())?;
        let calls = keys.into_iter().map(|key| shelf.text(key).into_future());
        let texts = join_all(calls).await;
        texts.into_iter().try_fold(0, |sum, text| match text.map_err(|e| e.to_string())? {
            Some(text) => Ok(sum + text.split_whitespace().count() as u32),
            None => Err("a text is missing".to_owned()),
        })
    }
}

// ---- the set-up of both, for a nexus that is virtual or not ---------------------------------------

fn shelf(nexus: &Nexus) -> Result<Rpc, String> {
    let mut rpc = nexus.endpoint().map_err(|error| error.to_string())?;
    rpc.add_service(ShelfServer::local(Texts)).map_err(|error| error.to_string())?;
    Ok(rpc)
}

fn reader(nexus: &Nexus, shelf: &str) -> Result<Rpc, String> {
    let mut rpc = nexus.endpoint().map_err(|error| error.to_string())?;
    let words =
        Words { local: rpc.local(), shelf: shelf.to_owned(), connected: RefCell::default() };
    rpc.add_service(ReaderServer::local(words)).map_err(|error| error.to_string())?;
    Ok(rpc)
}

async fn check(local: Local, reader: String) {
    let reader = ReaderClient::new(local.connect(&reader).await.unwrap()).await.unwrap();
    assert_eq!(reader.words(vec![0, 1, 2, 2]).await.unwrap(), 5);
    let error = reader.words(vec![1, 3]).await.unwrap_err();
    assert!(error.to_string().contains("a text is missing"), "{error}");
}

#[test]
fn a_service_that_calls_another_runs_in_the_simulator() {
    let mut world = World::new(WorldConfig::new(1, Topology::one_switch(3))).unwrap();
    world.start(HostId(0), shelf).unwrap();
    let uri = world.uri(HostId(0));
    world.start(HostId(1), move |nexus| reader(nexus, &uri)).unwrap();
    world.start(HostId(2), Nexus::endpoint).unwrap();
    let uri = world.uri(HostId(1));
    let rpc = world.rpc(HostId(2));
    let task = rpc.local().spawn(check(rpc.local(), uri));
    rpc.handle().wake();
    assert!(world.run_until(Duration::from_secs(10), |_| task.is_finished()));
}

/// Runs an endpoint on a thread; returns its address and a handle.
fn serve(
    setup: impl FnOnce(&Nexus) -> Result<Rpc, String> + Send + 'static,
) -> (String, EndpointHandle, std::thread::JoinHandle<()>) {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
        let mut rpc = setup(&nexus).unwrap();
        send.send((nexus.local_uri(), rpc.handle())).unwrap();
        rpc.run().unwrap();
    });
    let (uri, handle) = receive.recv().unwrap();
    (uri, handle, thread)
}

#[test]
fn the_same_service_runs_over_sockets() {
    let (shelf_uri, stop_shelf, shelf_thread) = serve(shelf);
    let (uri, stop_reader, reader_thread) = serve(move |nexus| reader(nexus, &shelf_uri));
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let mut client = nexus.endpoint().unwrap();
    let local = client.local();
    client.block_on(check(local, uri)).unwrap();
    for (handle, thread) in [(stop_reader, reader_thread), (stop_shelf, shelf_thread)] {
        handle.stop();
        thread.join().unwrap();
    }
}
