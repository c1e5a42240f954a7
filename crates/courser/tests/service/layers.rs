//! Layers of tower around streams and one-way messages of a server, over real sockets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courser::service::{
    CallContext, CallOutcome, Denied, Incoming, Metadata, MethodKind, NoError, RpcError, Stream,
};
use courser::tower::{AnswerFuture, BoxError, Request, Response, layered};
use courser::{CallFailure, Executed, Server, Serving};
use futures::{StreamExt, stream};
use tower::timeout::TimeoutLayer;
use tower::{Layer, Service};

const MS: Duration = Duration::from_millis(1);

/// An argument whose decoder counts.
#[derive(Clone, Debug)]
struct Counted;

/// Arguments that were decoded, and the lock of tests that read or change it.
static DECODED: AtomicU64 = AtomicU64::new(0);
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl serde::Serialize for Counted {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(9)
    }
}

impl<'de> serde::Deserialize<'de> for Counted {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // A shape is traced with another number.
        let is_sent = u8::deserialize(from)? == 9;
        DECODED.fetch_add(u64::from(is_sent), Ordering::Relaxed);
        Ok(Counted)
    }
}

#[courser::service]
trait Post {
    async fn get(&self, key: Counted) -> u8;
    #[oneway]
    async fn drop_in(&self, key: Counted);
    fn letters(&self, cx: CallContext, key: Counted) -> impl Stream<Item = Result<String, String>>;
    async fn collect(&self, key: Counted, letters: Incoming<u64>) -> u64;
    fn talk(&self, key: Counted, letters: Incoming<u64>) -> impl Stream<Item = u64>;
}

#[derive(Clone, Default)]
struct Office {
    dropped_in: Arc<AtomicU64>,
}

impl Post for Office {
    async fn get(&self, _: Counted) -> u8 {
        1
    }
    async fn drop_in(&self, _: Counted) {
        self.dropped_in.fetch_add(1, Ordering::Relaxed);
    }
    fn letters(&self, cx: CallContext, _: Counted) -> impl Stream<Item = Result<String, String>> {
        let name = cx.metadata().text("name").unwrap_or("unnamed").to_owned();
        let at_once = cx.metadata().get("fail").is_some();
        let first = stream::iter(at_once.then(|| Err("at once".to_owned())));
        let first = first.chain(stream::iter([Ok(name)]));
        first.chain(stream::once(async {
            tokio::time::sleep(MS * 300).await;
            Ok("later".to_owned())
        }))
    }
    async fn collect(&self, _: Counted, mut letters: Incoming<u64>) -> u64 {
        let mut sum = 0;
        while let Some(Ok(letter)) = letters.next().await {
            sum += letter;
        }
        sum
    }
    fn talk(&self, _: Counted, letters: Incoming<u64>) -> impl Stream<Item = u64> {
        letters.filter_map(|letter| std::future::ready(letter.ok().map(|letter| letter + 1)))
    }
}

/// A layer that lets calls with a token pass, names them, and keeps their kinds and outcomes.
#[derive(Clone, Default)]
struct Tokens(Arc<Mutex<Vec<(MethodKind, CallOutcome)>>>);

#[derive(Clone)]
struct Checked<S>(Tokens, S);

impl<S> Layer<S> for Tokens {
    type Service = Checked<S>;
    fn layer(&self, inner: S) -> Checked<S> {
        Checked(self.clone(), inner)
    }
}

impl<S> Service<Request> for Checked<S>
where
    S: Service<Request, Response = Response, Error = BoxError, Future: Send + 'static>,
{
    type Response = Response;
    type Error = BoxError;
    type Future = AnswerFuture;
    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        self.1.poll_ready(cx)
    }
    fn call(&mut self, mut request: Request) -> AnswerFuture {
        assert_eq!(request.service(), "Post");
        assert_eq!(request.body(), [9], "{request:?}");
        assert!(request.peer().is_some());
        if request.metadata().text("token") != Some("blue") {
            let denied = Denied::unauthenticated("calls need a token");
            return Box::pin(async move { Err(denied.into()) });
        }
        request.metadata_mut().insert("name", "of the layer").unwrap();
        let (kind, denies) = (request.kind(), request.metadata().get("deny-late").is_some());
        let (seen, answer) = (self.0.0.clone(), self.1.call(request));
        Box::pin(async move {
            let answer = answer.await?;
            seen.lock().unwrap().push((kind, answer.outcome()));
            if denies { Err("too late".into()) } else { Ok(answer) }
        })
    }
}

fn token() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("token", "blue").unwrap();
    metadata
}

struct Running {
    post: PostClient,
    office: Office,
    tokens: Tokens,
    serving: Serving,
    denied: Box<dyn Fn() -> u64>,
}

/// A server with layers: the token check, and a limit of time within it.
async fn start(in_place: bool) -> Running {
    let (office, tokens) = (Office::default(), Tokens::default());
    let stack = tower::layer::util::Stack::new(TimeoutLayer::new(MS * 100), tokens.clone());
    let post = layered(PostServer::new(office.clone()), stack);
    let server = Server::bind("udp://127.0.0.1:0").unwrap().in_place(in_place);
    let server = server.on_tokio(tokio::runtime::Handle::current()).add_service(post).unwrap();
    let (uri, stats) = (server.local_uri(), server.service_stats());
    let serving = server.serve().unwrap();
    let post = PostClient::connect(&uri).await.unwrap();
    Running { post, office, tokens, serving, denied: Box::new(move || stats().denied) }
}

fn refused<T, E: std::fmt::Debug>(result: Result<T, RpcError<E>>) {
    match result {
        Err(RpcError::Unauthenticated(text)) => assert!(text.contains("need a token"), "{text}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a call without a token passed"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_refuse_streams_and_messages_before_anything_is_decoded_and_let_others_pass() {
    let _alone = ALONE.lock().await;
    for in_place in [false, true] {
        let Running { post, office, tokens, serving, denied } = start(in_place).await;
        let before = DECODED.load(Ordering::Relaxed);
        refused(post.get(Counted).await);
        refused(post.letters(Counted).await);
        refused(post.collect(Counted).await);
        refused(post.talk(Counted).await);
        post.drop_in(Counted).await.unwrap();
        while denied() < 5 {
            tokio::time::sleep(MS).await;
        }
        assert_eq!(DECODED.load(Ordering::Relaxed), before, "arguments were decoded");
        assert_eq!(office.dropped_in.load(Ordering::Relaxed), 0);
        let messages = |stats: &courser::service::MethodStats| stats.method == "drop_in";
        let stats = || serving.method_stats().into_iter().find(messages).unwrap();
        while stats().ended(CallOutcome::Denied) == 0 {
            tokio::time::sleep(MS).await;
        }
        assert_eq!(stats().started, 1, "{:?}", stats());
        assert!(tokens.0.lock().unwrap().is_empty());

        let post = post.with_metadata(token());
        assert_eq!(post.get(Counted).await, Ok(1));
        // The time that the layer limits is that of the opening.
        let letters: Vec<_> = post.letters(Counted).await.unwrap().collect().await;
        assert_eq!(letters, [Ok("of the layer".to_owned()), Ok("later".to_owned())]);
        let mut collected = post.collect(Counted).await.unwrap();
        tokio::time::sleep(MS * 150).await;
        for letter in 0..1_000 {
            collected.send(&letter).await.unwrap();
        }
        assert_eq!(collected.finish().await, Ok(499_500));
        let mut talk = post.talk(Counted).await.unwrap();
        for letter in 0..100 {
            talk.send(&letter).await.unwrap();
            assert_eq!(talk.next().await, Some(Ok(letter + 1)));
        }
        assert!(talk.finish().next().await.is_none());
        post.drop_in(Counted).await.unwrap();
        while office.dropped_in.load(Ordering::Relaxed) == 0 || tokens.0.lock().unwrap().len() < 5 {
            tokio::time::sleep(MS).await;
        }
        let at_once = post.letters(Counted).metadata("fail", "1").await;
        assert_eq!(at_once.err(), Some(RpcError::Service("at once".to_owned())));
        use CallOutcome::{Failed, Ok as Well};
        use MethodKind::{BothStreams, ClientStream, OneWay, ServerStream, Unary};
        let seen = tokens.0.lock().unwrap().clone();
        let kinds = [Unary, ServerStream, ClientStream, BothStreams, OneWay].map(|k| (k, Well));
        assert_eq!(seen[..5], kinds);
        assert_eq!(seen[5..], [(ServerStream, Failed)]);
        assert_eq!(DECODED.load(Ordering::Relaxed), before + 6);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_layer_fails_after_the_opening_ends() {
    let _alone = ALONE.lock().await;
    let Running { post, serving: _serving, .. } = start(false).await;
    let post = post.with_metadata(token());
    let talk = post.talk(Counted).metadata("deny-late", "1").await;
    let error: RpcError<NoError> = match talk {
        Err(error) => error,
        // It was accepted before.
        Ok(talk) => talk.finish().next().await.unwrap().unwrap_err(),
    };
    match error {
        RpcError::Call(CallFailure::Middleware { executed, reason }) => {
            assert_eq!((executed, &*reason), (Executed::Maybe, "too late"));
        }
        other => panic!("{other}"),
    }
    let talk = post.talk(Counted).await.unwrap();
    assert!(talk.finish().next().await.is_none());
}
