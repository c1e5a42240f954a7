//! Codes of the statuses that errors of calls become.

use std::sync::Arc;
use std::time::Duration;

use courser::grpc::{Code, Status};
use courser::service::{
    DecodeError, EncodeError, HelloError, Mismatch, RpcError, Service as _, ShapeMismatch,
    StreamError, UnknownMethod,
};
use courser::service::{MethodMismatch, MidStreamError};
use courser::{CallError, CallFailure, Executed, RejectReason, SessionEnd, Status as Verdict};

use serde::ser::SerializeTuple as _;

use crate::world::World;

fn name() -> String {
    "name".to_owned()
}

fn unknown() -> Arc<UnknownMethod> {
    Arc::new(UnknownMethod { service: name(), method: name() })
}

fn shapes() -> Arc<ShapeMismatch> {
    let (service, method, difference, client, server) = (name(), name(), name(), name(), name());
    Arc::new(ShapeMismatch { service, method, difference, client, server })
}

fn lost() -> CallFailure {
    CallFailure::Lost { server: "a".into(), reason: "b".into(), executed: Executed::Maybe }
}

fn layer() -> CallFailure {
    CallFailure::Middleware { reason: "full".into(), executed: Executed::Never }
}

/// The errors of calls, with their codes.
fn failures() -> Vec<(CallFailure, Code)> {
    let rejected = |reason| CallFailure::Rejected(reason);
    let failed = |error| CallFailure::Failed(error);
    let not_connected = CallFailure::NotConnected { server: "a".into(), reason: "b".into() };
    let maybe = Executed::Maybe;
    let mut all = vec![
        (rejected(RejectReason::NoSession(SessionEnd::Unreachable)), Code::Unavailable),
        (rejected(RejectReason::NotClient), Code::Internal),
        (rejected(RejectReason::QueueFull { limit: 1 }), Code::ResourceExhausted),
        (rejected(RejectReason::MessagesFull { limit: 1 }), Code::ResourceExhausted),
        (rejected(RejectReason::TooLarge { bytes: 2, limit: 1 }), Code::ResourceExhausted),
        (failed(CallError::NotConnected(SessionEnd::Unreachable)), Code::Unavailable),
        (failed(CallError::PeerFailed(maybe)), Code::Unavailable),
        (failed(CallError::DatapathSilent(maybe)), Code::Unavailable),
        (failed(CallError::Closed(maybe)), Code::Unavailable),
        (failed(CallError::DeadlineExceeded(maybe)), Code::DeadlineExceeded),
        (failed(CallError::Cancelled(maybe)), Code::Cancelled),
        (failed(CallError::NoMemory { response_bytes: 1 }), Code::ResourceExhausted),
        (
            failed(CallError::ResponseTooLarge { response_bytes: 2, limit: 1 }),
            Code::ResourceExhausted,
        ),
        (not_connected, Code::Unavailable),
        (lost(), Code::Unavailable),
        (CallFailure::Method(MethodMismatch::Unknown(unknown())), Code::Unimplemented),
        (CallFailure::Method(MethodMismatch::Shape(shapes())), Code::Unimplemented),
        (layer(), Code::Unknown),
        (CallFailure::Forked, Code::FailedPrecondition),
        (CallFailure::Stopped, Code::Unavailable),
    ];
    let verdicts = [
        (Verdict::UnknownType, Code::Unimplemented),
        (Verdict::TooLarge, Code::ResourceExhausted),
        (Verdict::NoMemory, Code::ResourceExhausted),
        (Verdict::NoReply, Code::Internal),
        (Verdict::ResponseFailed, Code::Internal),
        (Verdict::Rejected, Code::Unavailable),
        (Verdict::WorkersBusy, Code::ResourceExhausted),
        (Verdict::Panicked, Code::Internal),
        (Verdict::DeadlineExceeded, Code::DeadlineExceeded),
        (Verdict::Cancelled, Code::Cancelled),
        (Verdict::ShuttingDown, Code::Unavailable),
        (Verdict::Expired, Code::DeadlineExceeded),
        (Verdict::NotStarted, Code::Unavailable),
        (Verdict::Dropped, Code::Unavailable),
        (Verdict::Denied, Code::PermissionDenied),
        (Verdict::GraceEnded, Code::Unavailable),
        (Verdict::Other, Code::Unknown),
    ];
    all.extend(verdicts.map(|(verdict, code)| (failed(CallError::Server(verdict)), code)));
    all
}

/// The errors of decoding, with their codes.
fn undecoded() -> Vec<(DecodeError, Code)> {
    let codec = "named";
    vec![
        (DecodeError::Codec { codec, detail: "end".into() }, Code::Internal),
        (DecodeError::Trailing { left: 1 }, Code::Internal),
        (DecodeError::Form("empty"), Code::Internal),
        (DecodeError::TooDeep { levels: 1 }, Code::Internal),
        (DecodeError::Elements, Code::Internal),
        (DecodeError::Remote("end".into()), Code::Internal),
        (DecodeError::HeapLimit { limit: 1 }, Code::ResourceExhausted),
        (DecodeError::HeapFull { limit: 1 }, Code::ResourceExhausted),
        (DecodeError::RemoteFull("full".into()), Code::ResourceExhausted),
        (DecodeError::RemoteLimit("large".into()), Code::ResourceExhausted),
    ]
}

/// The errors of encoding, with their codes.
fn unencoded() -> Vec<(EncodeError, Code)> {
    vec![
        (EncodeError::TooLarge { limit: 1 }, Code::ResourceExhausted),
        (EncodeError::Codec { codec: "named", detail: "no".into() }, Code::Internal),
        (EncodeError::TooDeep { levels: 1 }, Code::Internal),
        (EncodeError::Remote("no".into()), Code::Internal),
    ]
}

#[test]
fn each_error_of_a_call_has_its_code() {
    type Own = RpcError<Status>;
    let retry_after = Duration::from_secs(1);
    let mut all = vec![
        (Own::Service(Status::aborted("twice")), Code::Aborted),
        (Own::UnknownMethod(unknown()), Code::Unimplemented),
        (Own::ShapeMismatch(shapes()), Code::Unimplemented),
        (Own::Denied("no".into()), Code::PermissionDenied),
        (Own::Unauthenticated("no token".into()), Code::Unauthenticated),
        (Own::TooMany { reason: "busy".into(), retry_after }, Code::ResourceExhausted),
        (Own::FewSlots { slots: 2, needed: 4 }, Code::FailedPrecondition),
        (Own::MidStream(MidStreamError::ShuttingDown { items: 1 }), Code::Unavailable),
        (Own::MidStream(MidStreamError::Closed), Code::FailedPrecondition),
    ];
    let streams = [
        (StreamError::Unknown, Code::Internal),
        (StreamError::Sequence, Code::Internal),
        (StreamError::Open, Code::Internal),
        (StreamError::Direction, Code::Internal),
        (StreamError::TooMany, Code::ResourceExhausted),
        (StreamError::Limit, Code::ResourceExhausted),
        (StreamError::Other, Code::Internal),
    ];
    all.extend(streams.map(|(error, code)| (Own::Stream(error), code)));
    for (error, code) in failures() {
        all.push((Own::Call(error.clone()), code));
        all.push((Own::MidStream(MidStreamError::Call(error)), code));
    }
    for (error, code) in undecoded() {
        all.push((Own::Decode(error.clone()), code));
        all.push((Own::MidStream(MidStreamError::Decode(error)), code));
    }
    for (error, code) in unencoded() {
        all.push((Own::Encode(error.clone()), code));
        all.push((Own::MidStream(MidStreamError::Encode(error)), code));
    }
    for (error, code) in all {
        let text = error.to_string();
        let status = Status::from(error.clone());
        assert_eq!(status.code(), code, "{error:?}");
        assert!(matches!(error, RpcError::Service(_)) || status.message() == text, "{status}");
    }
}

#[test]
fn each_error_of_connecting_has_its_code() {
    let mismatch = Mismatch { service: name(), client_codec: name(), server_codec: name() };
    let connect = courser::Client::connect("nowhere").wait().unwrap_err();
    let mut all = vec![
        (HelloError::Mismatch(Box::new(mismatch)), Code::Unimplemented),
        (HelloError::NoService { service: name(), others: name() }, Code::Unimplemented),
        (HelloError::Denied { service: name(), reason: "no".into() }, Code::PermissionDenied),
        (HelloError::Connect(connect), Code::Unavailable),
    ];
    all.extend(failures().into_iter().map(|(error, code)| (error.into(), code)));
    all.extend(undecoded().into_iter().map(|(error, code)| (error.into(), code)));
    all.extend(unencoded().into_iter().map(|(error, code)| (error.into(), code)));
    for (error, code) in all {
        let text = error.to_string();
        assert_eq!(Status::from(error).code(), code, "{text}");
    }
}

/// A value of 128 bytes, which is written as an empty tuple.
#[derive(Debug, serde::Deserialize)]
struct Wide(#[allow(dead_code)] [Vec<u8>; 4], #[allow(dead_code)] [u64; 4]);

impl serde::Serialize for Wide {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_tuple(0)?.end()
    }
}

#[courser::service(name = "Rows")]
trait Rows {
    async fn rows(&self, rows: Vec<Wide>) -> u64;
}

struct Counts;

impl Rows for Counts {
    async fn rows(&self, rows: Vec<Wide>) -> u64 {
        rows.len() as u64
    }
}

#[test]
fn a_request_above_the_heap_of_one_message_is_exhausted_at_the_client() {
    let mut world = World::new(1);
    RowsServer::new(Counts).register(&mut world).unwrap();
    let client = RowsClient::unchecked(world.session());
    // Each element has one byte, and 128 on the heap.
    let rows = (0..1 << 20).map(|_| Wide(Default::default(), [0; 4])).collect();
    let error = world.run(async { client.rows(rows).await }).unwrap_err();
    assert!(matches!(&error, RpcError::Decode(DecodeError::RemoteLimit(_))), "{error}");
    assert_eq!(error.executed(), Executed::Never);
    assert_eq!(Status::from(error).code(), Code::ResourceExhausted);
    world.assert_clean();
}
