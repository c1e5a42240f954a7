//! Control messages: parses those of the kernel and writes those for it.
//!
//! Works on byte slices and checks every length, so that no content of the buffer can cause a read
//! outside it or an endless loop.

use std::mem::size_of;

use libc::{c_int, cmsghdr};

/// Bytes of a control message's header.
const HDR: usize = size_of::<cmsghdr>();

/// Control messages start on multiples of this.
const ALIGN: usize = size_of::<usize>();

const _: () = assert!(HDR.is_multiple_of(ALIGN));

const fn align(n: usize) -> usize {
    n.next_multiple_of(ALIGN)
}

/// Bytes that a message with `data` bytes takes up.
pub(super) const fn space(data: usize) -> usize {
    HDR + align(data)
}

/// An aligned buffer for control messages.
#[derive(Clone)]
#[repr(C, align(8))]
pub(super) struct Buf<const N: usize>(pub(super) [u8; N]);

/// One control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Msg<'a> {
    pub(super) level: c_int,
    pub(super) kind: c_int,
    pub(super) data: &'a [u8],
}

impl Msg<'_> {
    /// The first bytes as an `int`, or the first byte when the kernel wrote only one.
    pub(super) fn int(&self) -> Option<c_int> {
        match self.data.first_chunk::<4>() {
            Some(b) => Some(c_int::from_ne_bytes(*b)),
            None => self.data.first().map(|&b| c_int::from(b)),
        }
    }

    /// The data as a time of 64-bit seconds and nanoseconds, ns; `None`: it is of another form.
    pub(super) fn time_ns(&self) -> Option<u64> {
        let (sec, nsec) = self.data.split_first_chunk::<8>()?;
        let nsec = <[u8; 8]>::try_from(nsec).ok()?;
        let sec_ns = u64::from_ne_bytes(*sec).checked_mul(1_000_000_000)?;
        sec_ns.checked_add(u64::from_ne_bytes(nsec))
    }
}

/// Walks the control messages in `buf`; ends at the first that is malformed.
pub(super) struct Walk<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Walk<'a> {
    type Item = Msg<'a>;

    fn next(&mut self) -> Option<Msg<'a>> {
        let bytes = self.0.get(..HDR)?;
        // SAFETY: `bytes` has the size of a `cmsghdr`, which is plain integers; the read may be
        // unaligned. Test: `any_bytes_are_walked` under miri.
        let hdr = unsafe { bytes.as_ptr().cast::<cmsghdr>().read_unaligned() };
        #[allow(clippy::unnecessary_cast, reason = "32 bits wide with musl")]
        let len = hdr.cmsg_len as usize;
        if len < HDR {
            self.0 = &[];
            return None;
        }
        let Some(data) = self.0.get(HDR..len) else {
            self.0 = &[];
            return None;
        };
        self.0 = self.0.get(align(len)..).unwrap_or(&[]);
        Some(Msg { level: hdr.cmsg_level, kind: hdr.cmsg_type, data })
    }
}

/// Writes a control message at `at` and returns the position of the next one.
///
/// # Panics
/// When `buf` is too small: its size is a constant of the caller.
pub(super) fn write(buf: &mut [u8], at: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
    let end = at + space(data.len());
    let room = &mut buf[at..end];
    // SAFETY: all-zero bytes are a valid `cmsghdr`, which is plain integers.
    // Test: `messages_are_parsed_as_written`.
    let mut hdr: cmsghdr = unsafe { std::mem::zeroed() };
    hdr.cmsg_len = (HDR + data.len()) as _;
    hdr.cmsg_level = level;
    hdr.cmsg_type = kind;
    room[HDR..HDR + data.len()].copy_from_slice(data);
    // SAFETY: `room` has at least HDR bytes; the write may be unaligned.
    // Test: `messages_are_parsed_as_written` under miri.
    unsafe { room.as_mut_ptr().cast::<cmsghdr>().write_unaligned(hdr) };
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_parsed_as_written() {
        let mut buf = Buf([0xa5; 96]);
        let at = write(&mut buf.0, 0, 17, 103, &1472u16.to_ne_bytes());
        assert_eq!(at, space(2));
        let end = write(&mut buf.0, at, 1, 40, &7u32.to_ne_bytes());
        let got: Vec<_> = Walk(&buf.0[..end]).collect();
        assert_eq!(got.len(), 2);
        assert_eq!((got[0].level, got[0].kind, got[0].data), (17, 103, &1472u16.to_ne_bytes()[..]));
        assert_eq!((got[1].level, got[1].kind, got[1].int()), (1, 40, Some(7)));
    }

    #[test]
    fn a_time_is_read_and_no_value_overflows() {
        let of = |data: &[u8]| Msg { level: 1, kind: 35, data }.time_ns();
        let time = |sec: i64, nsec: i64| [sec.to_ne_bytes(), nsec.to_ne_bytes()].concat();
        assert_eq!(of(&time(3, 7)), Some(3_000_000_007));
        assert_eq!((of(&time(-1, 0)), of(&time(3, -1))), (None, None));
        assert_eq!((of(&[]), of(&[0; 8]), of(&[0; 15]), of(&[0; 24])), (None, None, None, None));
    }

    #[test]
    fn sizes_agree_with_libc() {
        for n in 0..64 {
            // SAFETY: CMSG_SPACE only computes.
            assert_eq!(space(n), unsafe { libc::CMSG_SPACE(n as u32) } as usize);
        }
    }

    #[test]
    fn a_one_byte_value_is_read_as_such() {
        assert_eq!(Msg { level: 0, kind: 1, data: &[3] }.int(), Some(3));
        assert_eq!(Msg { level: 0, kind: 1, data: &[] }.int(), None);
    }

    proptest! {
        /// Neither panics, nor leaves the buffer, nor yields more messages than fit.
        #[test]
        fn any_bytes_are_walked(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let range = bytes.as_ptr_range();
            let mut count = 0;
            for msg in Walk(&bytes) {
                count += 1;
                let data = msg.data.as_ptr_range();
                prop_assert!(range.start <= data.start && data.end <= range.end);
                msg.int();
            }
            prop_assert!(count <= bytes.len() / HDR);
        }

        /// Lengths near the true one are the critical ones.
        #[test]
        fn wrong_lengths_are_walked(len in 0usize..80, cut in 0usize..64) {
            let mut buf = [0u8; 64];
            let at = write(&mut buf, 0, 1, 2, &[1; 9]);
            write(&mut buf, at, 3, 4, &[2; 4]);
            buf[..ALIGN].copy_from_slice(&len.to_ne_bytes());
            for msg in Walk(&buf[..cut]) {
                prop_assert!(msg.data.len() <= cut);
            }
        }
    }
}
