//! Settings of devices that aggregate or segment packets, as `ethtool -K` sets them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::namespace::{Namespace, Unavailable};

// Commands of `include/uapi/linux/ethtool.h`.
const SET_TX_CHECKSUM: u32 = 0x17;
const SET_SCATTER_GATHER: u32 = 0x19;
const SET_TSO: u32 = 0x1f;
const SET_GSO: u32 = 0x24;
const SET_GRO: u32 = 0x2c;

/// The argument of the commands above.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// What a device is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloads {
    /// It computes transport checksums. A virtual device leaves them incomplete.
    pub checksum: bool,
    /// It takes packets longer than its MTU and segments them. A virtual device does not segment
    /// them. Needs `checksum`.
    pub segmentation: bool,
    /// It aggregates packets that it receives.
    pub aggregation: bool,
}

impl Offloads {
    /// Packets as they are on a cable.
    pub const OFF: Self = Self { checksum: false, segmentation: false, aggregation: false };

    /// Sets a device of a namespace.
    ///
    /// # Errors
    /// The device refused.
    pub fn set(self, at: &Namespace, device: &str) -> Result<(), Unavailable> {
        let settings = [
            (SET_TX_CHECKSUM, self.checksum),
            (SET_SCATTER_GATHER, self.segmentation),
            (SET_TSO, self.segmentation),
            (SET_GSO, self.segmentation),
            (SET_GRO, self.aggregation),
        ];
        let set = || {
            let _inside = at.enter()?;
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            settings.iter().try_for_each(|(command, on)| apply(&socket, device, *command, *on))
        };
        set().map_err(|error| Unavailable::Setting { what: format!("offloads of {device}"), error })
    }
}

fn apply(socket: &OwnedFd, device: &str, command: u32, on: bool) -> io::Result<()> {
    // SAFETY: all-zero is a valid request: integers, and a null pointer.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    let mut value = Value { command, data: u32::from(on) };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request ends its name with 0, and points to the value that these commands take.
    // Both live during the call. The test that counts long packets would see a wrong value.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
