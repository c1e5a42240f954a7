//! Use of a transport: unused paths are closed, and single small frames are copied by transports
//! that support it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use courser::{Config, Transport};
use courser_buf::{Addr, Arena, PacketAccess, PathId, TxBurst, TxFrame};
use courser_net::{MemNetwork, Path, PathError};

const KEEP: u16 = 1;

/// Counts open paths and copied frames.
struct Counting<T> {
    inner: T,
    open: Rc<Cell<usize>>,
    copied: Rc<Cell<usize>>,
    arena: Arena,
}

impl<T: Transport> courser_net::Middleware for Counting<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError> {
        let path = self.inner.path_open(remote, local)?;
        self.open.set(self.open.get() + 1);
        Ok(path)
    }

    fn path_close(&mut self, path: PathId) {
        self.inner.path_close(path);
        self.open.set(self.open.get() - 1);
    }

    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        let mut copy = self.arena.alloc(frame.len()).unwrap();
        copy.copy_from_slice(frame);
        let mut burst = TxBurst::from([TxFrame::one(path, copy.data_seg(0..frame.len()).unwrap())]);
        self.inner.tx_burst(&mut burst);
        self.copied.set(self.copied.get() + 1);
        true
    }
}

/// Sessions of lost clients are counted until their handlers have answered (E68), but their paths
/// are not needed any more.
#[test]
fn the_paths_to_lost_clients_are_closed_while_their_handlers_still_run() {
    let network = MemNetwork::new();
    let counted = |open: &Rc<Cell<usize>>| {
        let open = open.clone();
        move |inner| Counting { inner, open, copied: Rc::default(), arena: Arena::heap() }
    };
    let open = Rc::default();
    let (nexus, mut server) = mem_endpoint(&network, Config::default(), counted(&open));
    server.on(KEEP, |cx, _| std::mem::forget(cx.defer()));
    for round in 1..4 {
        let (_nexus, mut gone) = mem_endpoint(&network, Config::default(), counted(&Rc::default()));
        let session = connect(&mut gone, &mut [&mut server], &nexus.local_uri());
        assert_eq!(open.get(), 1);
        let request = message(&gone, 1, 10);
        call(&mut gone, session, KEEP, request, &Log::default(), 1);
        drive_until(&mut [&mut gone, &mut server], |all| all[1].stats().requests == round);
        drop(gone);
        drive_until(&mut [&mut server], |all| all[0].sessions_from(0).next().is_none());
        assert_eq!((open.get(), server.sessions()), (0, round as usize));
    }
}

/// Each call is sent and answered alone, within the interval in which frames need no timestamp.
#[test]
fn single_small_frames_are_copied_by_transports_that_support_it() {
    const CALLS: usize = 300;
    let network = MemNetwork::new();
    let mut tuned = Config::default();
    tuned.tuning.timestamp_interval = Duration::from_micros(100);
    let endpoint = || {
        let copied = Rc::new(Cell::new(0));
        let seen = copied.clone();
        let wrap = move |inner| Counting {
            inner,
            open: Rc::default(),
            copied: seen,
            arena: Arena::heap(),
        };
        (mem_endpoint(&network, tuned.clone(), wrap), copied)
    };
    let ((nexus, mut server), answers) = endpoint();
    let ((_nexus, mut client), requests) = endpoint();
    server.on(KEEP, |cx, req| cx.reply(req));
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    // Each call is made in the continuation of the previous one: only frames sent in reaction to a
    // frame may be copied.
    let ended = Rc::new(Cell::new(0));
    let count = ended.clone();
    client.on_completion(move |cx, tag, done| {
        assert_eq!(done.result.unwrap().len(), 10);
        count.set(count.get() + 1);
        if count.get() < CALLS {
            cx.request(session, KEEP, done.request).tag(tag).send().unwrap();
        }
    });
    let request = message(&client, 1, 10);
    client.request(session, KEEP, request).tag(1).send().unwrap();
    drive_until(&mut [&mut client, &mut server], |_| ended.get() == CALLS);
    // After a long pause of the thread, a frame with a timestamp is sent.
    assert!(requests.get() > CALLS / 4, "{} requests", requests.get());
    assert!(answers.get() > CALLS / 4, "{} answers", answers.get());
}
