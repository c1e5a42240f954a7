//! The server's end of a stream each way: the entries of both directions, and one open call.

use super::incoming::Incoming;
use super::open::Open;
use super::outgoing::{Limited, Outgoing};
use super::table::Direction;
use crate::service::answer::Refusal;
use crate::service::codec::Decode;
use crate::service::registry::Received;
use crate::service::services::Services;

impl Services {
    /// Opens a stream each way.
    #[doc(hidden)]
    pub fn open_both<K: Decode<A> + Decode<T>, A, T>(
        &self,
        mut received: Received<'_>,
    ) -> Result<(A, Incoming<T>, Outgoing), Refusal> {
        let trailer = received.split_trailer::<4>().map_err(|e| self.undecoded(e))?;
        let key = (received.session(), u32::from_le_bytes(trailer));
        let memory = Limited::of_batches(&received);
        let (client, charged) = (received.client(), received.is_charged());
        let cells = received.cells();
        let arguments = self.arguments::<K, A>(received)?;
        // The future of the open call is that of the outgoing items.
        let directions = (Direction::Outgoing, Some(Direction::Incoming));
        let open = Open::new(self, key, directions, client.clone())?;
        let entry = open.entry_of(Direction::Incoming);
        let arena = memory.arena.clone();
        let incoming = Incoming::new::<K>(self, entry, (arena, client, charged), cells.clone());
        Ok((arguments, incoming, Outgoing::new(open, memory, cells)))
    }
}
