//! The tasks of an endpoint and its notices, in the event loop.

use courser_net::Transport;
use courser_proto::{Notice, SessionId};

use crate::core::context::Context;
use crate::core::queue::LocalCommand;
use crate::run::endpoint::Rpc;

impl<T: Transport> Rpc<T> {
    /// Calls the application's function for a session with room for messages.
    fn report_room(&mut self, session: SessionId) -> bool {
        let Some(f) = self.handlers.on_room.as_mut() else { return false };
        f(&mut Context { core: &mut self.core, request: None }, session);
        true
    }

    /// Passes a notice of the protocol to those that wait for it. Returns whether there were any.
    pub(super) fn on_notice(&mut self, notice: Notice) -> bool {
        let mut any = match notice {
            Notice::Freed { session, messages } => {
                let started = self.core.start_queued(session);
                started | (messages && self.report_room(session))
            }
            Notice::Cancelled(request) => {
                self.workers.note_cancelled();
                self.core.drop_cancelled(request)
            }
        };
        if let Some(f) = self.handlers.on_notice.as_mut() {
            f(&mut Context { core: &mut self.core, request: None }, notice);
            any = true;
        }
        any
    }

    /// Tasks: those that are ready, and what was queued for them or by them.
    pub(super) fn run_tasks(&mut self) -> bool {
        let mut worked = false;
        if self.core.tasks.any_waiting() {
            worked |= self.core.wake_connected();
        }
        worked |= self.run_local_commands();
        if self.core.tasks.any_ready() {
            worked |= self.core.run_ready();
            worked |= self.run_local_commands();
        }
        let tasks = &self.core.tasks;
        self.core.queue.update_news(tasks.any_ready() || tasks.any_waiting());
        worked
    }

    /// Commands that futures and reply handles have left.
    fn run_local_commands(&mut self) -> bool {
        let commands = self.core.queue.take();
        let any = !commands.is_empty();
        for command in commands {
            match command {
                LocalCommand::Reply(id, status) => self.core.proto.reply_status(id, status),
                LocalCommand::DropCall(at) => self.core.drop_awaited(at),
                LocalCommand::CancelTimer(timer) => drop(self.core.timers.cancel(timer)),
                LocalCommand::Close(session) => self.core.close(session),
                LocalCommand::Spawn(task) => self.core.tasks.spawn(task),
            }
        }
        any
    }
}
