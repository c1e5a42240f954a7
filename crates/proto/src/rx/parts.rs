//! Large frames whose end the transport has left in memory that their sender can still write
//! ([`RxFrame::tail`]). One packet of a large message goes from there to its place in the message:
//! its headers are checked in the front of the frame, which is ours, and of the rest nothing is
//! concluded. Any other frame is copied into one piece before it is looked at.

use courser_buf::{RxFrame, Tail, prefetch_copy};

use crate::endpoint::Endpoint;
use crate::event::{Driver, Event, FrameCursor};
use crate::stats::Drop;
use crate::wire::{Packet, parse_front};

/// The data of a packet.
pub(crate) trait Content<'f>: Copy {
    /// All of it, to be read in place.
    fn whole(self) -> Option<&'f [u8]>;
    fn len(self) -> usize;
    /// Copies it to where it belongs, which is as long.
    fn copy_to(self, out: &mut [u8]);
    /// Copies it to where it begins in its message, and asks for the place of the packet after it.
    #[inline(always)]
    fn copy_into(self, message: &mut [u8], begin: usize) {
        let end = begin + self.len();
        prefetch_copy(&message[end..message.len().min(end + self.len())]);
        self.copy_to(&mut message[begin..end]);
    }
}

impl<'f> Content<'f> for &'f [u8] {
    #[inline(always)]
    fn whole(self) -> Option<&'f [u8]> {
        Some(self)
    }
    #[inline(always)]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }
    #[inline(always)]
    fn copy_to(self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
}

/// Data that ends in a tail.
#[derive(Clone, Copy)]
struct InParts<'f> {
    front: &'f [u8],
    tail: Tail<'f>,
}

impl<'f> Content<'f> for InParts<'f> {
    fn whole(self) -> Option<&'f [u8]> {
        None
    }
    fn len(self) -> usize {
        self.front.len() + self.tail.len()
    }
    fn copy_to(self, out: &mut [u8]) {
        let (front, rest) = out.split_at_mut(self.front.len());
        front.copy_from_slice(self.front);
        self.tail.copy_to(rest);
    }
}

impl<C> Endpoint<C> {
    /// [`Endpoint::receive`] for a frame with a tail.
    #[inline(never)] // so that other frames have the registers
    pub(crate) fn receive_in_parts(driver: &mut impl Driver<C>, frame: &RxFrame<'_>, now_ns: u64) {
        let Some(cursor) = driver.endpoint().on_frame(frame, now_ns) else { return };
        let (rest, tail) = (cursor.rest, frame.tail);
        if let Some(packet) = parse_front(rest, cursor.data_per_packet, tail.len()) {
            if let Some(event) = driver.endpoint().land(&cursor, packet, tail) {
                driver.on_event(event);
            }
            return driver.endpoint().tx.close_writing();
        }
        let mut room = std::mem::take(&mut driver.endpoint().room);
        let header = frame.data.len() - rest.len();
        let joined = frame.join(&mut room);
        FrameCursor { rest: &joined.data[header..], ..cursor }.drive(driver);
        driver.endpoint().room = room;
    }

    /// Takes the packet that [`parse_front`] has found.
    fn land<'f>(
        &mut self,
        cursor: &FrameCursor<'f>,
        packet: Packet<'f>,
        tail: Tail<'f>,
    ) -> Option<Event<'f, C>> {
        let peer = cursor.peer;
        self.home_is(peer);
        self.open_writing();
        self.settle_round_trip();
        let (kind, event) = match packet {
            Packet::Request { session, req_num, req_type, msg_size, index, remaining_us, data } => {
                let (left, data) = (remaining_us, InParts { front: data, tail });
                let size = msg_size;
                (0, self.rx_request(peer, session, req_num, req_type, size, index, left, data))
            }
            Packet::Response { session, req_num, msg_size, index, data } => {
                let data = InParts { front: data, tail };
                (3, self.rx_response(peer, session, req_num, msg_size, index, data))
            }
            _ => (0, Err(Drop::Kind)), // `parse_front` finds no others
        };
        match event {
            Ok(event) => {
                self.stats.received(kind);
                event
            }
            Err(reason) => {
                self.stats.drop(reason);
                None
            }
        }
    }
}
