//! Makes the calls of a load as futures: each call in flight is a task, which awaits one call after
//! another on its session.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Local, Rpc, SessionId};

use super::load::{CallsError, Load};
use super::service;

/// The typed service of [`service::TYPED`], whose request is 32 bytes.
#[courser::service(codec = Bytes)]
pub(super) trait Typed {
    /// Answers with the argument.
    async fn echo(&self, bytes: [u8; 32]) -> [u8; 32];
}

/// Its implementation.
pub(super) struct Echo;

impl Typed for Echo {
    async fn echo(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }
}

/// The state that the tasks share with their owner.
#[derive(Default)]
struct Shared {
    stopped: bool,
    /// Tasks that have not ended.
    live: u32,
    completed: u64,
    failed: Option<CallsError>,
}

/// The tasks of a load.
pub(super) struct Tasks {
    shared: Rc<RefCell<Shared>>,
    /// Calls that were counted before.
    counted: u64,
}

impl Tasks {
    /// Starts the tasks; their first calls are sent by the next passes.
    pub(super) fn start(load: &Load, sessions: &[SessionId], rpc: &Rpc) -> Self {
        let shared = Rc::new(RefCell::new(Shared { live: load.in_flight, ..Shared::default() }));
        let local = rpc.local();
        for n in 0..load.in_flight as usize {
            let session = sessions[n % sessions.len()];
            let (of, size) = (shared.clone(), load.size);
            if load.req_type == service::TYPED {
                drop(local.spawn(typed(local.clone(), session, of)));
            } else {
                drop(local.spawn(awaiting(local.clone(), session, size, of)));
            }
        }
        Self { shared, counted: 0 }
    }

    /// Ends each task after its current call.
    pub(super) fn stop(&self) {
        self.shared.borrow_mut().stopped = true;
    }

    /// Calls that have ended since the last count, tasks that have not ended, and the first error.
    pub(super) fn progress(&mut self) -> (u64, u32, Option<CallsError>) {
        let mut shared = self.shared.borrow_mut();
        let new = shared.completed - std::mem::replace(&mut self.counted, shared.completed);
        (new, shared.live, shared.failed.take())
    }
}

impl Shared {
    /// Notes the end of a call. Whether the task goes on.
    fn ended(&mut self, result: Result<(), CallsError>) -> bool {
        match result {
            Ok(()) => self.completed += 1,
            Err(error) => {
                self.stopped = true;
                self.failed.get_or_insert(error);
            }
        }
        self.live -= u32::from(self.stopped);
        !self.stopped
    }
}

async fn awaiting(local: Local, session: SessionId, size: usize, shared: Rc<RefCell<Shared>>) {
    let session = local.session(session);
    loop {
        let Ok(mut request) = local.alloc_recycled(size) else { return };
        request.fill(0x5a);
        let result = match session.call(service::AWAITED, request).await {
            Ok(response) if response.len() == size => Ok(()),
            Ok(_) => Err(CallsError::Answer { sent: size }),
            Err(error) => Err(CallsError::Rejected(error.to_string())),
        };
        if !shared.borrow_mut().ended(result) {
            return;
        }
    }
}

async fn typed(local: Local, session: SessionId, shared: Rc<RefCell<Shared>>) {
    let client = TypedClient::unchecked(local.session(session));
    let bytes = [0x5a; 32];
    loop {
        let result = match client.echo(bytes).await {
            Ok(answer) if answer == bytes => Ok(()),
            Ok(_) => Err(CallsError::Answer { sent: bytes.len() }),
            Err(error) => Err(CallsError::Rejected(error.to_string())),
        };
        if !shared.borrow_mut().ended(result) {
            return;
        }
    }
}
