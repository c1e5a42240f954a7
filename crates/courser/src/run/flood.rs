//! Floods of frames from strangers: when ingress refuses many frames, the transport drops them earlier
//! ([`courser_net::Transport::drop_strangers`]).

/// More refused frames than this in a window are a flood.
const REFUSED: u64 = 256;
/// Length of a window, ns: 256 frames in it are 25,600 a second.
const WINDOW_NS: u64 = 10_000_000;
/// For how long strangers are dropped, ns. If the flood goes on, the next 256 frames start it again.
const HOLD_NS: u64 = 10_000_000_000;

/// The refused frames of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flood {
    /// Refused frames at the beginning of the window.
    refused: u64,
    begun_ns: u64,
    /// Strangers are dropped until this time; 0: they are not.
    until_ns: u64,
    /// The transport drops them.
    pub(super) is_shielded: bool,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Nothing,
    DropStrangers,
    TakeAll,
}

impl Flood {
    /// `refused` frames in all were refused.
    pub(super) fn observe(&mut self, refused: u64, now_ns: u64) -> Action {
        let is_flood =
            refused - self.refused >= REFUSED && now_ns.saturating_sub(self.begun_ns) <= WINDOW_NS;
        if is_flood || now_ns.saturating_sub(self.begun_ns) > WINDOW_NS {
            (self.refused, self.begun_ns) = (refused, now_ns);
        }
        if is_flood {
            let is_new = self.until_ns == 0;
            self.until_ns = now_ns.saturating_add(HOLD_NS);
            return if is_new { Action::DropStrangers } else { Action::Nothing };
        }
        self.expire(now_ns)
    }

    fn expire(&mut self, now_ns: u64) -> Action {
        if self.until_ns == 0 || now_ns < self.until_ns {
            return Action::Nothing;
        }
        self.until_ns = 0;
        Action::TakeAll
    }

    /// When strangers are no longer dropped; `None`: they are not.
    pub(crate) fn ends_ns(&self) -> Option<u64> {
        (self.until_ns != 0).then_some(self.until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn many_refused_frames_in_a_window_are_a_flood_for_a_while() {
        let mut flood = Flood::default();
        assert_eq!(flood.observe(256, 500 * MS), Action::Nothing, "in half a second");
        assert_eq!(flood.observe(511, 505 * MS), Action::Nothing);
        assert_eq!(flood.observe(512, 509 * MS), Action::DropStrangers);
        assert_eq!(flood.observe(768, 512 * MS), Action::Nothing, "it is on already");
        let ends = 10_512 * MS;
        assert_eq!(flood.ends_ns(), Some(ends));
        assert_eq!(flood.observe(770, ends - 1), Action::Nothing);
        assert_eq!(flood.observe(770, ends), Action::TakeAll);
        assert_eq!((flood.observe(771, ends + 1), flood.ends_ns()), (Action::Nothing, None));
        assert_eq!(flood.observe(1_027, ends + MS), Action::DropStrangers);
    }
}
