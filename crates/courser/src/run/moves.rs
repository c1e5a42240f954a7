//! Peers behind a translation of addresses: their paths follow them (`courser_proto::moves`).

use courser_net::Transport;
use courser_proto::{ControlMsg, StrayFrame};

use crate::control::Command;
use crate::run::dispatch;
use crate::run::endpoint::{Events, Rpc};

impl<T: Transport, A: Events> Rpc<T, A> {
    /// Receives the frames of peers whose addresses have changed, and challenges peers that may have moved.
    /// Returns whether there were any.
    #[cold]
    pub(crate) fn follow_moves(&mut self) -> bool {
        let mut any = false;
        while let Some(stray) = self.core.proto.poll_stray() {
            any = true;
            if stray.moves {
                if !self.follow(&stray) {
                    self.core.proto.not_moved();
                    continue;
                }
                self.core.proto.moved(&stray);
            }
            let (core, handlers) = (&mut self.core, &mut self.handlers);
            dispatch::receive(core, handlers, false, None, &[stray.frame()]);
            A::after_burst(&mut self.core);
        }
        while self.core.proto.wants_challenges() {
            any = true;
            self.challenge();
        }
        if any {
            self.renew_shield();
        }
        any
    }

    /// Makes the path of a peer lead to the source of a frame.
    fn follow(&mut self, stray: &StrayFrame) -> bool {
        let Some(path) = stray.path else { return true };
        match self.transport.path_move(path, stray.src) {
            Ok(_) => true,
            Err(e) => {
                // Each frame may fail, so that warnings would have no limit.
                tracing::debug!(to = %stray.src, "a peer has another address, which is not reached: {e}");
                false
            }
        }
    }

    fn challenge(&mut self) {
        let random = || self.core.platform.random_u64();
        let Some(c) = self.core.proto.poll_challenge(random) else { return };
        let (to, from) = (c.endpoint_id, self.core.proto.id());
        let msg = ControlMsg::Challenge { to, from, peer: c.peer, token: c.token };
        self.control_plane.send(Command::Send { control: c.control, msg });
    }
}
