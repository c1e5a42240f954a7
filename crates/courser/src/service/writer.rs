//! Encodes into message memory without knowing the length first.

use courser_buf::{AllocError, Arena, MsgBuf};

use super::codec::Encode;
use crate::error::service::EncodeError;

/// Bytes of replies that are staged on the stack, from where they are copied into the buffer of the
/// response. Clearing and copying more would cost more than it saves.
pub(crate) const ROOM: usize = 128;
/// The first buffer of a request: the smallest one of arenas.
const SMALL: usize = 256;
/// The first buffer of a message that does not fit its room: about a packet.
const FIRST: usize = 1024;
/// Capacity from which a buffer grows by a quarter. It doubles before.
const LARGE: usize = 64 << 10;

/// Where messages are allocated.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{Memory, Postcard, encode};
/// use courser::{AllocError, Client, MsgBuf};
///
/// /// Messages in the memory of a client.
/// struct OfClient(Client);
///
/// impl Memory for OfClient {
///     fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
///         self.0.alloc_recycled(len)
///     }
///     fn limit(&self) -> usize {
///         8 << 20
///     }
/// }
///
/// let memory = OfClient(Client::connect(&uri).await?);
/// let message = encode::<Postcard, _>(&(1_u8, "text"), &memory)?;
/// assert_eq!(&message[..], b"\x01\x04text");
/// # Ok(()) }) }
/// ```
pub trait Memory {
    /// A message of `len` bytes that have the contents of earlier messages.
    ///
    /// # Errors
    /// The memory limit is reached.
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError>;

    /// The largest message that can be sent.
    fn limit(&self) -> usize {
        usize::MAX
    }
}

impl Memory for Arena {
    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        Arena::alloc(self, len)
    }
}

/// A message could not be written. The [`Writer`] has the reason, and the encoding has failed even
/// if the codec drops this.
///
/// ```
/// use courser::service::{WriteError, Writer};
///
/// /// A function of a codec passes the error on: the writer has the reason.
/// fn write_pair(out: &mut Writer<'_>, a: u8, b: u8) -> Result<(), WriteError> {
///     out.push(a)?;
///     out.push(b)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteError;

/// A message that grows while a codec writes it.
///
/// Small requests are written in place, small responses (up to 128 bytes) on the stack. Longer
/// messages move to a buffer of 1 KiB, which doubles when it is full, and from 64 KiB on grows by a
/// quarter.
///
/// ```
/// use courser::service::{Codec, Encode, EncodeError, Writer};
///
/// /// Texts with a byte for their length.
/// struct Short;
///
/// impl Codec for Short {
///     const NAME: &'static str = "short";
/// }
///
/// impl Encode<String> for Short {
///     fn encode(value: &String, out: &mut Writer<'_>) -> Result<(), EncodeError> {
///         let too_long = |_| EncodeError::Codec { codec: Short::NAME, detail: "over 255 bytes".into() };
///         let len = u8::try_from(value.len()).map_err(too_long)?;
///         // The writer has the reason, if there is no room.
///         let _ = out.push(len).and_then(|()| out.extend(value.as_bytes()));
///         Ok(())
///     }
/// }
/// ```
pub struct Writer<'a> {
    room: &'a mut [u8],
    /// Bytes in `room`.
    staged: usize,
    /// The bytes before those in `room`.
    spilled: Option<MsgBuf>,
    memory: &'a dyn Memory,
    failure: Option<EncodeError>,
}

/// A complete message.
pub(crate) enum Written {
    /// The first bytes of the room.
    Small(usize),
    Large(MsgBuf),
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("position", &self.position()).finish_non_exhaustive()
    }
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(room: &'a mut [u8], memory: &'a dyn Memory) -> Self {
        Writer { room, staged: 0, spilled: None, memory, failure: None }
    }

    /// Appends to a message.
    pub(crate) fn onto(message: MsgBuf, room: &'a mut [u8], memory: &'a dyn Memory) -> Self {
        Writer { room, staged: 0, spilled: Some(message), memory, failure: None }
    }

    /// The number of bytes written so far.
    #[inline]
    pub fn position(&self) -> usize {
        self.staged + self.spilled.as_ref().map_or(0, MsgBuf::len)
    }

    /// Appends a byte.
    ///
    /// # Errors
    /// No memory, or the message is too large.
    #[inline]
    pub fn push(&mut self, byte: u8) -> Result<(), WriteError> {
        match self.room.get_mut(self.staged) {
            Some(place) => {
                *place = byte;
                self.staged += 1;
                Ok(())
            }
            None => self.extend_slow(&[byte]),
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// No memory, or the message is too large.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let end = self.staged.wrapping_add(bytes.len());
        match self.room.get_mut(self.staged..end) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.staged = end;
                Ok(())
            }
            None => self.extend_slow(bytes),
        }
    }

    /// Appends bytes for which the room is full.
    fn extend_slow(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.flush()?;
        if bytes.len() <= self.room.len() / 2 {
            self.room[..bytes.len()].copy_from_slice(bytes);
            self.staged = bytes.len();
            return Ok(());
        }
        self.reserve(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Appends `len` bytes for the caller to overwrite, with the contents of earlier messages.
    ///
    /// # Errors
    /// No memory, or the message is too large.
    pub fn reserve(&mut self, len: usize) -> Result<&mut [u8], WriteError> {
        if len <= self.room.len() - self.staged {
            let begin = self.staged;
            self.staged += len;
            return Ok(&mut self.room[begin..begin + len]);
        }
        self.flush()?;
        let begin = self.lengthen(len)?;
        let spilled = self.spilled.as_mut().and_then(MsgBuf::get_mut);
        spilled.and_then(|bytes| bytes.get_mut(begin..)).ok_or(WriteError)
    }

    /// Moves the staged bytes to the message.
    fn flush(&mut self) -> Result<(), WriteError> {
        let staged = self.staged;
        let begin = self.lengthen(staged)?;
        if let Some(bytes) = self.spilled.as_mut().and_then(MsgBuf::get_mut) {
            bytes[begin..].copy_from_slice(&self.room[..staged]);
        }
        self.staged = 0;
        Ok(())
    }

    /// Lengthens the message by `more` bytes, and returns where they begin.
    fn lengthen(&mut self, more: usize) -> Result<usize, WriteError> {
        if self.failure.is_some() {
            return Err(WriteError);
        }
        let (begin, capacity) =
            self.spilled.as_ref().map_or((0, 0), |message| (message.len(), message.capacity()));
        let limit = self.memory.limit();
        let end = match begin.checked_add(more) {
            Some(end) if end <= limit => end,
            _ => return Err(self.fail(EncodeError::TooLarge { limit })),
        };
        if end > capacity || self.spilled.is_none() {
            let step = if capacity < LARGE { capacity } else { capacity / 4 };
            let target = end.max(capacity + step).max(FIRST).min(limit);
            let mut longer = match self.memory.alloc(target) {
                Ok(longer) => longer,
                Err(e) => return Err(self.fail(e.into())),
            };
            longer.truncate(end);
            if let Some(message) = self.spilled.take() {
                longer[..begin].copy_from_slice(&message);
            }
            self.spilled = Some(longer);
        } else if let Some(message) = &mut self.spilled
            && message.set_len_recycled(end).is_err()
        {
            return Err(self.fail(EncodeError::TooLarge { limit: capacity }));
        }
        Ok(begin)
    }

    fn fail(&mut self, why: EncodeError) -> WriteError {
        self.failure.get_or_insert(why);
        WriteError
    }

    /// The reason of a failed write, if any; a codec's own error otherwise.
    pub(crate) fn reason(&mut self, codec: EncodeError) -> EncodeError {
        self.failure.take().unwrap_or(codec)
    }

    /// The length of a message that fits its room.
    ///
    /// # Errors
    /// It does not fit, or writing has failed.
    #[inline]
    pub(crate) fn small(self) -> Result<usize, Self> {
        if self.spilled.is_some() || self.failure.is_some() {
            return Err(self);
        }
        let staged = self.staged;
        // It has nothing to drop. The call of its drop would cost 15 instructions.
        std::mem::forget(self);
        Ok(staged)
    }

    /// The complete message.
    pub(crate) fn finish(mut self) -> Result<Written, EncodeError> {
        if self.failure.is_none() {
            if self.spilled.is_none() {
                return Ok(Written::Small(self.staged));
            }
            if self.flush().is_ok()
                && let Some(message) = self.spilled.take()
            {
                return Ok(Written::Large(message));
            }
        }
        Err(self.failure.unwrap_or(EncodeError::TooLarge { limit: 0 }))
    }

    /// The complete message of a writer made by [`Writer::onto`], or the error and what was
    /// written.
    pub(crate) fn finish_large(mut self) -> Result<MsgBuf, (EncodeError, Option<MsgBuf>)> {
        let flushed = self.failure.is_none() && self.flush().is_ok();
        match self.spilled.take() {
            Some(message) if flushed => Ok(message),
            rest => Err((self.failure.unwrap_or(EncodeError::TooLarge { limit: 0 }), rest)),
        }
    }

    /// The message as far as it has moved out of the room, after an error.
    pub(crate) fn abandon(self) -> Option<MsgBuf> {
        self.spilled
    }
}

/// Encodes a message by `write`.
#[inline]
pub(crate) fn message(
    memory: &dyn Memory,
    write: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<MsgBuf, EncodeError> {
    let mut message = memory.alloc(SMALL)?;
    let mut writer = Writer::new(&mut message, memory);
    write(&mut writer)?;
    let larger = match writer.small() {
        Ok(len) => {
            message.truncate(len);
            return Ok(message);
        }
        Err(writer) => writer.finish(),
    };
    match larger? {
        Written::Small(len) => {
            message.truncate(len);
            Ok(message)
        }
        Written::Large(larger) => Ok(larger),
    }
}

/// Encodes a value into a message of its own, as requests and responses are.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{Memory, Postcard, encode};
/// # struct OfClient(courser::Client);
/// # impl Memory for OfClient {
/// #     fn alloc(&self, len: usize) -> Result<courser::MsgBuf, courser::AllocError> { self.0.alloc(len) }
/// #     fn limit(&self) -> usize { 8 << 20 }
/// # }
///
/// # let memory = OfClient(courser::Client::connect(&uri).await?);
/// // `memory` is a `Memory`, such as that of an endpoint.
/// assert_eq!(&encode::<Postcard, _>(&300_u32, &memory)?[..], [0xac, 0x02]);
/// # Ok(()) }) }
/// ```
///
/// # Errors
/// The codec refuses the value, or there is no memory.
pub fn encode<K: Encode<T>, T: ?Sized>(
    value: &T,
    memory: &dyn Memory,
) -> Result<MsgBuf, EncodeError> {
    message(memory, |out| K::encode(value, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Limited(Arena, usize);

    impl Memory for Limited {
        fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
            self.0.alloc(len)
        }
        fn limit(&self) -> usize {
            self.1
        }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7) as u8).collect()
    }

    #[test]
    fn a_message_has_the_bytes_that_were_written_in_any_pieces() {
        let arena = Arena::heap();
        for len in [0, 1, 255, 256, 257, 1024, 1025, 5000, 300_000] {
            let all = pattern(len);
            for piece in [1, 3, 255, 256, 257, 4096] {
                let written = message(&arena, |w| {
                    for (i, bytes) in all.chunks(piece).enumerate() {
                        assert_eq!(w.position(), i * piece);
                        match i % 3 {
                            0 => w.extend(bytes).unwrap(),
                            1 => w.reserve(bytes.len()).unwrap().copy_from_slice(bytes),
                            _ => bytes.iter().for_each(|b| w.push(*b).unwrap()),
                        }
                    }
                    Ok(())
                });
                assert_eq!(&written.unwrap()[..], &all[..], "{len} bytes in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_message_larger_than_the_limit_is_refused_without_its_memory() {
        let memory = Limited(Arena::heap(), 1000);
        let fits = message(&memory, |w| {
            w.extend(&pattern(1000)).unwrap();
            Ok(())
        });
        assert_eq!(fits.unwrap().len(), 1000);
        let error = message(&memory, |w| {
            for byte in pattern(1001) {
                let _ = w.push(byte); // the codec ignores the error
            }
            Ok(())
        });
        assert_eq!(error.unwrap_err(), EncodeError::TooLarge { limit: 1000 });
        assert!(memory.0.stats().peak_in_use_bytes < 4096);
    }
}
