//! Numbers by request, found in constant time: those of its session's slot.

use courser_proto::RequestId;

/// No number.
const NONE: u32 = u32::MAX;

/// A number for the last request of each slot of a session. Takes 4 bytes for each slot that had one, and
/// 24 for each session. Entries are not removed: the holder of a number checks whose it is.
#[derive(Default, Debug)]
pub(crate) struct ByRequest(Vec<Vec<u32>>);

impl ByRequest {
    #[inline]
    pub(crate) fn set(&mut self, id: RequestId, number: u32) {
        let (session, slot) = (id.session().index() as usize, usize::from(id.slot()));
        if self.0.len() <= session {
            self.0.resize_with(session + 1, Vec::new);
        }
        let slots = &mut self.0[session];
        if slots.len() <= slot {
            slots.resize(slot + 1, NONE);
        }
        slots[slot] = number;
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<u32> {
        let slots = self.0.get(id.session().index() as usize)?;
        slots.get(usize::from(id.slot())).copied().filter(|number| *number != NONE)
    }
}
