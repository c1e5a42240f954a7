//! Captures, as tcpdump and Wireshark write and read them: packets from a pcap or pcapng file, and
//! packets that leave to a pcap file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapReadError, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::{Block, PcapNgReadError, PcapNgReader};

use super::memory::{MemoryIntake, Packets};
use super::{Intake, Outlet};
use crate::counters::Drop;
use crate::route::PortId;

/// Bytes of a record, at most. Programs for captures use 262,144.
const RECORD: usize = 1 << 19;
/// Bytes and packets of a capture, at most, since it is kept in memory.
const CAPTURE: usize = 1 << 30;
const PACKETS: usize = 1 << 24;
/// Bytes of a packet written, at most.
const LARGEST_PACKET: u32 = 65_535;
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
    /// Frames of a link that is neither Ethernet nor IP.
    #[error(
        "{path}: packets of the link type {link} are not supported; capture at an Ethernet interface"
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
        let mut reading =
            Reading { path, port, packets: Packets::default(), record: 0, skipped: 0 };
        if start == PCAPNG { reading.pcapng(input) } else { reading.pcap(input) }?;
        let skipped = reading.skipped;
        Ok(Self { packets: MemoryIntake::of(reading.packets, rounds), skipped })
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
}

impl Reading<'_> {
    fn pcap(&mut self, input: impl Read) -> Result<(), CaptureError> {
        let mut reader =
            PcapReader::with_capacity(input, RECORD).map_err(|error| self.pcap_error(error))?;
        let link = reader.header().datalink;
        loop {
            self.record += 1;
            match reader.next_raw_packet() {
                None => return Ok(()),
                Some(Ok(packet)) => self.frame(link, &packet.data)?,
                Some(Err(error)) => return Err(self.pcap_error(error)),
            }
        }
    }

    fn pcapng(&mut self, input: impl Read) -> Result<(), CaptureError> {
        let mut reader =
            PcapNgReader::with_capacity(input, RECORD).map_err(|error| self.pcapng_error(error))?;
        loop {
            self.record += 1;
            let Some(block) = reader.next_block() else { return Ok(()) };
            let (block, state) = block.map_err(|error| self.pcapng_error(error))?;
            let (interface, data) = match &block {
                Block::EnhancedPacket(packet) => (packet.interface_id as usize, &packet.data),
                Block::SimplePacket(packet) => (0, &packet.data),
                Block::Packet(packet) => (usize::from(packet.interface_id), &packet.data),
                _ => continue,
            };
            let Some(interface) = state.interfaces().get(interface) else {
                return Err(self.malformed(format!("there is no interface {interface}")));
            };
            self.frame(interface.linktype, data)?;
        }
    }

    /// Takes the IP packet of a frame.
    fn frame(&mut self, link: DataLink, frame: &[u8]) -> Result<(), CaptureError> {
        let packet = match link {
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => frame,
            DataLink::ETHERNET => match ip_of(frame) {
                Some(packet) => packet,
                None => {
                    self.skipped += 1;
                    return Ok(());
                }
            },
            other => {
                return Err(CaptureError::LinkType { path: self.path.into(), link: other.into() });
            }
        };
        if self.packets.bytes() + packet.len() > CAPTURE || self.packets.len() == PACKETS {
            return Err(CaptureError::TooLarge(self.path.into()));
        }
        self.packets.push(self.port, packet);
        Ok(())
    }

    fn pcap_error(&self, error: PcapReadError) -> CaptureError {
        match error {
            PcapReadError::Io(error) => self.io_error(error),
            PcapReadError::Validation(error) => self.malformed(error.to_string()),
        }
    }

    fn pcapng_error(&self, error: PcapNgReadError) -> CaptureError {
        match error {
            PcapNgReadError::Io(error) => self.io_error(error),
            PcapNgReadError::InvalidFormat(error) => self.malformed(error.to_string()),
            other => self.malformed(other.to_string()),
        }
    }

    /// A record that ends after the file does, or is larger than the buffer, is damaged.
    fn io_error(&self, error: io::Error) -> CaptureError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return self.malformed("the record is incomplete or too large".to_owned());
        }
        CaptureError::File { path: self.path.into(), error }
    }

    fn malformed(&self, reason: String) -> CaptureError {
        CaptureError::Malformed { path: self.path.into(), record: self.record, reason }
    }
}

/// The IP packet of an Ethernet frame without a VLAN tag.
fn ip_of(frame: &[u8]) -> Option<&[u8]> {
    let kind = i32::from(u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]));
    matches!(kind, libc::ETH_P_IP | libc::ETH_P_IPV6).then_some(&frame[14..])
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
    /// Drops packets after an error of writing, as [`Drop::LineFull`].
    fn send(&mut self, port: PortId, _: IpAddr, packet: &[u8]) -> Result<(), Drop> {
        let Some((path, writer)) = self.ports.get_mut(usize::from(port)) else {
            return Err(Drop::PortDown);
        };
        if self.error.is_some() {
            return Err(Drop::LineFull);
        }
        if packet.len() > LARGEST_PACKET as usize {
            return Err(Drop::TooBig);
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
            return Err(Drop::LineFull);
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
