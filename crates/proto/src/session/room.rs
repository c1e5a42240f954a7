//! Room in the queues of a session that the application waits for.

/// Kinds of submissions that were refused for want of room, and those that a queued notice reports.
/// One byte, as the size of sessions is limited.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AwaitedRoom(u8);

impl AwaitedRoom {
    /// Calls.
    pub(crate) const CALLS: u8 = 1;
    /// Messages of one packet.
    pub(crate) const SMALL: u8 = 2;
    /// Messages of several packets, which wait in the queue of calls.
    pub(crate) const LARGE: u8 = 4;
    const MESSAGES: u8 = Self::SMALL | Self::LARGE;
    pub(crate) const ALL: u8 = Self::CALLS | Self::MESSAGES;
    /// Shift of the kinds that the notice reports.
    const REPORTED: u32 = 3;

    /// Submissions of this kind were refused.
    pub(crate) fn add(&mut self, kind: u8) {
        self.0 |= kind;
    }

    #[inline]
    pub(crate) fn any(self) -> bool {
        self.0 & Self::ALL != 0
    }

    /// Returns whether room in the queue of calls is awaited.
    pub(crate) fn any_in_calls(self) -> bool {
        self.0 & (Self::CALLS | Self::LARGE) != 0
    }

    /// Reports those of these kinds that are awaited. One report is for all messages: they are
    /// submitted again, and perhaps refused again. Returns whether a notice is to be queued, since
    /// there is none yet.
    pub(crate) fn report(&mut self, kinds: u8) -> bool {
        let mut reported = self.0 & kinds;
        if reported & Self::MESSAGES != 0 {
            reported |= self.0 & Self::MESSAGES;
        }
        let had_notice = self.0 >> Self::REPORTED != 0;
        self.0 = self.0 & !reported | reported << Self::REPORTED;
        reported != 0 && !had_notice
    }

    /// The notice is taken. Returns whether it is for messages; `None` if it reports nothing, as
    /// all that it reports was refused again after it. As messages are all submitted again, none of
    /// them is awaited any longer.
    pub(crate) fn take_report(&mut self) -> Option<bool> {
        let reported = self.0 >> Self::REPORTED;
        self.0 &= Self::ALL;
        let messages = reported & !self.0 & Self::MESSAGES != 0;
        if messages {
            self.0 &= !Self::MESSAGES;
        }
        (messages || reported & Self::CALLS != 0).then_some(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::AwaitedRoom;

    const SMALL: u8 = AwaitedRoom::SMALL;
    const LARGE: u8 = AwaitedRoom::LARGE;

    /// Kinds are refused, there is room for some, and others are refused before the notice is taken.
    fn taken(refused: u8, room: u8, again: u8) -> (Option<bool>, AwaitedRoom) {
        let mut awaited = AwaitedRoom::default();
        awaited.add(refused);
        assert!(awaited.report(room));
        awaited.add(again);
        (awaited.take_report(), awaited)
    }

    #[test]
    fn a_report_holds_when_messages_of_another_kind_are_refused_after_it() {
        for (refused, again) in [(SMALL, LARGE), (LARGE, SMALL), (SMALL | LARGE, SMALL)] {
            let (notice, awaited) = taken(refused, refused, again);
            assert_eq!(notice, Some(true), "{refused} {again}");
            assert!(!awaited.any(), "all messages are submitted again");
        }
    }

    #[test]
    fn messages_that_are_refused_again_wait_for_the_next_report() {
        let (notice, mut awaited) = taken(SMALL, SMALL, SMALL);
        assert_eq!((notice, awaited.any()), (None, true));
        assert!(awaited.report(SMALL), "a notice of its own");
        assert_eq!(awaited.take_report(), Some(true));
    }
}
