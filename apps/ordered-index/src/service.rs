//! The handlers of a server.

use std::sync::Arc;

use courser::{Context, Request, Rpc, Transport, Work, WorkerError};

use crate::index::Index;
use crate::message::{
    DELETE, ECHO, FULL, GET, PUT, SCAN, SCAN_AT_ONCE, entry, key, number_and_count_bytes, scan,
};

/// Where scans run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scans {
    /// On worker threads, so that they delay no point operation.
    Workers,
    /// On the thread of the endpoint.
    Dispatch,
    /// Where the client asks for: [`SCAN`] on workers, [`SCAN_AT_ONCE`] on the thread of the endpoint.
    /// With plain RPCs ([`ECHO`]), for comparisons.
    Both,
}

/// Registers the handlers of an index.
///
/// # Errors
/// Scans run on workers, and there are none.
pub fn register<T: Transport>(
    rpc: &mut Rpc<T>,
    index: &Arc<Index>,
    scans: Scans,
) -> Result<(), WorkerError> {
    let of = index.clone();
    rpc.on(GET, move |cx, request| match key(&request) {
        Some(key) => match of.get(key) {
            Some(value) => cx.reply(value.to_le_bytes()),
            None => cx.reply([0; 0]),
        },
        None => cx.reject(),
    });
    let of = index.clone();
    rpc.on(PUT, move |cx, request| match entry(&request) {
        Some((key, value)) => cx.reply([of.put(key, value).map_or(FULL, u8::from)]),
        None => cx.reject(),
    });
    let of = index.clone();
    rpc.on(DELETE, move |cx, request| match key(&request) {
        Some(key) => cx.reply([u8::from(of.delete(key))]),
        None => cx.reject(),
    });
    if scans == Scans::Dispatch {
        rpc.on(SCAN, scan_at_once(index));
    } else {
        let of = index.clone();
        rpc.on_worker(SCAN, move |work: Work| match scan_bytes(&of, &work) {
            Some(bytes) => work.reply(bytes),
            None => work.reject(),
        })?;
    }
    if scans == Scans::Both {
        rpc.on(SCAN_AT_ONCE, scan_at_once(index));
        rpc.on(ECHO, |cx, request| cx.reply(request));
    }
    Ok(())
}

fn scan_at_once(index: &Arc<Index>) -> impl FnMut(&mut Context<'_>, Request<'_>) + 'static {
    let index = index.clone();
    move |cx, request| match scan_bytes(&index, &request) {
        Some(bytes) => cx.reply(bytes),
        None => cx.reject(),
    }
}

/// Scans. `None`: the request is malformed.
fn scan_bytes(index: &Index, request: &[u8]) -> Option<[u8; 12]> {
    let scan = scan(request)?;
    let sum = index.scan(scan.from, scan.count);
    Some(number_and_count_bytes(sum.sum, sum.count))
}
