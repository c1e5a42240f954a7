//! Statistics of the methods of services: calls, outcomes, latencies.
//!
//! Servers and clients have [`MethodCells`] for each method, and count by themselves. The guards that
//! count a call once, however it ends, are where calls are made and handlers run:
//! `service/counted.rs`, `server/counted.rs`, `task/counted.rs`.

mod cells;
mod latency;
mod outcome;

use courser_buf::stats;

pub use cells::ServiceCells;
pub(crate) use cells::{Callers, MethodCells};
pub use latency::Latency;
pub use outcome::CallOutcome;

stats! {
    /// Counters of a method of a service, at a server or at clients. They are counted unless
    /// [`crate::Config::count_methods`] is `false`.
    ///
    /// A server counts from when a handler begins: latencies include the time in which its future waits,
    /// but not that of requests before it. A client counts from when a call is awaited until it has its
    /// result. A call of a stream lasts as long as the stream is open.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// use courser::service::CallOutcome;
    ///
    /// let store = StoreClient::connect(&uri).await?;
    /// store.get("apple".to_owned()).await?;
    /// assert!(store.get("plum".to_owned()).await.is_err());
    /// let stats = store.method_stats();
    /// let get = stats.iter().find(|stats| stats.method == "get").expect("it was called");
    /// assert_eq!((get.started, get.in_progress, get.errors()), (2, 0, 1));
    /// assert_eq!(get.ended(CallOutcome::Ok), 1);
    /// println!("p99 {:?} ns", get.latency.quantile_ns(0.99));
    /// # Ok(()) }) }
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct MethodStats: "method" {
        /// The name of the service.
        pub service: &'static str = state,
        /// The name of the method.
        pub method: &'static str = state,
        /// Calls, messages and streams that have begun, refused ones included.
        pub started: u64 = counter(calls),
        /// Calls, messages and streams among them that have not ended.
        pub in_progress: u64 = gauge(calls),
        /// Calls, messages and streams that have ended, by outcome; index with [`CallOutcome`]. An answer
        /// that the server could not encode is `ok` at the server and `undecoded` at the client.
        pub outcomes: [u64; CallOutcome::ALL.len()] = counter(calls, CallOutcome::LABELS),
        /// Items of streams that handlers have sent or taken, or that clients have received or sent.
        pub items: u64 = counter(items),
        /// Times that calls have taken. Requests that were refused before their handler have none.
        pub latency: Latency = part,
    }
}

impl MethodStats {
    /// Calls that have ended in this way.
    pub fn ended(&self, outcome: CallOutcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Calls that have not ended well, the application's own errors included.
    pub fn errors(&self) -> u64 {
        self.outcomes.iter().sum::<u64>() - self.ended(CallOutcome::Ok)
    }
}
