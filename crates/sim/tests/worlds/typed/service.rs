//! The service of the swarm, and the ledger of its handlers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use courser::service::{CallContext, Incoming, RpcError, Stream};
use courser::{Executed, Local};
use futures::{StreamExt, stream};

use super::gate::is_traced;

/// The number of its call, its place, and bytes.
pub(super) type Item = (u64, u64, Vec<u8>);

pub(super) fn item(id: u64, n: u64) -> Item {
    (id, n, vec![n as u8; (n * 7 % 900) as usize])
}

/// Each kind of method. Each call has a number of its own.
#[courser::service]
pub(super) trait Work {
    async fn add(&self, cx: CallContext, id: u64, n: u64) -> Result<u64, u64>;
    #[oneway]
    async fn note(&self, id: u64);
    fn down(&self, id: u64, items: u64) -> impl Stream<Item = Result<Item, u64>>;
    /// Takes this number of items at most.
    async fn up(&self, id: u64, most: u64, items: Incoming<Item>) -> u64;
    /// Repeats this number of items at most.
    fn both(
        &self,
        cx: CallContext,
        id: u64,
        most: u64,
        items: Incoming<Item>,
    ) -> impl Stream<Item = Item>;
}

/// A handler that breaks a rule, so that an oracle must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Broken {
    Nothing,
    /// Two items of a stream change places.
    Order,
    /// A stream each way sends an item more than its client.
    More,
    /// A stream ends early, without an error.
    Less,
    /// A call runs twice.
    Twice,
    /// A call is answered, and does not run.
    Forgotten,
    /// The middleware lets calls without a token pass.
    Gate,
    /// The middleware adds no trace.
    Trace,
}

impl Broken {
    pub(super) const ALL: [Broken; 7] = [
        Broken::Order,
        Broken::More,
        Broken::Less,
        Broken::Twice,
        Broken::Forgotten,
        Broken::Gate,
        Broken::Trace,
    ];
}

/// The handler of a call.
#[derive(Default)]
struct Run {
    started: u32,
    taken: u64,
}

/// The facts about all calls, of all lives of the server and of the clients.
#[derive(Default)]
pub(super) struct Ledger {
    runs: BTreeMap<u64, Run>,
    /// Calls without a token.
    forbidden: BTreeSet<u64>,
    verdicts: Vec<(u64, Executed)>,
    wrong: Vec<String>,
    /// Ends of calls, by kind and outcome.
    pub(super) ends: BTreeMap<(&'static str, &'static str), u64>,
}

impl Ledger {
    pub(super) fn wrong(&mut self, id: u64, text: impl std::fmt::Display) {
        self.wrong.push(format!("call {id:#x}: {text}"));
    }

    pub(super) fn check(&mut self, id: u64, holds: bool, text: impl std::fmt::Display) {
        if !holds {
            self.wrong(id, text);
        }
    }

    /// A call has no token.
    pub(super) fn forbid(&mut self, id: u64) {
        self.forbidden.insert(id);
    }

    fn start(&mut self, id: u64) {
        self.runs.entry(id).or_default().started += 1;
    }

    /// A handler takes an item of its client.
    fn take(&mut self, id: u64, item: &Item) {
        let taken = self.taken(id);
        let text = format_args!("takes {} at {taken}", item.1);
        self.check(id, *item == self::item(id, taken), text);
        self.runs.entry(id).or_default().taken = taken + 1;
    }

    pub(super) fn taken(&self, id: u64) -> u64 {
        self.runs.get(&id).map_or(0, |run| run.taken)
    }

    /// A call has a value.
    pub(super) fn succeeded(&mut self, kind: &'static str, id: u64) {
        self.verdicts.push((id, Executed::Yes));
        *self.ends.entry((kind, "value")).or_default() += 1;
    }

    pub(super) fn failed<E>(&mut self, kind: &'static str, id: u64, error: &RpcError<E>) {
        let verdict = error.executed();
        self.verdicts.push((id, verdict));
        let name = match verdict {
            Executed::Never => "never",
            Executed::Maybe => "maybe",
            Executed::Yes => "yes",
        };
        *self.ends.entry((kind, name)).or_default() += 1;
    }

    /// The rules that were broken, after the end of all calls.
    pub(super) fn judge(&self) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        for (id, run) in &self.runs {
            if run.started > 1 {
                wrong.push(format!("call {id:#x} has run {} times", run.started));
            }
        }
        for id in self.forbidden.iter().filter(|id| self.runs.contains_key(id)) {
            wrong.push(format!("call {id:#x} has run without a token"));
        }
        for (id, verdict) in &self.verdicts {
            let runs = self.runs.get(id).map_or(0, |run| run.started);
            let lies = match verdict {
                Executed::Never => runs > 0,
                Executed::Yes => runs == 0,
                Executed::Maybe => false,
            };
            if lies {
                wrong
                    .push(format!("call {id:#x} has run {runs} times, and its end is {verdict:?}"));
            }
        }
        wrong
    }
}

pub(super) struct Worker {
    pub(super) local: Local,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) broken: Broken,
    pub(super) alive: Rc<()>,
}

impl Worker {
    fn start(&self, id: u64) -> Rc<()> {
        let mut ledger = self.ledger.borrow_mut();
        if self.broken != Broken::Forgotten || !id.is_multiple_of(3) {
            ledger.start(id);
        }
        if self.broken == Broken::Twice && id.is_multiple_of(3) {
            ledger.start(id);
        }
        self.alive.clone()
    }

    fn check_trace(&self, cx: &CallContext, id: u64) {
        self.ledger.borrow_mut().check(id, is_traced(cx), "a handler without the trace");
    }

    /// The place of an item, as this handler has it.
    fn place(&self, n: u64) -> u64 {
        match (self.broken, n) {
            (Broken::Order, 5) => 6,
            (Broken::Order, 6) => 5,
            _ => n,
        }
    }
}

impl LocalWork for Worker {
    async fn add(&self, cx: CallContext, id: u64, n: u64) -> Result<u64, u64> {
        let _alive = self.start(id);
        self.check_trace(&cx, id);
        if n.is_multiple_of(4) {
            self.local.sleep(Duration::from_micros(n % 1_000)).await;
        }
        if n.is_multiple_of(5) { Err(n) } else { Ok(n + 1) }
    }

    async fn note(&self, id: u64) {
        self.start(id);
    }

    fn down(&self, id: u64, items: u64) -> impl Stream<Item = Result<Item, u64>> {
        let alive = self.start(id);
        let less = u64::from(self.broken == Broken::Less && items > 3);
        let places: Vec<_> = (0..items - less).map(|n| self.place(n)).collect();
        stream::iter(places.into_iter().map(move |n| {
            let _ = &alive;
            Ok(item(id, n))
        }))
    }

    async fn up(&self, id: u64, most: u64, mut items: Incoming<Item>) -> u64 {
        let _alive = self.start(id);
        let mut taken = 0;
        while taken < most
            && let Some(Ok(item)) = items.next().await
        {
            self.ledger.borrow_mut().take(id, &item);
            taken += 1;
        }
        taken
    }

    fn both(
        &self,
        cx: CallContext,
        id: u64,
        most: u64,
        items: Incoming<Item>,
    ) -> impl Stream<Item = Item> {
        self.check_trace(&cx, id);
        let (alive, ledger) = (self.start(id), self.ledger.clone());
        let more = (self.broken == Broken::More).then(|| item(id, most));
        let items = items.take(most as usize).filter_map(|item| std::future::ready(item.ok()));
        let items = items.map(move |(id, n, bytes)| {
            let _ = &alive;
            ledger.borrow_mut().take(id, &(id, n, bytes));
            item(id, self.place(n))
        });
        items.chain(stream::iter(more))
    }
}
