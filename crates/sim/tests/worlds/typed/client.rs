//! The clients of the swarm: calls and streams of each kind, whose outcomes they compare with the rules.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use courser::service::{Metadata, MidStreamError, NoError, Retries, RetryPolicy, RpcError};
use courser::{Local, Session};
use courser_sim::Rng;
use futures::future;

use super::gate::TOKEN;
use super::service::{Ledger, WorkClient, item};

/// Items of a stream; some 50 kB, so that streams have more than one batch.
const MOST_ITEMS: u64 = 200;
/// Longest pause between calls, so that a seed takes a tenth of a second.
const MOST_PAUSE_US: u64 = 8_000;

pub(super) struct Client {
    pub(super) local: Local,
    pub(super) uri: String,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) rng: Rng,
    /// The number of the next call.
    pub(super) next: u64,
    /// Calls that were refused are made again.
    pub(super) retries: Option<Retries>,
}

/// The retries of clients that have them.
pub(super) fn retries() -> Retries {
    let ms = Duration::from_millis;
    Retries::new(RetryPolicy::default().attempts(4).pauses(ms(1), ms(20)))
}

type Work = WorkClient<Session>;

fn with_token(work: &Work) -> Work {
    let mut metadata = Metadata::new();
    metadata.insert(TOKEN.0, TOKEN.1).unwrap();
    work.with_metadata(metadata)
}

impl Client {
    /// Calls for this time.
    pub(super) async fn run(mut self, time: Duration) {
        let until_ns = self.local.now_ns() + time.as_nanos() as u64;
        while self.local.now_ns() < until_ns {
            let connected = self.local.connect(&self.uri).await;
            if let Ok(session) = connected
                && let Ok(work) = Work::new(session).await
            {
                let bare = self.with_retries(work);
                let work = with_token(&bare);
                while self.local.now_ns() < until_ns && self.call_one(&work, &bare).await {
                    let pause = self.rng.below(MOST_PAUSE_US);
                    self.local.sleep(Duration::from_micros(pause)).await;
                }
            }
            self.local.sleep(Duration::from_millis(5)).await;
        }
    }

    fn with_retries(&self, work: Work) -> Work {
        match &self.retries {
            Some(retries) => work.with_retries(retries.clone()),
            None => work,
        }
    }

    /// Makes one call, one of sixteen without a token.
    async fn call_one(&mut self, work: &Work, bare: &Work) -> bool {
        if self.rng.below(16) != 0 {
            return self.call(work).await;
        }
        self.ledger.borrow_mut().forbid(self.next + 1);
        self.call(bare).await;
        true
    }

    /// Makes one call. False: it failed, and another session may be better.
    async fn call(&mut self, work: &Work) -> bool {
        self.next += 1;
        let id = self.next;
        let after = [None, Some(self.rng.between(200, 50_000))][self.rng.below(2) as usize];
        let after = after.map(Duration::from_micros);
        match self.rng.below(8) {
            0..3 => self.add(work, id, after).await,
            3 => work.note(id).await.is_ok(),
            4 => self.down(work, id, after).await,
            5 => self.up(work, id, after).await,
            _ => self.both(work, id, after).await,
        }
    }

    async fn add(&mut self, work: &Work, id: u64, after: Option<Duration>) -> bool {
        let n = self.rng.below(10_000);
        let outcome = work.add(id, n).deadline(after).await;
        let mut ledger = self.ledger.borrow_mut();
        match outcome {
            Ok(sum) => {
                ledger.succeeded("add", id);
                ledger.check(id, sum == n + 1 && !n.is_multiple_of(5), "a wrong sum");
            }
            Err(RpcError::Service(wrong)) => {
                ledger.succeeded("add", id);
                ledger.check(id, wrong == n && n.is_multiple_of(5), "a wrong error");
            }
            Err(e) => {
                ledger.failed("add", id, &e);
                return false;
            }
        }
        true
    }

    async fn down(&mut self, work: &Work, id: u64, after: Option<Duration>) -> bool {
        let items = self.rng.below(MOST_ITEMS);
        // It may drop the stream.
        let most = if self.rng.below(4) == 0 { self.rng.below(items + 1) } else { u64::MAX };
        let mut stream = match work.down(id, items).deadline(after).await {
            Ok(stream) => stream,
            Err(e) => {
                self.ledger.borrow_mut().failed("down", id, &e);
                return false;
            }
        };
        let mut read = 0;
        while read < most {
            let next = stream.next().await;
            let ended = {
                let mut ledger = self.ledger.borrow_mut();
                match next {
                    Some(Ok(got)) => {
                        ledger.check(
                            id,
                            got == item(id, read),
                            format_args!("{} at {read}", got.1),
                        );
                        read += 1;
                        false
                    }
                    None => {
                        ledger.succeeded("down", id);
                        ledger.check(
                            id,
                            read == items,
                            format_args!("an end after {read} of {items}"),
                        );
                        true
                    }
                    Some(Err(e)) => {
                        ledger.failed("down", id, &e);
                        if let RpcError::MidStream(MidStreamError::ShuttingDown { items }) = e {
                            ledger.check(
                                id,
                                items == read,
                                format_args!("{items} named of {read}"),
                            );
                        }
                        true
                    }
                }
            };
            if !ended {
                continue;
            }
            let after = stream.next().await.is_some();
            self.ledger.borrow_mut().check(id, !after, "an item after the end");
            break;
        }
        true
    }

    async fn up(&mut self, work: &Work, id: u64, after: Option<Duration>) -> bool {
        let items = self.rng.below(MOST_ITEMS);
        let most = if self.rng.below(4) == 0 { self.rng.below(items + 1) } else { u64::MAX };
        let mut sent = 0;
        let outcome: Result<u64, RpcError<NoError>> = async {
            let mut upload = work.up(id, most).deadline(after).await?;
            while sent < items && !upload.has_ended() {
                upload.send(&item(id, sent)).await?;
                sent += 1;
            }
            upload.finish().await
        }
        .await;
        let mut ledger = self.ledger.borrow_mut();
        match outcome {
            Ok(taken) => {
                ledger.succeeded("up", id);
                let all = sent.min(most);
                ledger.check(id, taken <= all, format_args!("{taken} of {sent} items"));
                let holds = taken == all || (most != u64::MAX && taken == most);
                ledger.check(id, holds, format_args!("{taken} of {all} items are taken"));
            }
            Err(e) => {
                ledger.failed("up", id, &e);
                if let RpcError::MidStream(MidStreamError::ShuttingDown { items }) = e {
                    let taken = ledger.taken(id);
                    ledger.check(id, items == taken, format_args!("{items} named of {taken}"));
                }
                return false;
            }
        }
        true
    }

    async fn both(&mut self, work: &Work, id: u64, after: Option<Duration>) -> bool {
        let items = self.rng.below(MOST_ITEMS);
        let most = if self.rng.below(4) == 0 { self.rng.below(items + 1) } else { items + 1 };
        // Either half may be dropped.
        let [keeps_sender, keeps_receiver] = [(); 2]
            .map(|()| if self.rng.below(5) == 0 { self.rng.below(items + 1) } else { u64::MAX });
        let chat = match work.both(id, most).deadline(after).await {
            Ok(chat) => chat,
            Err(e) => {
                self.ledger.borrow_mut().failed("both", id, &e);
                return false;
            }
        };
        let (mut sender, mut receiver) = chat.split();
        let (begun, finished) = (Cell::new(0), Cell::new(false));
        let ledger = &self.ledger;
        let sends = async {
            for n in 0..items.min(keeps_sender) {
                begun.set(n + 1);
                if sender.send(&item(id, n)).await.is_err() {
                    return;
                }
            }
            if keeps_sender < items {
                return drop(sender);
            }
            if sender.finish().await.is_ok() {
                finished.set(true);
                let taken = ledger.borrow().taken(id);
                let text = format!("{taken} of {items} items are taken at the end");
                ledger.borrow_mut().check(id, taken == items, text);
            }
        };
        let reads = async {
            let mut read = 0;
            while read < keeps_receiver {
                let next = receiver.next().await;
                let ended = {
                    let mut ledger = ledger.borrow_mut();
                    match next {
                        Some(Ok(got)) => {
                            ledger.check(
                                id,
                                got == item(id, read),
                                format_args!("{} at {read}", got.1),
                            );
                            ledger.check(id, read < begun.get(), "an item that was not sent");
                            read += 1;
                            false
                        }
                        None => {
                            ledger.succeeded("both", id);
                            let all = items.min(most);
                            ledger.check(
                                id,
                                read == all,
                                format_args!("an end after {read} of {all}"),
                            );
                            true
                        }
                        Some(Err(e)) => {
                            ledger.failed("both", id, &e);
                            if let RpcError::MidStream(MidStreamError::ShuttingDown { items }) = e {
                                ledger.check(
                                    id,
                                    items == read,
                                    format_args!("{items} named of {read}"),
                                );
                            }
                            true
                        }
                    }
                };
                if !ended {
                    continue;
                }
                let after = receiver.next().await.is_some();
                self.ledger.borrow_mut().check(id, !after, "an item after the end");
                return;
            }
            drop(receiver);
        };
        future::join(sends, reads).await;
        true
    }
}
