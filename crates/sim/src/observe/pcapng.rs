//! Captures of links as pcapng files, which Wireshark and tcpdump read.
//!
//! Datagrams become Ethernet frames with IPv4 and UDP headers, checksums and ECN bits as a real NIC
//! would send them; a congestion mark is shown as it was at the place of capture. A datagram with
//! flipped bits is flagged as failing the frame check; its other checksums are of the bytes as they
//! are. Each captured link is an interface with the link's name; dropped packets are on the
//! interface `drops`, with place and reason as a comment. Time is virtual, in ns from 1970-01-01
//! 00:00.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use etherparse::{EtherType, Ethernet2Header, IpEcn, IpNumber, Ipv4Header, UdpHeader};

use super::{DropReason, LinkId, Names, Place, Sink};
use crate::{MIN_PAYLOAD, Packet};

/// The captured links.
#[derive(Clone, Debug, Default)]
pub enum Links {
    /// Every link.
    #[default]
    All,
    /// These.
    Only(Vec<LinkId>),
}

impl Links {
    fn contain(&self, link: LinkId) -> bool {
        match self {
            Links::All => true,
            Links::Only(links) => links.contains(&link),
        }
    }
}

/// Settings of a capture.
#[derive(Debug)]
pub struct CaptureSettings {
    /// The file.
    pub to: Sink,
    /// Selected links. Drops are written when they happen on one of these links, and always when
    /// they happen at a host or a switch.
    pub links: Links,
}

/// Writes one capture.
#[derive(Debug)]
pub(super) struct Capture {
    settings: CaptureSettings,
    /// Numbers of the interfaces so far; the one without a link is for drops.
    interfaces: BTreeMap<Option<LinkId>, u32>,
    /// Packets that a switch has marked and not sent yet.
    marked: BTreeSet<(LinkId, u64)>,
    /// Buffered blocks.
    block: Vec<u8>,
    frame: Vec<u8>,
    /// Datagrams too large for IP.
    skipped: u64,
}

/// Limit of marks whose packets were not sent yet. It is larger than a switch's buffer in packets,
/// so that only marks of packets that are never sent fill it; it is emptied then. 3 MiB.
const MARKED: usize = 1 << 16;

impl Capture {
    pub(super) fn new(mut settings: CaptureSettings) -> Self {
        let mut block = Vec::with_capacity(2048);
        section_header(&mut block);
        settings.to.run(|out| out.write_all(&block));
        Capture {
            settings,
            interfaces: BTreeMap::new(),
            marked: BTreeSet::new(),
            block,
            frame: Vec::new(),
            skipped: 0,
        }
    }

    pub(super) fn marked(&mut self, link: LinkId, p: &Packet) {
        if self.settings.links.contain(link) {
            if self.marked.len() >= MARKED {
                self.marked.clear();
            }
            self.marked.insert((link, p.id));
        }
    }

    pub(super) fn sent(&mut self, names: &Names, now_ns: u64, link: LinkId, p: &Packet) {
        if !self.settings.links.contain(link) {
            return;
        }
        let marked = !self.marked.is_empty() && self.marked.remove(&(link, p.id));
        let comment = marked.then(|| format!("marked before {}", names.link(link)));
        self.packet(names, now_ns, Some(link), p, comment);
    }

    pub(super) fn dropped(
        &mut self,
        names: &Names,
        now_ns: u64,
        at: &Place,
        why: DropReason,
        p: &Packet,
    ) {
        if let Place::Link(link) = *at
            && !self.settings.links.contain(link)
        {
            return;
        }
        let comment = format!("dropped at {}: {}", names.place(at), why.name());
        self.packet(names, now_ns, None, p, Some(comment));
    }

    fn packet(
        &mut self,
        names: &Names,
        now_ns: u64,
        on: Option<LinkId>,
        p: &Packet,
        comment: Option<String>,
    ) {
        self.block.clear();
        let next = self.interfaces.len() as u32;
        let interface = *self.interfaces.entry(on).or_insert_with(|| {
            let name = on.map_or_else(|| "drops".into(), |link| names.link(link));
            interface_description(&mut self.block, &name);
            next
        });
        if ethernet_frame(&mut self.frame, names, p) {
            let about = About { interface, now_ns, bad_check: p.corrupt, comment };
            enhanced_packet(&mut self.block, &about, &self.frame);
        } else {
            self.skipped += 1;
        }
        self.settings.to.run(|out| out.write_all(&self.block));
    }

    /// Flushes the buffer; returns the first error.
    pub(super) fn flush(&mut self) -> Option<String> {
        let skipped = (self.skipped > 0)
            .then(|| format!("{} datagrams too large for IP are not in the capture", self.skipped));
        self.settings.to.flush().or(skipped)
    }
}

// ---- frames ---------------------------------------------------------------------------------

/// Addresses of this form are locally administered.
fn mac(of: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = of.octets();
    [2, 0, a, b, c, d]
}

/// The datagram as on the wire, without preamble and frame check sequence; `false` when it is too
/// large for IP.
fn ethernet_frame(out: &mut Vec<u8>, names: &Names, p: &Packet) -> bool {
    let dst = names.addr(p.dst);
    let src = match p.src_addr.to_socket().map(|s| s.ip()) {
        Some(IpAddr::V4(ip)) => ip,
        _ => names.addr(p.src),
    };
    let len = p.bytes.len() + UdpHeader::LEN;
    let (Ok(len), Ok(ecn)) = (u16::try_from(len), IpEcn::try_new(p.ecn as u8)) else {
        return false;
    };
    let Ok(mut ip) = Ipv4Header::new(len, 64, IpNumber::UDP, src.octets(), dst.octets()) else {
        return false;
    };
    ip.ecn = ecn;
    ip.identification = p.id as u16;
    ip.dont_fragment = true;
    ip.header_checksum = ip.calc_header_checksum();
    let (from, to) = (p.src_addr.port as u16, p.dst_port as u16);
    let Ok(udp) = UdpHeader::with_ipv4_checksum(from, to, &ip, &p.bytes) else { return false };
    let ethernet =
        Ethernet2Header { source: mac(src), destination: mac(dst), ether_type: EtherType::IPV4 };
    out.clear();
    out.extend_from_slice(&ethernet.to_bytes());
    out.extend_from_slice(&ip.to_bytes());
    out.extend_from_slice(&udp.to_bytes());
    out.extend_from_slice(&p.bytes);
    let padding = (MIN_PAYLOAD as usize).saturating_sub(p.bytes.len());
    out.resize(out.len() + padding, 0);
    true
}

// ---- blocks (draft-ietf-opsawg-pcapng) ----------------------------------------------------------

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
/// Direction "outbound"; and the link-layer error "CRC".
const FLAG_OUTBOUND: u32 = 2;
const FLAG_CRC_ERROR: u32 = 1 << 24;

/// A block with the contents that `body` appends: type and length before, length after.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
}

/// Bytes, and zeros up to a multiple of four.
fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().wrapping_neg() % 4, 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    padded(out, value);
}

fn section_header(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes()); // byte order
        out.extend_from_slice(&1u16.to_le_bytes()); // version 1.0
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&u64::MAX.to_le_bytes()); // length not stated
        option(out, SHB_USERAPPL, concat!("courser-sim ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(out, OPT_END, &[]);
    });
}

fn interface_description(out: &mut Vec<u8>, name: &str) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        out.extend_from_slice(&[0; 6]); // reserved; packets are whole
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, &[]);
    });
}

struct About {
    interface: u32,
    now_ns: u64,
    bad_check: bool,
    comment: Option<String>,
}

fn enhanced_packet(out: &mut Vec<u8>, about: &About, frame: &[u8]) {
    block(out, ENHANCED_PACKET, |out| {
        let len = frame.len() as u32;
        let (high, low) = ((about.now_ns >> 32) as u32, about.now_ns as u32);
        for word in [about.interface, high, low, len, len] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        padded(out, frame);
        if let Some(comment) = &about.comment {
            option(out, OPT_COMMENT, comment.as_bytes());
        }
        let flags = FLAG_OUTBOUND | if about.bad_check { FLAG_CRC_ERROR } else { 0 };
        option(out, EPB_FLAGS, &flags.to_le_bytes());
        option(out, OPT_END, &[]);
    });
}

#[cfg(test)]
mod tests;
