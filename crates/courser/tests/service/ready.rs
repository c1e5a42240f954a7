//! Typed calls, messages and streams while their server is gone.

use std::time::{Duration, Instant};

use courser::service::{Incoming, NoError, RpcError, Stream};
use courser::{CallFailure, Client, Executed, Server, Serving};
use futures::{StreamExt, stream};

/// Each kind of method.
#[courser::service]
trait Kinds {
    async fn unary(&self) -> u8;
    #[oneway]
    async fn one_way(&self);
    fn download(&self) -> impl Stream<Item = u8>;
    async fn upload(&self, items: Incoming<u8>) -> u8;
    fn both(&self, items: Incoming<u8>) -> impl Stream<Item = u8>;
}

struct All;

impl Kinds for All {
    async fn unary(&self) -> u8 {
        1
    }
    async fn one_way(&self) {}
    fn download(&self) -> impl Stream<Item = u8> {
        stream::iter([2])
    }
    async fn upload(&self, mut items: Incoming<u8>) -> u8 {
        let mut sum = 0;
        while let Some(Ok(item)) = items.next().await {
            sum += item;
        }
        sum
    }
    fn both(&self, items: Incoming<u8>) -> impl Stream<Item = u8> {
        items.map(|item| item.unwrap() + 1)
    }
}

fn serve(uri: &str) -> (String, Serving) {
    let server = Server::bind(uri).unwrap().add_service(KindsServer::new(All)).unwrap();
    (server.local_uri(), server.serve().unwrap())
}

/// Makes one of each kind.
async fn all_kinds(client: &KindsClient, waits: bool) -> Vec<Result<u8, RpcError<NoError>>> {
    let patience = Duration::from_secs(20);
    let download = async {
        let mut items = client.download().wait_for_ready(waits).deadline(patience).await?;
        items.next().await.unwrap()
    };
    let upload = async {
        let mut items = client.upload().wait_for_ready(waits).await?;
        items.send(&3).await?;
        items.finish().await
    };
    let both = async {
        let mut items = client.both().wait_for_ready(waits).deadline(patience).await?;
        items.send(&3).await?;
        items.next().await.unwrap()
    };
    vec![
        client.unary().wait_for_ready(waits).deadline(patience).await,
        client.one_way().wait_for_ready(waits).await.map(|()| 0),
        download.await,
        upload.await,
        both.await,
    ]
}

#[test]
fn every_kind_of_method_fails_at_once_or_waits_for_its_server() {
    let (uri, serving) = serve("udp://127.0.0.1:0");
    let channel = Client::connect(&uri).wait().unwrap();
    let client = futures::executor::block_on(KindsClient::new(channel)).unwrap();
    serving.handle().stop();
    serving.wait().unwrap();
    // The first call may be the one that notices the loss.
    let _ = client.unary().wait();
    let begin = Instant::now();
    for failed in futures::executor::block_on(all_kinds(&client, false)) {
        let Err(RpcError::Call(failed @ CallFailure::NotConnected { .. })) = failed else {
            panic!("{failed:?}");
        };
        assert_eq!(failed.executed(), Executed::Never);
        assert!(failed.to_string().contains("nothing listens on"), "{failed}");
    }
    // Less than the time of one connect.
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let waiting = std::thread::spawn(move || futures::executor::block_on(all_kinds(&client, true)));
    std::thread::sleep(Duration::from_millis(100));
    let (_, serving) = serve(&uri);
    let results: Vec<_> = waiting.join().unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(results, [1, 0, 2, 3, 4]);
    drop(serving);
}
