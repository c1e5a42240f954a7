//! Loss recovery: when a client gives a packet up (`rto`), and what it does then (go-back-N,
//! `[eRPC §5.3]`, in [`crate::slot`]). The server keeps no timer and rolls nothing back (F3).

#[allow(dead_code)] // until sessions choose their recovery
pub(crate) mod melo;
mod recovery;
pub(crate) mod rto;

pub use recovery::{Recovery, UnknownRecovery};
