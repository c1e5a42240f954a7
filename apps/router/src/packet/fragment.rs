//! Fragmentation of IPv4 packets (RFC 791 section 3.2).

use super::{Header, MORE_FRAGMENTS, OFFSET, V4_LEN, Version, checksum, options};

#[cfg(test)]
mod tests;

/// The smallest MTU of IPv4: the largest header and 8 bytes of data (RFC 791).
pub const MIN_MTU: usize = 68;
/// The largest fragment that is made, of any MTU: an Ethernet jumbo frame. It bounds the buffer.
pub const MAX_FRAGMENT: usize = 9216;

/// Cuts an IPv4 packet into fragments of at most `mtu` bytes, and of at most [`MAX_FRAGMENT`], and
/// passes each to `each`. The first has all options, the others have those to be copied. A packet
/// of at most `mtu` bytes is passed whole. The packet may itself be a fragment.
///
/// False if the packet cannot be fragmented: IPv6, "don't fragment", or an MTU below [`MIN_MTU`].
pub fn fragment(packet: &[u8], header: &Header, mtu: usize, mut each: impl FnMut(&[u8])) -> bool {
    if header.version != Version::V4 || header.dont_fragment || mtu < MIN_MTU {
        return false;
    }
    let Some(packet) = packet.get(..header.total_len as usize) else { return false };
    if packet.len() <= mtu {
        each(packet);
        return true;
    }
    let mut head_len = usize::from(header.header_len).clamp(V4_LEN, V4_LEN + options::MOST);
    let (head, data) = packet.split_at(head_len);
    let flags = u16::from_be_bytes([head[6], head[7]]);
    let mut buffer = [0; MAX_FRAGMENT];
    buffer[..head_len].copy_from_slice(head);
    let mut at = 0;
    while at < data.len() {
        let room = mtu.min(MAX_FRAGMENT) - head_len;
        let rest = &data[at..];
        let (piece, more) = match rest.get(..room & !7) {
            Some(piece) if rest.len() > room => (piece, MORE_FRAGMENTS),
            _ => (rest, 0),
        };
        let len = head_len + piece.len();
        let offset = ((flags & OFFSET) + (at / 8) as u16) & OFFSET;
        buffer[head_len..len].copy_from_slice(piece);
        write_fields(&mut buffer[..head_len], len, (flags & !OFFSET) | more | offset);
        each(&buffer[..len]);
        if at == 0 {
            let mut copied = [0; options::MOST];
            let copied_len = options::copy(&head[V4_LEN..], &mut copied);
            head_len = V4_LEN + copied_len;
            buffer[V4_LEN..head_len].copy_from_slice(&copied[..copied_len]);
        }
        at += piece.len();
    }
    true
}

/// Writes the fields of a header that fragmentation changes.
fn write_fields(header: &mut [u8], total_len: usize, flags: u16) {
    header[0] = 0x40 | (header.len() / 4) as u8;
    header[2..4].copy_from_slice(&(total_len as u16).to_be_bytes());
    header[6..8].copy_from_slice(&flags.to_be_bytes());
    header[10..12].fill(0);
    let sum = checksum::of_header(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
