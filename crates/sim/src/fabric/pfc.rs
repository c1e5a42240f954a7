//! Priority flow control: bytes that a switch stores by input link, and pauses.

use super::policy::{PAUSE_WIRE_BYTES, Pfc};
use super::port::Sending;
use super::{Fabric, FabricEvent, Kind, LinkId, Outcome, Schedule};

impl Fabric {
    /// The switch at the end of a link stores more bytes from it.
    pub(super) fn hold(
        &mut self,
        now_ns: u64,
        from: u32,
        stored: u32,
        pfc: Pfc,
        s: &mut impl Schedule,
    ) {
        let port = &mut self.ports[from as usize];
        port.held += u64::from(stored);
        if !port.xoff && port.held > pfc.xoff_bytes {
            port.xoff = true;
            self.notify(now_ns, from, true, s);
        }
    }

    /// The switch at the end of a link stores fewer bytes from it.
    pub(super) fn release(
        &mut self,
        now_ns: u64,
        from: u32,
        stored: u32,
        pfc: Pfc,
        s: &mut impl Schedule,
    ) {
        let port = &mut self.ports[from as usize];
        port.held -= u64::from(stored);
        if port.xoff && port.held <= pfc.xon_bytes {
            port.xoff = false;
            self.notify(now_ns, from, false, s);
        }
    }

    /// Queues a pause frame to the sender of `link`. A frame that is still queued is replaced: only
    /// the last state counts.
    fn notify(&mut self, now_ns: u64, link: u32, on: bool, s: &mut impl Schedule) {
        let back = LinkId(link).reverse().0;
        self.ports[back as usize].control = Some(on);
        self.send_control(now_ns, back, s);
    }

    /// Sends the queued pause frame of an idle port. It goes before packets, and also while those
    /// are paused.
    pub(super) fn send_control(&mut self, now_ns: u64, link: u32, s: &mut impl Schedule) -> bool {
        let port = &mut self.ports[link as usize];
        if !port.is_idle() {
            return false;
        }
        let Some(on) = port.control.take() else { return false };
        port.sending = Sending::Control;
        port.counters.pause_frames += 1;
        let gone_ns = port.serialize(now_ns, PAUSE_WIRE_BYTES);
        let paused = LinkId(link).reverse().0;
        s.at(gone_ns, FabricEvent(Kind::Sent { link }));
        s.at(gone_ns + port.spec.delay_ns, FabricEvent(Kind::Pause { link: paused, on }));
        true
    }

    /// A pause frame has reached the sender of a link.
    pub(super) fn on_pause(
        &mut self,
        now_ns: u64,
        link: u32,
        on: bool,
        s: &mut impl Schedule,
    ) -> Outcome {
        self.ports[link as usize].pause(now_ns, on);
        self.next(now_ns, link, s)
    }
}
