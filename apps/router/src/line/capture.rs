//! Captures, as tcpdump and Wireshark write and read them: packets from a pcap or pcapng file, and
//! packets that leave to a pcap file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use courser_link::socket::VLAN_ID;
use pcap_file::pcap::{PcapHeader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::{Block, PcapNgReadError, PcapNgReader};
use pcap_file::{DataLink, Endianness};

use super::memory::{MemoryIntake, Packets};
use super::{Intake, Outlet};
use crate::counters::PacketDrop;
use crate::route::PortId;

/// Bytes of a record, at most. Programs for captures use 262,144.
const RECORD: usize = 1 << 19;
/// Bytes and packets of a capture, at most, since it is kept in memory.
const CAPTURE: usize = 1 << 30;
const PACKETS: usize = 1 << 24;
/// Bytes of a packet written, at most.
const LARGEST_PACKET: u32 = 65_535;
/// Bytes of the header of a pcap file, and of each of its records.
const HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// The bits of a pcap file's link type that are the type itself.
const LINK_TYPE: u32 = 0x03ff_ffff;
/// The device type of netlink messages, which have no Ethernet type: 824.
const NETLINK: [u8; 2] = [0x03, 0x38];
/// The first bytes of a pcapng file: a section header.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Why a capture cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened, read or written.
    #[error("{path}: {error}; check the file's name, permissions and disk")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It is no capture, or damaged.
    #[error(
        "{path}: record {record} is not valid: {reason}; use a complete pcap or pcapng file with \
         records of at most {RECORD} bytes"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Number of the record, from 1; 0 is the file's header.
        record: u64,
        /// What is wrong.
        reason: String,
    },
    /// Frames of a link that has no Ethernet or IP header.
    #[error(
        "{path}: packets of the link type {link} are not supported; capture at an Ethernet interface, \
         or with `tcpdump -i any`"
    )]
    LinkType {
        /// The file.
        path: PathBuf,
        /// Number of the link type.
        link: u32,
    },
    /// Larger than fits in memory.
    #[error(
        "{0}: more than {PACKETS} packets or {CAPTURE} bytes; take a part of it with \
         `editcap -r IN OUT 1-1000000`"
    )]
    TooLarge(PathBuf),
}

/// The packets of a capture, as fast as they are taken. Their times are ignored.
#[derive(Clone, Debug)]
pub struct CaptureIntake {
    packets: MemoryIntake,
    skipped: u64,
    tagged: u64,
    warnings: Vec<String>,
}

impl CaptureIntake {
    /// Reads a file. Its packets arrive at a port, that often; without an end for `None`.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn open(path: &Path, port: PortId, rounds: Option<u64>) -> Result<Self, CaptureError> {
        let file = |error| CaptureError::File { path: path.to_owned(), error };
        let mut input = BufReader::new(File::open(path).map_err(file)?);
        let mut start = Vec::new();
        input.by_ref().take(4).read_to_end(&mut start).map_err(file)?;
        input.rewind().map_err(file)?;
        let mut reading = Reading {
            path,
            port,
            packets: Packets::default(),
            record: 0,
            skipped: 0,
            tagged: 0,
            short: 0,
            is_cut: false,
        };
        if start == PCAPNG { reading.pcapng(input) } else { reading.pcap(input) }?;
        let (skipped, tagged, warnings) = (reading.skipped, reading.tagged, reading.warnings());
        Ok(Self { packets: MemoryIntake::of(reading.packets, rounds), skipped, tagged, warnings })
    }

    /// Packets of the capture.
    pub fn len(&self) -> usize {
        self.packets.packets().len()
    }

    /// Whether the capture has no packets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frames of the file without an IP packet, for example ARP.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Frames of the file with the tag of a VLAN, which a port does not take.
    pub fn tagged(&self) -> u64 {
        self.tagged
    }

    /// Names what is missing in the file, for its user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether all packets have been passed.
    pub fn is_done(&self) -> bool {
        self.packets.is_done()
    }
}

impl Intake for CaptureIntake {
    fn burst_ahead(
        &mut self,
        ahead: &mut dyn FnMut(&[u8]),
        each: &mut dyn FnMut(PortId, &mut [u8]),
    ) -> usize {
        self.packets.burst_ahead(ahead, each)
    }
}

/// A file being read.
struct Reading<'a> {
    path: &'a Path,
    port: PortId,
    packets: Packets,
    record: u64,
    skipped: u64,
    tagged: u64,
    /// Packets of which the capture has the beginning only.
    short: u64,
    /// The file ends within the record.
    is_cut: bool,
}

impl Reading<'_> {
    fn pcap(&mut self, mut input: impl Read) -> Result<(), CaptureError> {
        let mut bytes = Vec::new();
        self.fill(&mut input, &mut bytes, HEADER)?;
        let header = PcapHeader::from_slice(&bytes);
        let header = header.map_err(|error| self.malformed(error.to_string()))?.1;
        // The other bits state how many bytes of a checksum follow each frame.
        let link = DataLink::from(u32::from(header.datalink) & LINK_TYPE);
        let number = match header.endianness {
            Endianness::Big => u32::from_be_bytes,
            Endianness::Little => u32::from_le_bytes,
        };
        loop {
            self.record += 1;
            self.fill(&mut input, &mut bytes, RECORD_HEADER)?;
            // Seconds, their fraction, bytes in the file, bytes of the frame.
            let (lengths, _) = bytes.get(8..).unwrap_or_default().as_chunks::<4>();
            let &[taken, whole] = lengths else {
                self.is_cut = !bytes.is_empty();
                return Ok(());
            };
            let (taken, whole) = (number(taken) as usize, number(whole) as usize);
            if taken > RECORD {
                return Err(self.malformed(format!("a length of {taken} bytes")));
            }
            self.fill(&mut input, &mut bytes, taken)?;
            self.is_cut = bytes.len() < taken;
            if self.is_cut {
                return Ok(());
            }
            self.frame(link, &bytes, whole)?;
        }
    }

    /// Reads bytes, fewer at the end of the file.
    fn fill(
        &self,
        input: &mut impl Read,
        bytes: &mut Vec<u8>,
        len: usize,
    ) -> Result<(), CaptureError> {
        bytes.clear();
        let read = input.take(len as u64).read_to_end(bytes);
        read.map(drop).map_err(|error| CaptureError::File { path: self.path.into(), error })
    }

    fn pcapng(&mut self, input: impl Read) -> Result<(), CaptureError> {
        let mut has_ended = false;
        let input = Ends { input, has_ended: &mut has_ended };
        let result = self.blocks(input);
        match result {
            Err(PcapNgReadError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                if has_ended && self.record > 0 {
                    self.is_cut = true;
                    return Ok(());
                }
                Err(self.malformed("the record is incomplete or too large".to_owned()))
            }
            Err(PcapNgReadError::Io(error)) => {
                Err(CaptureError::File { path: self.path.into(), error })
            }
            Err(PcapNgReadError::InvalidFormat(error)) => Err(self.malformed(error.to_string())),
            Err(other) => Err(self.malformed(other.to_string())),
            Ok(result) => result,
        }
    }

    fn blocks(&mut self, input: impl Read) -> Result<Result<(), CaptureError>, PcapNgReadError> {
        let mut reader = PcapNgReader::with_capacity(input, RECORD)?;
        loop {
            self.record += 1;
            let Some(block) = reader.next_block() else { return Ok(Ok(())) };
            let (block, state) = block?;
            let (interface, data, whole) = match &block {
                Block::EnhancedPacket(packet) => {
                    (packet.interface_id as usize, &packet.data, packet.original_len)
                }
                Block::SimplePacket(packet) => (0, &packet.data, packet.original_len),
                Block::Packet(packet) => {
                    (usize::from(packet.interface_id), &packet.data, packet.original_len)
                }
                _ => continue,
            };
            let Some(interface) = state.interfaces().get(interface) else {
                return Ok(Err(self.malformed(format!("there is no interface {interface}"))));
            };
            if let Err(error) = self.frame(interface.linktype, data, whole as usize) {
                return Ok(Err(error));
            }
        }
    }

    /// Takes the IP packet of a frame, which had this length before it was cut for the capture.
    fn frame(&mut self, link: DataLink, frame: &[u8], whole: usize) -> Result<(), CaptureError> {
        let packet = match Framed::of(link, frame) {
            Some(Framed::Packet(packet)) => packet,
            Some(Framed::Tagged) => {
                self.tagged += 1;
                return Ok(());
            }
            Some(Framed::Other) => {
                self.skipped += 1;
                return Ok(());
            }
            None => {
                return Err(CaptureError::LinkType { path: self.path.into(), link: link.into() });
            }
        };
        if self.packets.bytes() + packet.len() > CAPTURE || self.packets.len() == PACKETS {
            return Err(CaptureError::TooLarge(self.path.into()));
        }
        self.short += u64::from(frame.len() < whole);
        self.packets.push(self.port, packet);
        Ok(())
    }

    fn warnings(&self) -> Vec<String> {
        let path = self.path.display();
        let cut = self.is_cut.then(|| {
            let record = self.record;
            format!("{path}: the file ends within record {record}, which is left out")
        });
        let short = (self.short > 0).then(|| {
            let short = self.short;
            format!(
                "{path}: of {short} packets the capture has the beginning only, so that nodes drop \
                 them; capture with `tcpdump -s 0`"
            )
        });
        cut.into_iter().chain(short).collect()
    }

    fn malformed(&self, reason: String) -> CaptureError {
        CaptureError::Malformed { path: self.path.into(), record: self.record, reason }
    }
}

/// Notes that the end of a file was reached.
struct Ends<'a, R> {
    input: R,
    has_ended: &'a mut bool,
}

impl<R: Read> Read for Ends<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        *self.has_ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

/// The content of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Framed<'a> {
    /// An IP packet, and bytes that may follow it.
    Packet(&'a [u8]),
    /// A frame of a VLAN.
    Tagged,
    /// Another protocol, or no complete header.
    Other,
}

impl Framed<'_> {
    /// The content of a frame of this kind of link. `None`: it is not supported.
    fn of(link: DataLink, frame: &[u8]) -> Option<Framed<'_>> {
        match link {
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Some(Framed::Packet(frame)),
            DataLink::ETHERNET => Some(content(frame, 12, 14)),
            // "Cooked" frames of `tcpdump -i any`. The type of device comes before their protocol.
            DataLink::LINUX_SLL => Some(match frame.get(2..4) {
                Some(device) if device == NETLINK => Framed::Other,
                _ => content(frame, 14, 16),
            }),
            DataLink::LINUX_SLL2 => Some(match frame.get(8..10) {
                Some(device) if device == NETLINK => Framed::Other,
                _ => content(frame, 0, 20),
            }),
            _ => None,
        }
    }
}

/// The content of a frame with its type at one place, and the rest from another one on. A tag
/// without a VLAN (IEEE 802.1Q priority) is skipped, as the system does.
fn content(frame: &[u8], mut kind: usize, mut rest: usize) -> Framed<'_> {
    let number = |at: usize| frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    loop {
        let (Some(found), Some(packet)) = (number(kind), frame.get(rest..)) else {
            return Framed::Other;
        };
        match (i32::from(found), number(rest)) {
            (libc::ETH_P_IP | libc::ETH_P_IPV6, _) => return Framed::Packet(packet),
            (libc::ETH_P_8021Q | libc::ETH_P_8021AD, Some(tag)) if tag & VLAN_ID == 0 => {
                (kind, rest) = (rest + 2, rest + 4);
            }
            (libc::ETH_P_8021Q | libc::ETH_P_8021AD, Some(_)) => return Framed::Tagged,
            _ => return Framed::Other,
        }
    }
}

/// Writes packets that leave to pcap files, one per port.
pub struct CaptureOutlet {
    ports: Vec<(PathBuf, PcapWriter<BufWriter<File>>)>,
    time: Duration,
    error: Option<CaptureError>,
}

impl CaptureOutlet {
    /// Creates a file for each port, in the order of ports.
    ///
    /// # Errors
    /// [`CaptureError::File`].
    pub fn create(paths: &[&Path]) -> Result<Self, CaptureError> {
        let mut ports = Vec::new();
        for path in paths {
            let failed = |error| CaptureError::File { path: (*path).to_owned(), error };
            let file = File::create(path).map_err(failed)?;
            let header = PcapHeader {
                datalink: DataLink::RAW,
                snaplen: LARGEST_PACKET,
                ..Default::default()
            };
            let writer = PcapWriter::with_header(BufWriter::new(file), header)
                .map_err(|error| failed(io::Error::other(error)))?;
            ports.push(((*path).to_owned(), writer));
        }
        Ok(Self { ports, time: Duration::ZERO, error: None })
    }

    /// Sets the time of the packets that follow, since 1970.
    pub fn set_time(&mut self, time: Duration) {
        self.time = time;
    }

    /// Completes the files.
    ///
    /// # Errors
    /// The first error of writing. Packets after it were dropped.
    pub fn finish(mut self) -> Result<(), CaptureError> {
        self.flush();
        self.error.map_or(Ok(()), Err)
    }
}

impl Outlet for CaptureOutlet {
    /// Drops packets after an error of writing, as [`PacketDrop::LineFull`].
    fn send(&mut self, port: PortId, _: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        let Some((path, writer)) = self.ports.get_mut(usize::from(port)) else {
            return Err(PacketDrop::PortDown);
        };
        if self.error.is_some() {
            return Err(PacketDrop::LineFull);
        }
        if packet.len() > LARGEST_PACKET as usize {
            return Err(PacketDrop::TooBig);
        }
        let record = RawPcapPacket {
            ts_sec: self.time.as_secs() as u32,
            ts_frac: self.time.subsec_micros(),
            incl_len: packet.len() as u32,
            orig_len: packet.len() as u32,
            data: packet.into(),
        };
        if let Err(error) = writer.write_raw_packet(&record) {
            let error = io::Error::other(error);
            self.error = Some(CaptureError::File { path: path.clone(), error });
            return Err(PacketDrop::LineFull);
        }
        Ok(())
    }

    fn flush(&mut self) {
        for (path, writer) in &mut self.ports {
            if let Err(error) = writer.flush() {
                let error =
                    CaptureError::File { path: path.clone(), error: io::Error::other(error) };
                self.error.get_or_insert(error);
            }
        }
    }

    fn is_up(&self, port: PortId) -> bool {
        usize::from(port) < self.ports.len()
    }
}

impl std::fmt::Debug for CaptureOutlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<&PathBuf> = self.ports.iter().map(|(path, _)| path).collect();
        f.debug_struct("CaptureOutlet").field("paths", &paths).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
