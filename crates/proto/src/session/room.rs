//! Room in the queues of a session that the application waits for.

/// The queues of a session in which the application waits for room.
/// One byte, as the size of sessions is limited.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AwaitedRoom(u8);

impl AwaitedRoom {
    const CALLS: u8 = 1;
    const MESSAGES: u8 = 2;

    pub(crate) fn add_calls(&mut self) {
        self.0 |= Self::CALLS;
    }

    pub(crate) fn add_messages(&mut self) {
        self.0 |= Self::MESSAGES;
    }

    pub(crate) fn has_calls(self) -> bool {
        self.0 & Self::CALLS != 0
    }

    pub(crate) fn has_messages(self) -> bool {
        self.0 & Self::MESSAGES != 0
    }

    #[inline]
    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}
