//! Receive, one file per packet kind (step 12 of a packet's path). Each takes a packet as past,
//! in order, or future, and either changes its slot or names the reason for dropping it.

mod ack;
mod cancel;
mod credit_return;
mod parts;
mod request;
mod response;
mod rfr;
mod short;

pub(crate) use parts::Content;
