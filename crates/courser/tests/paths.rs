//! What is asked of a transport: paths are closed when nobody needs them, however sessions end, and
//! lone small frames are copied where it does that.

mod common;

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use common::*;
use courser::parts::buf::{Addr, Arena, PathId, RxBurst, TxBurst, TxFrame};
use courser::parts::net::{Caps, MemNetwork, Path, PathError, TransportStats};
use courser::{Config, Transport};

const KEEP: u16 = 1;

/// Counts the paths that are open, and the frames that it is asked to copy.
struct Counting<T> {
    inner: T,
    open: Rc<Cell<usize>>,
    copied: Rc<Cell<usize>>,
    arena: Arena,
}

impl<T: Transport> Transport for Counting<T> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn local_addr(&self) -> Addr {
        self.inner.local_addr()
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

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        self.inner.tx_burst(burst);
    }

    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        let mut copy = self.arena.alloc(frame.len()).unwrap();
        copy.copy_from_slice(frame);
        let mut burst = TxBurst::from([TxFrame::one(path, copy.data_seg(0..frame.len()).unwrap())]);
        self.inner.tx_burst(&mut burst);
        self.copied.set(self.copied.get() + 1);
        true
    }

    fn tx_reclaim(&mut self) -> usize {
        self.inner.tx_reclaim()
    }

    fn tx_flush(&mut self) {
        self.inner.tx_flush();
    }

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        self.inner.rx_burst(out);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        self.inner.wait(wake, timeout_ns)
    }

    fn warnings(&self) -> Vec<String> {
        self.inner.warnings()
    }

    fn stats(&self) -> TransportStats {
        self.inner.stats()
    }
}

/// The sessions of clients that vanish count until their handlers have answered (E68); the ways
/// to these clients are of no use any more.
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

/// Each call leaves and is answered by itself, within the time for which frames need not say it.
#[test]
fn lone_small_frames_are_copied_by_a_transport_that_does_so() {
    const CALLS: usize = 300;
    let network = MemNetwork::new();
    let mut tuned = Config::default();
    tuned.tuning.time_every = Duration::from_micros(100);
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
    // Each call is made where the one before ends: only what a frame causes may leave like that.
    let ended = Rc::new(Cell::new(0));
    let count = ended.clone();
    client.on_completion(move |cx, tag, done| {
        assert_eq!(done.result.unwrap().len(), 10);
        count.set(count.get() + 1);
        if count.get() < CALLS {
            cx.call_tagged(session, KEEP, done.request, tag).unwrap();
        }
    });
    let request = message(&client, 1, 10);
    client.call_tagged(session, KEEP, request, 1).unwrap();
    drive_until(&mut [&mut client, &mut server], |_| ended.get() == CALLS);
    // A thread that is away for long says the time once more.
    assert!(requests.get() > CALLS / 4, "{} requests", requests.get());
    assert!(answers.get() > CALLS / 4, "{} answers", answers.get());
}
