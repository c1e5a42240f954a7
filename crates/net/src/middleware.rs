//! Middleware: a transport around another one, which overrides a few methods and passes the rest
//! through.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use courser_buf::{Addr, MemorySource, PathId, RxBurst, TxBurst};

use crate::{Caps, Path, PathError, Transport, TransportStats};

/// A transport around another one. Every method of [`Transport`] is passed through unless it is
/// overridden here; calls are inlined. A type that implements this trait is a [`Transport`].
///
/// Implement it by its full path. With both traits in scope a call of a method of the same name is
/// ambiguous.
///
/// ```
/// use courser_buf::{PacketAccess, TxBurst};
/// use courser_net::{MemConfig, MemNetwork, Transport};
///
/// /// Counts the frames that are sent.
/// struct Counting<T> {
///     inner: T,
///     frames: usize,
/// }
///
/// impl<T: Transport> courser_net::Middleware for Counting<T> {
///     type Inner = T;
///
///     fn inner(&self) -> &T {
///         &self.inner
///     }
///
///     fn inner_mut(&mut self) -> &mut T {
///         &mut self.inner
///     }
///
///     fn tx_burst(&mut self, burst: &mut TxBurst) {
///         let before = burst.len();
///         self.inner.tx_burst(burst);
///         self.frames += before - burst.len();
///     }
/// }
///
/// let inner = MemNetwork::new().endpoint(MemConfig::default()).unwrap();
/// let mut counting = Counting { inner, frames: 0 };
/// let path = counting.path_open(counting.local_addr(), None).unwrap().id;
/// let buf = courser_buf::Arena::heap().alloc(8).unwrap();
/// let frame = courser_buf::TxFrame::one(path, buf.data_seg(0..8).unwrap());
/// counting.tx_burst(&mut [frame].into());
/// assert_eq!(counting.frames, 1);
/// ```
#[expect(missing_docs, reason = "the methods of Transport have their documentation there")]
pub trait Middleware {
    /// The inner transport.
    type Inner: Transport + ?Sized;

    /// The inner transport.
    fn inner(&self) -> &Self::Inner;

    /// The inner transport.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    #[inline]
    fn caps(&self) -> &Caps {
        self.inner().caps()
    }

    #[inline]
    fn local_addr(&self) -> Addr {
        self.inner().local_addr()
    }

    #[inline]
    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError> {
        self.inner_mut().path_open(remote, local)
    }

    #[inline]
    fn path_close(&mut self, path: PathId) {
        self.inner_mut().path_close(path);
    }

    #[inline]
    fn path_move(&mut self, path: PathId, remote: Addr) -> Result<Path, PathError> {
        self.inner_mut().path_move(path, remote)
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut TxBurst) {
        self.inner_mut().tx_burst(burst);
    }

    /// Not passed through: middleware that sees every frame in `tx_burst` would miss those that are
    /// copied. Returns `false`, so that they are sent in a burst.
    #[inline]
    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        let _ = (path, frame);
        false
    }

    #[inline]
    fn tx_reclaim(&mut self) -> usize {
        self.inner_mut().tx_reclaim()
    }

    #[inline(always)]
    fn tx_backlog(&self) -> Option<u64> {
        self.inner().tx_backlog()
    }

    #[inline(always)]
    fn tx_flush(&mut self) {
        self.inner_mut().tx_flush();
    }

    #[inline]
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        self.inner_mut().rx_burst(out);
    }

    #[inline]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner().event_fd()
    }

    #[inline]
    fn signal_always(&self) {
        self.inner().signal_always();
    }

    #[inline]
    fn drop_strangers(&mut self, first_byte: Option<u8>) -> bool {
        self.inner_mut().drop_strangers(first_byte)
    }

    #[inline]
    fn fall_asleep(&mut self) -> bool {
        self.inner_mut().fall_asleep()
    }

    #[inline]
    fn wake_up(&mut self) {
        self.inner_mut().wake_up();
    }

    #[inline]
    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        self.inner_mut().wait(wake, timeout_ns)
    }

    #[inline]
    fn memory(&self) -> Option<Arc<dyn MemorySource>> {
        self.inner().memory()
    }

    #[inline]
    fn warnings(&self) -> Vec<String> {
        self.inner().warnings()
    }

    #[inline]
    fn stats(&self) -> TransportStats {
        self.inner().stats()
    }
}

impl<T: Transport + ?Sized> Middleware for Box<T> {
    type Inner = T;

    #[inline]
    fn inner(&self) -> &T {
        self
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut T {
        self
    }

    #[inline]
    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        (**self).tx_copy(path, frame)
    }
}

impl<M: Middleware> Transport for M {
    #[inline]
    fn caps(&self) -> &Caps {
        Middleware::caps(self)
    }

    #[inline]
    fn local_addr(&self) -> Addr {
        Middleware::local_addr(self)
    }

    #[inline]
    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError> {
        Middleware::path_open(self, remote, local)
    }

    #[inline]
    fn path_close(&mut self, path: PathId) {
        Middleware::path_close(self, path);
    }

    #[inline]
    fn path_move(&mut self, path: PathId, remote: Addr) -> Result<Path, PathError> {
        Middleware::path_move(self, path, remote)
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut TxBurst) {
        Middleware::tx_burst(self, burst);
    }

    #[inline]
    fn tx_copy(&mut self, path: PathId, frame: &[u8]) -> bool {
        Middleware::tx_copy(self, path, frame)
    }

    #[inline]
    fn tx_reclaim(&mut self) -> usize {
        Middleware::tx_reclaim(self)
    }

    #[inline(always)]
    fn tx_backlog(&self) -> Option<u64> {
        Middleware::tx_backlog(self)
    }

    #[inline(always)]
    fn tx_flush(&mut self) {
        Middleware::tx_flush(self);
    }

    #[inline]
    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        Middleware::rx_burst(self, out);
    }

    #[inline]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Middleware::event_fd(self)
    }

    #[inline]
    fn signal_always(&self) {
        Middleware::signal_always(self);
    }

    #[inline]
    fn drop_strangers(&mut self, first_byte: Option<u8>) -> bool {
        Middleware::drop_strangers(self, first_byte)
    }

    #[inline]
    fn fall_asleep(&mut self) -> bool {
        Middleware::fall_asleep(self)
    }

    #[inline]
    fn wake_up(&mut self) {
        Middleware::wake_up(self);
    }

    #[inline]
    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        Middleware::wait(self, wake, timeout_ns)
    }

    #[inline]
    fn memory(&self) -> Option<Arc<dyn MemorySource>> {
        Middleware::memory(self)
    }

    #[inline]
    fn warnings(&self) -> Vec<String> {
        Middleware::warnings(self)
    }

    #[inline]
    fn stats(&self) -> TransportStats {
        Middleware::stats(self)
    }
}
