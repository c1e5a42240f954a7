//! A program for the kernel (eBPF) that sets the congestion mark CE on packets that leave a device.
//!
//! It has three instructions, so no compiler and no library is needed to build it: they are written
//! here and loaded with bpf(2). The system verifies them like any other program.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of bpf(2) and constants of its arguments, from `linux/bpf.h`.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_EGRESS: u32 = 47;
/// Sets CE if the packet is IPv4 or IPv6 and ECN-capable; returns whether it did.
const BPF_FUNC_SKB_ECN_SET_CE: i32 = 97;
const TCX_PASS: i32 = 0;

/// An instruction: code, registers, offset, constant.
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

const PROGRAM: [Instruction; 3] = [
    // Register 1 has the packet at the start of a program, and the first argument at a call.
    Instruction(0x85, 0, 0, BPF_FUNC_SKB_ECN_SET_CE), // call
    Instruction(0xb7, 0, 0, TCX_PASS),                // r0 = TCX_PASS
    Instruction(0x95, 0, 0, 0),                       // return r0
];

/// The arguments of `BPF_PROG_LOAD`, up to the last that is not zero.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    attach_type: u32,
}

/// The arguments of `BPF_LINK_CREATE` for a device.
#[repr(C)]
#[derive(Default)]
struct Attach {
    program: u32,
    device: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    _pad: u32,
    revision: u64,
}

/// The program is attached until this is dropped.
#[derive(Debug)]
pub(crate) struct Marks {
    _link: OwnedFd,
}

impl Marks {
    /// Attaches the program to a device of the calling thread's network namespace.
    pub(crate) fn attach(device: &str) -> Result<Self, String> {
        let license = c"Dual MIT/GPL";
        let mut load = Load {
            kind: BPF_PROG_TYPE_SCHED_CLS,
            count: PROGRAM.len() as u32,
            instructions: PROGRAM.as_ptr() as u64,
            license: license.as_ptr() as u64,
            attach_type: BPF_TCX_EGRESS,
            ..Load::default()
        };
        load.name[..4].copy_from_slice(b"mark");
        let program = bpf(BPF_PROG_LOAD, &load).map_err(|e| format!("BPF_PROG_LOAD: {e}"))?;
        let index = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        )
        .and_then(|socket| rustix::net::netdevice::name_to_index(socket, device))
        .map_err(|e| format!("{device}: {e}"))?;
        let attach = Attach {
            program: program.as_raw_fd() as u32,
            device: index,
            attach_type: BPF_TCX_EGRESS,
            ..Attach::default()
        };
        let link = bpf(BPF_LINK_CREATE, &attach);
        Ok(Self { _link: link.map_err(|e| format!("BPF_LINK_CREATE (Linux 6.6): {e}"))? })
    }
}

/// bpf(2) with a command that returns a descriptor.
fn bpf<T>(command: libc::c_long, arguments: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of the arguments, and the instructions and the
    // text they point to, all of which outlive the call. It writes nothing, as there is no log.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, arguments, size_of::<T>()) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned it, and nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
