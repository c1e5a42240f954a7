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
    /// a message was refused again after it.
    pub(crate) fn take_report(&mut self) -> Option<bool> {
        let reported = self.0 >> Self::REPORTED;
        self.0 &= Self::ALL;
        let messages = reported & Self::MESSAGES != 0 && self.0 & Self::MESSAGES == 0;
        (messages || reported & Self::CALLS != 0).then_some(messages)
    }
}
