//! Next-hop groups.

/// The number of a group, below 2^24, which is what an entry of the [FIB](crate::fib) has room for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupId(u32);

impl GroupId {
    /// The largest number.
    pub const MAX: GroupId = GroupId((1 << 24) - 1);

    /// The group of this number; `None` above [`GroupId::MAX`].
    pub const fn new(number: u32) -> Option<GroupId> {
        if number <= GroupId::MAX.0 { Some(GroupId(number)) } else { None }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}
