//! Requests that no client of ours sends.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use courser::{EndpointHandle, Nexus, Rpc, SessionId};
use courser_ordered_index::index::Index;
use courser_ordered_index::message::{
    DELETE, ECHO, GET, MOST_SCANNED, PUT, SCAN, SCAN_AT_ONCE, number_and_count_bytes,
};
use courser_ordered_index::service::{self, Scans};

/// A server in a thread, and a client; dropped, the server ends.
struct Served {
    rpc: Rpc,
    session: SessionId,
    index: Arc<Index>,
    server: EndpointHandle,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(scans: Scans) -> Served {
        let (sender, started) = std::sync::mpsc::channel();
        let index = Arc::new(Index::default());
        let of = index.clone();
        let thread = std::thread::spawn(move || {
            let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
            let mut rpc = nexus.endpoint().unwrap();
            service::register(&mut rpc, &of, scans).unwrap();
            sender.send((nexus.local_uri(), rpc.handle())).unwrap();
            rpc.run().unwrap();
        });
        let (uri, server) = started.recv().unwrap();
        let mut rpc = Nexus::bind("udp://127.0.0.1:0").unwrap().endpoint().unwrap();
        let session = rpc.connect(&uri).unwrap();
        rpc.wait_connected(session).unwrap();
        Served { rpc, session, index, server, thread: Some(thread) }
    }

    fn call(&mut self, kind: u16, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut request = self.rpc.alloc(bytes.len()).unwrap();
        request.copy_from_slice(bytes);
        let answered = self.rpc.call_wait(self.session, kind, request, Duration::from_secs(60));
        answered.map(|answered| answered.response.to_vec()).map_err(|error| error.to_string())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn malformed_requests_are_rejected_and_change_nothing() {
    let mut served = Served::start(Scans::Both);
    let huge = number_and_count_bytes(0, MOST_SCANNED + 1);
    let mut bad: Vec<(u16, Vec<u8>)> = vec![(SCAN, huge.to_vec()), (SCAN_AT_ONCE, huge.to_vec())];
    for kind in [GET, PUT, DELETE, SCAN, SCAN_AT_ONCE] {
        bad.extend([0, 1, 7, 9, 11, 13, 15, 17, 5_000].map(|len| (kind, vec![1; len])));
    }
    for (kind, bytes) in bad {
        let error = served.call(kind, &bytes).unwrap_err();
        assert!(error.contains("reject"), "{kind}, {} bytes: {error}", bytes.len());
    }
    assert_eq!(served.index.count(), 0);
    assert_eq!(served.call(ECHO, b"abc").unwrap(), b"abc");
}

#[test]
fn a_server_offers_comparisons_only_if_it_is_told() {
    let mut served = Served::start(Scans::Workers);
    for kind in [ECHO, SCAN_AT_ONCE] {
        let error = served.call(kind, &number_and_count_bytes(0, 1)).unwrap_err();
        assert!(error.contains("no handler"), "{error}");
    }
}
