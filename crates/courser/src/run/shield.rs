//! The reaction to floods: see [`crate::run::flood`].

use courser_net::Transport;
use courser_proto::RxDrop;
use courser_proto::wire::WIRE_VERSION;

use crate::run::endpoint::{Events, Rpc};
use crate::run::flood::Action;

impl<T: Transport, A: Events> Rpc<T, A> {
    /// Paths may have been opened: while strangers are dropped, their addresses must be known.
    pub(crate) fn renew_shield(&mut self) {
        if self.flood.is_shielded {
            self.flood.is_shielded = self.transport.drop_strangers(Some(WIRE_VERSION));
        }
    }

    /// Reacts to refused frames, and to the end of an earlier reaction.
    pub(crate) fn watch_flood(&mut self, now_ns: u64) {
        let stats = self.core.proto.stats();
        // Frames of peers whose address changes have the right cookie: they are no flood of strangers.
        let moved = stats.dropped(RxDrop::WrongSource);
        let refused = stats.rx_frames - stats.rx_frames_accepted - moved;
        match self.flood.observe(refused, now_ns) {
            Action::Nothing => {}
            Action::DropStrangers => {
                self.flood.is_shielded = self.transport.drop_strangers(Some(WIRE_VERSION));
                if self.flood.is_shielded {
                    tracing::warn!(
                        endpoint = self.index,
                        refused,
                        "many frames are of strangers; the system drops them for a while"
                    );
                }
                self.event_loop.trim_by(self.flood.ends_ns().unwrap_or(u64::MAX));
            }
            Action::TakeAll => {
                self.flood.is_shielded = false;
                self.transport.drop_strangers(None);
            }
        }
    }
}
