//! Roles of the server side, selected over shared memory.

/// Echoes every datagram of the raw socket, in trains as received.
pub const ECHO: u32 = 2;
/// As [`ECHO`], but single datagrams are sent by a copy.
pub const ECHO_COPY: u32 = 5;
/// Counts and reports the datagrams of the raw socket.
pub const SINK: u32 = 3;

const SERVE: u32 = 0x1_0000;
const MEMORY: u32 = 0x2_0000;
const CALL: u32 = 0x3_0000;

/// Polls this endpoint.
pub const fn serve(endpoint: u16) -> u32 {
    SERVE + endpoint as u32
}

/// Prints the memory of this endpoint's sessions, then polls it.
pub const fn memory(endpoint: u16) -> u32 {
    MEMORY + endpoint as u32
}

/// Polls the endpoint of this load, and makes the load's calls to the other side.
pub const fn call(load: u16) -> u32 {
    CALL + load as u32
}

/// A decoded role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// [`ECHO`], or [`ECHO_COPY`].
    Echo {
        /// Frames are sent by [`courser::Transport::tx_copy`].
        copy: bool,
    },
    /// [`SINK`].
    Sink,
    /// [`serve`].
    Serve(usize),
    /// [`memory`].
    Memory(usize),
    /// [`call`].
    Call(usize),
}

impl Role {
    /// Decodes a role; unknown numbers are the initial role.
    pub fn of(word: u32) -> Self {
        let number = usize::from(word as u16);
        match (word, word & 0xffff_0000) {
            (ECHO, _) => Self::Echo { copy: false },
            (ECHO_COPY, _) => Self::Echo { copy: true },
            (SINK, _) => Self::Sink,
            (_, SERVE) => Self::Serve(number),
            (_, MEMORY) => Self::Memory(number),
            (_, CALL) => Self::Call(number),
            _ => Self::Serve(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_decoded_as_they_were_encoded() {
        assert_eq!(Role::of(serve(7)), Role::Serve(7));
        assert_eq!(Role::of(memory(0)), Role::Memory(0));
        assert_eq!(Role::of(call(u16::MAX)), Role::Call(65_535));
        assert_eq!(Role::of(ECHO), Role::Echo { copy: false });
        assert_eq!(Role::of(ECHO_COPY), Role::Echo { copy: true });
        assert_eq!(Role::of(SINK), Role::Sink);
        for word in [0, 1, 4, 0x4_0000, u32::MAX] {
            assert_eq!(Role::of(word), Role::Serve(0), "{word:#x}");
        }
    }
}
