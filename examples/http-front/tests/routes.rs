//! The routes, with a key-value server behind them.

mod endless;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use courser::{Server, ServerHandle};
use courser_example_http_front::routes;
use courser_example_kv::{KvClient, KvServer, MAX_VALUE, Store};
use endless::Endless;
use http_body_util::BodyExt;
use tower::ServiceExt;

/// A key-value server, and the routes in front of it.
async fn front() -> (ServerHandle, Router) {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(KvServer::new(Store::default())).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let handle = serving.handle();
    tokio::spawn(serving);
    (handle, routes(KvClient::connect(&uri).await.unwrap()))
}

async fn ask(
    front: &Router,
    method: &str,
    uri: &str,
    deadline: &str,
    body: impl Into<Body>,
) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(uri);
    let request =
        if deadline.is_empty() { request } else { request.header("x-deadline-ms", deadline) };
    let answer = front.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.into()).unwrap())
}

#[tokio::test]
async fn values_are_written_read_and_removed() {
    let (_server, front) = front().await;
    let written = ask(&front, "PUT", "/kv/apple", "", "green").await;
    assert_eq!(written, (StatusCode::NO_CONTENT, String::new()));
    let read = ask(&front, "GET", "/kv/apple", "5000", "").await;
    assert_eq!(read, (StatusCode::OK, "green".to_owned()));
    assert_eq!(ask(&front, "DELETE", "/kv/apple", "", "").await.0, StatusCode::NO_CONTENT);
    let missing = r#"{"error":"there is no such key","executed":"yes"}"#;
    let read = ask(&front, "GET", "/kv/apple", "", "").await;
    assert_eq!(read, (StatusCode::NOT_FOUND, missing.to_owned()));
}

#[tokio::test]
async fn a_scan_is_a_line_of_json_for_each_entry() {
    let (_server, front) = front().await;
    for n in 0..300 {
        let (uri, value) = (format!("/kv/key-{n:03}"), format!("\"{n}\""));
        assert_eq!(ask(&front, "PUT", &uri, "", value).await.0, StatusCode::NO_CONTENT);
    }
    let (status, text) = ask(&front, "GET", "/kv?from=key-100", "", "").await;
    assert_eq!((status, text.lines().count()), (StatusCode::OK, 200));
    assert_eq!(text.lines().next(), Some(r#"{"key":"key-100","value":"\"100\""}"#));
    assert_eq!(ask(&front, "GET", "/kv", "", "").await.1.lines().count(), 300);
}

#[tokio::test]
async fn errors_have_their_status() {
    let (server, front) = front().await;
    let large = ask(&front, "PUT", "/kv/large", "", vec![0; MAX_VALUE + 1]).await;
    assert_eq!(large.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(large.1.contains("at most 1048576 are stored"), "{}", large.1);
    for deadline in ["0", "soon", "-1"] {
        let answer = ask(&front, "GET", "/kv/apple", deadline, "").await;
        assert_eq!(answer.0, StatusCode::BAD_REQUEST, "{deadline}");
    }
    server.stop();
    let answer = ask(&front, "GET", "/kv/apple", "300", "").await;
    let gone = [StatusCode::GATEWAY_TIMEOUT, StatusCode::SERVICE_UNAVAILABLE];
    assert!(gone.contains(&answer.0), "{answer:?}");
}

/// Handlers that never answer: a server of the same service that is stuck.
#[tokio::test]
async fn a_deadline_that_has_passed_is_a_gateway_timeout() {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(KvServer::new(Endless(|| ()))).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    tokio::spawn(serving);
    let front = routes(KvClient::connect(&uri).await.unwrap());
    let began = std::time::Instant::now();
    let (status, text) = ask(&front, "GET", "/kv/apple", "50", "").await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{text}");
    assert!(text.contains(r#""executed":"maybe""#), "{text}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
