//! Packets made field by field, so that each may be wrong.

/// TCP.
pub(crate) const TCP: u8 = 6;
/// UDP.
pub(crate) const UDP: u8 = 17;
/// More fragments.
pub(crate) const MORE: u16 = 0x2000;

/// An IPv4 packet.
#[derive(Clone)]
pub(crate) struct V4 {
    pub(crate) src: [u8; 4],
    pub(crate) dst: [u8; 4],
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    /// Flags and offset.
    pub(crate) fragment: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Default for V4 {
    fn default() -> Self {
        V4 {
            src: [10, 1, 0, 2],
            dst: [10, 2, 0, 3],
            ttl: 64,
            protocol: UDP,
            fragment: 0,
            options: vec![],
            data: udp(b"data of the packet"),
        }
    }
}

impl V4 {
    /// The bytes, with lengths and header checksum.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        let len = ((header_len + self.data.len()) as u16).to_be_bytes();
        let fragment = self.fragment.to_be_bytes();
        let mut packet = vec![0x40 | (header_len / 4) as u8, 0, len[0], len[1], 0xbe, 0xef];
        packet.extend([fragment[0], fragment[1], self.ttl, self.protocol, 0, 0]);
        packet.extend([self.src, self.dst].concat());
        packet.extend(&self.options);
        packet.extend(&self.data);
        fix(&mut packet);
        packet
    }

    /// The bytes with one of them changed, and the right header checksum.
    pub(crate) fn with(&self, at: usize, byte: u8) -> Vec<u8> {
        let mut packet = self.bytes();
        packet[at] = byte;
        fix(&mut packet);
        packet
    }
}

/// An IPv6 packet.
#[derive(Clone)]
pub(crate) struct V6 {
    pub(crate) src: [u16; 8],
    pub(crate) dst: [u16; 8],
    pub(crate) hop_limit: u8,
    pub(crate) next: u8,
    pub(crate) data: Vec<u8>,
}

impl Default for V6 {
    fn default() -> Self {
        V6 {
            src: [0x2001, 0xdb8, 1, 0, 0, 0, 0, 2],
            dst: [0x2001, 0xdb8, 2, 0, 0, 0, 0, 3],
            hop_limit: 64,
            next: UDP,
            data: udp(b"data of the packet"),
        }
    }
}

impl V6 {
    /// The bytes, with the payload length.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((self.data.len() as u16).to_be_bytes());
        packet.extend([self.next, self.hop_limit]);
        for word in self.src.into_iter().chain(self.dst) {
            packet.extend(word.to_be_bytes());
        }
        packet.extend(&self.data);
        packet
    }

    /// The bytes with one of them changed.
    pub(crate) fn with(&self, at: usize, byte: u8) -> Vec<u8> {
        let mut packet = self.bytes();
        packet[at] = byte;
        packet
    }
}

/// The Internet checksum of bytes (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Writes the checksum of an IPv4 header, as far as there is one.
pub(crate) fn fix(packet: &mut [u8]) {
    let len = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    if (20..=packet.len()).contains(&len) {
        packet[10..12].fill(0);
        let sum = checksum(&packet[..len]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A UDP datagram whose checksum is left to hardware.
pub(crate) fn udp(data: &[u8]) -> Vec<u8> {
    let len = ((8 + data.len()) as u16).to_be_bytes();
    [&[0x30, 0x39, 0, 53, len[0], len[1], 0x55, 0x55], data].concat()
}

/// A TCP segment.
pub(crate) fn tcp(data: &[u8]) -> Vec<u8> {
    let header = [0xc0, 1, 1, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 1, 0, 0x66, 0x66, 0, 0];
    [&header, data].concat()
}

/// An IPv6 extension header of `8 * (more + 1)` bytes, filled with padding options.
pub(crate) fn extension(next: u8, more: u8) -> Vec<u8> {
    let mut header = vec![0; 8 * (usize::from(more) + 1)];
    (header[0], header[1]) = (next, more);
    header
}

/// An IPv6 fragment header. The offset is in units of 8 bytes.
pub(crate) fn fragment_header(next: u8, offset: u16, more: bool) -> Vec<u8> {
    let field = (offset << 3 | u16::from(more)).to_be_bytes();
    vec![next, 0, field[0], field[1], 0, 0, 0, 9]
}
