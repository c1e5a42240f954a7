//! HTTP in front, Courser behind: each route is a call of the key-value service.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /kv/{key}` | the value |
//! | `PUT /kv/{key}` | 204 |
//! | `DELETE /kv/{key}` | 204 |
//! | `GET /kv?from={key}` | all entries from that key on, a line of JSON each, as they arrive |
//!
//! A header `x-deadline-ms` limits the time of a request. The deadline travels with the call: its
//! handler is dropped when it has passed, and when the HTTP client is gone.

mod error;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use courser_example_kv::{KvClient, MAX_VALUE};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

pub use error::Failure;

/// Deadline of requests that set none, and the longest.
const DEADLINE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The routes. All requests share one client, whose clones are cheap.
pub fn routes(kv: KvClient) -> Router {
    Router::new()
        .route("/kv", get(scan))
        .route("/kv/{key}", get(read).put(write).delete(remove))
        // Values that are too large are refused by the service.
        .layer(DefaultBodyLimit::max(2 * MAX_VALUE))
        .with_state(kv)
}

async fn read(
    State(kv): State<KvClient>,
    Path(key): Path<String>,
    Deadline(deadline): Deadline,
) -> Result<Vec<u8>, Failure> {
    Ok(kv.get(key).deadline(deadline).await?)
}

async fn write(
    State(kv): State<KvClient>,
    Path(key): Path<String>,
    Deadline(deadline): Deadline,
    value: Bytes,
) -> Result<StatusCode, Failure> {
    kv.put(key, value.into()).deadline(deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(
    State(kv): State<KvClient>,
    Path(key): Path<String>,
    Deadline(deadline): Deadline,
) -> Result<StatusCode, Failure> {
    kv.delete(key).deadline(deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    from: String,
}

/// A line of a scan.
#[derive(Serialize)]
struct Entry {
    key: String,
    /// Bytes that are no UTF-8 are replaced.
    value: String,
}

async fn scan(
    State(kv): State<KvClient>,
    Query(range): Query<Range>,
    Deadline(deadline): Deadline,
) -> Result<Response, Failure> {
    let entries = kv.scan(range.from).deadline(deadline).await?;
    // An error within the stream ends the connection before the end of the body, so that the client
    // sees that entries are missing. If the client goes away, the stream is dropped and cancelled.
    let lines = entries.map(|entry| -> anyhow::Result<String> {
        let (key, value) = entry?;
        let value = String::from_utf8_lossy(&value).into_owned();
        Ok(serde_json::to_string(&Entry { key, value })? + "\n")
    });
    let kind = [(header::CONTENT_TYPE, "application/jsonl")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

/// The time that a request may take: `x-deadline-ms`, or the default.
struct Deadline(Duration);

impl<S: Sync> FromRequestParts<S> for Deadline {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let Some(text) = parts.headers.get("x-deadline-ms") else { return Ok(Self(DEADLINE)) };
        let ms = text.to_str().ok().and_then(|text| text.parse().ok()).filter(|&ms: &u64| ms > 0);
        let wrong = || Failure::bad_request("x-deadline-ms must be a number from 1; set one");
        ms.map(|ms| Self(Duration::from_millis(ms).min(LONGEST))).ok_or_else(wrong)
    }
}
