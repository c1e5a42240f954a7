//! The service in a simulated datacenter: lost packets, and a client that gives up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courser::service::RpcError;
use courser::{Local, Nexus};
use courser_example_upload::{FilesClient, FilesServer, Storage, UploadError, Uploads};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};
use xxhash_rust::xxh3::xxh3_64;

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const LIMIT: u64 = 4 << 20;

/// Files in memory, and how many are being written.
#[derive(Clone, Default)]
struct Memory {
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    open: Arc<()>,
}

struct MemoryFile {
    bytes: Vec<u8>,
    _open: Arc<()>,
}

impl io::Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Storage for Memory {
    type File = MemoryFile;

    fn create(&self) -> io::Result<MemoryFile> {
        Ok(MemoryFile { bytes: Vec::new(), _open: self.open.clone() })
    }

    fn keep(&self, name: &str, file: MemoryFile) -> io::Result<()> {
        self.files.lock().unwrap().insert(name.to_owned(), file.bytes);
        Ok(())
    }
}

impl Memory {
    fn open_files(&self) -> usize {
        // One is that of the test, one that of the server.
        Arc::strong_count(&self.open) - 2
    }
}

/// A server and a client's endpoint, with a hundredth of the packets lost.
fn world(seed: u64, memory: &Memory) -> World {
    let mut world = World::new(WorldConfig::new(seed, Topology::one_switch(2))).unwrap();
    for link in 0..world.fabric().links() {
        let faults = LinkFaults { loss_ppm: 10_000, ..LinkFaults::default() };
        world.set_link_faults(LinkId(link), faults);
    }
    let files = FilesServer::new(Uploads::new(memory.clone(), LIMIT));
    let setup = move |nexus: &Nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.add_service(files.clone())?;
        anyhow::Ok(rpc)
    };
    world.start(SERVER, setup).unwrap();
    world.start(CLIENT, Nexus::endpoint).unwrap();
    world
}

/// Runs a task on the client's endpoint to its end.
fn run<F: Future<Output = ()> + 'static>(world: &mut World, task: impl FnOnce(Local, String) -> F) {
    let (ended, local) = (Rc::new(Cell::new(false)), world.rpc(CLIENT).local());
    let (set, task) = (ended.clone(), task(local.clone(), world.uri(SERVER)));
    drop(local.spawn(async move {
        task.await;
        set.set(true);
    }));
    world.rpc(CLIENT).handle().wake();
    assert!(world.run_until(Duration::from_secs(60), |_| ended.get()), "the client hangs");
}

fn chunk(n: usize) -> Vec<u8> {
    (0..n * 977 % 70_000).map(|i| (i ^ n) as u8).collect()
}

#[test]
fn files_arrive_whole_under_losses() {
    for seed in 0..5 {
        let memory = Memory::default();
        let mut world = world(seed, &memory);
        let expected: Vec<u8> = (0..40).flat_map(chunk).collect();
        let hash = xxh3_64(&expected);
        run(&mut world, async move |local, uri| {
            let session = local.connect(&uri).await.unwrap();
            let files = FilesClient::new(session).await.unwrap();
            let mut upload = files.upload("data".to_owned()).await.unwrap();
            for n in 0..40 {
                upload.send(&chunk(n)).await.unwrap();
            }
            assert_eq!(upload.finish().await.unwrap().hash, hash);
        });
        assert_eq!(memory.files.lock().unwrap().get("data"), Some(&expected), "seed {seed}");
        assert_eq!(memory.open_files(), 0, "seed {seed}");
    }
}

#[test]
fn a_file_that_is_too_large_is_refused_while_it_is_sent() {
    let memory = Memory::default();
    let mut world = world(1, &memory);
    run(&mut world, async move |local, uri| {
        let files = FilesClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        let mut upload = files.upload("large".to_owned()).await.unwrap();
        let mut sent = 0;
        let refused = loop {
            match upload.send(&vec![0; 50_000]).await {
                Ok(()) => sent += 50_000,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, RpcError::Service(UploadError::TooLarge { limit: LIMIT }));
        // The limit, and what was on the way.
        assert!(sent < LIMIT + (1 << 20), "{sent}");
    });
    assert_eq!((memory.files.lock().unwrap().len(), memory.open_files()), (0, 0));
}

#[test]
fn nothing_is_left_of_a_file_whose_client_gives_up() {
    let memory = Memory::default();
    let mut world = world(2, &memory);
    run(&mut world, async move |local, uri| {
        let files = FilesClient::new(local.connect(&uri).await.unwrap()).await.unwrap();
        let mut upload = files.upload("part".to_owned()).await.unwrap();
        for n in 0..20 {
            upload.send(&chunk(n)).await.unwrap();
        }
        drop(upload);
    });
    world.run_for(Duration::from_secs(1));
    assert_eq!((memory.files.lock().unwrap().len(), memory.open_files()), (0, 0));
}
