//! The end of a server with streams in progress.

use std::future::pending;
use std::sync::mpsc;
use std::time::Duration;

use courser::service::{Incoming, Stream};
use courser::{Client, Config, Server};
use futures::executor::block_on;
use futures::stream;

/// Streams that do not end.
#[courser::service]
trait Endless {
    fn endless(&self) -> impl Stream<Item = u64>;
    async fn ignore(&self, items: Incoming<Vec<u8>>) -> u64;
}

struct Waits;

impl Endless for Waits {
    fn endless(&self) -> impl Stream<Item = u64> {
        stream::pending()
    }
    async fn ignore(&self, items: Incoming<Vec<u8>>) -> u64 {
        pending::<()>().await;
        drop(items);
        0
    }
}

/// Stops a server of workers while streams are open, and waits for its end.
fn stop_with_streams(in_place: bool) {
    let config = Config { workers: 2, slots: 32, ..Config::default() };
    let server = Server::bind_with("udp://127.0.0.1:0", config).unwrap().in_place(in_place);
    let server = server.add_service(EndlessServer::new(Waits)).unwrap();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let channel = Client::connect(&uri).wait().unwrap();
    let client = block_on(EndlessClient::new(channel)).unwrap();
    block_on(async {
        let mut streams = Vec::new();
        let mut uploads = Vec::new();
        for _ in 0..4 {
            let mut items = client.endless().await.unwrap();
            assert!(futures::poll!(items.next()).is_pending());
            streams.push(items);
            let mut upload = client.ignore().await.unwrap();
            for _ in 0..3 {
                let item = vec![7; 70_000];
                let _ = futures::poll!(Box::pin(upload.send(&item)));
            }
            uploads.push(upload);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(serving.in_progress() >= 16, "{} handlers", serving.in_progress());
        let (ended, has_ended) = mpsc::channel();
        std::thread::spawn(move || {
            serving.handle().stop();
            ended.send(serving.wait().map(drop).map_err(|e| e.to_string())).unwrap();
        });
        has_ended.recv_timeout(Duration::from_secs(10)).expect("it ends").unwrap();
    });
}

#[test]
fn a_server_of_workers_ends_while_streams_are_open() {
    stop_with_streams(false);
    stop_with_streams(true);
}
