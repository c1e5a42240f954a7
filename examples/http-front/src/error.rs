//! Errors of calls as answers of HTTP.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use courser::service::{MidStreamError, NoError, RpcError};
use courser::{CallError, CallFailure, Executed};
use courser_example_kv::KvError;
use serde_json::json;

/// An answer that is an error: a status, and a JSON object with its text.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    error: String,
    executed: Executed,
}

impl Failure {
    /// The request is malformed.
    pub fn bad_request(error: &str) -> Self {
        let error = error.to_owned();
        Self { status: StatusCode::BAD_REQUEST, error, executed: Executed::Never }
    }

    fn new<E>(status: StatusCode, error: &RpcError<E>) -> Self
    where
        RpcError<E>: std::error::Error,
    {
        Self { status, error: error.to_string(), executed: error.executed() }
    }
}

impl From<RpcError<KvError>> for Failure {
    fn from(error: RpcError<KvError>) -> Self {
        let status = match &error {
            RpcError::Service(KvError::NotFound) => StatusCode::NOT_FOUND,
            RpcError::Service(KvError::TooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            RpcError::Service(KvError::ShuttingDown) => StatusCode::SERVICE_UNAVAILABLE,
            error => of_call(error),
        };
        Self::new(status, &error)
    }
}

impl From<RpcError<NoError>> for Failure {
    fn from(error: RpcError<NoError>) -> Self {
        Self::new(of_call(&error), &error)
    }
}

/// The status of an error that is not the service's own.
fn of_call<E>(error: &RpcError<E>) -> StatusCode {
    match error {
        RpcError::Call(CallFailure::Failed(CallError::DeadlineExceeded(_))) => {
            StatusCode::GATEWAY_TIMEOUT
        }
        // The server is gone, or busy.
        RpcError::Call(_)
        | RpcError::MidStream(MidStreamError::Call(_) | MidStreamError::ShuttingDown { .. }) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::BAD_GATEWAY,
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        // What a client must know before it repeats a request that is not idempotent.
        let executed = match self.executed {
            Executed::Never => "never",
            Executed::Maybe => "maybe",
            Executed::Yes => "yes",
        };
        (self.status, Json(json!({ "error": self.error, "executed": executed }))).into_response()
    }
}
