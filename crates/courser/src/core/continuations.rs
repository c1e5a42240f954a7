//! The continuations of calls in flight.
//!
//! The protocol's slots keep their numbers, so that the hot path moves 16 bytes from a call to its
//! slot and to its completion, whatever a closure captures.

/// Target of a completion: a tag or a closure index. Two plain values, which stay in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cont {
    value: u64,
    is_call: bool,
}

const _: () = assert!(size_of::<Option<Cont>>() == 16);

/// The bit of [`Cont::awaited`].
const AWAITED: u64 = 1 << 32;

/// The meaning of a [`Cont`].
pub(crate) enum CompletionTarget {
    /// The endpoint's completion function, with this tag.
    Tag(u64),
    /// A closure: its index in [`Continuations`].
    Call(u32),
    /// A future: its index in [`crate::task`]'s calls.
    Awaited(u32),
}

impl Cont {
    #[inline]
    pub(crate) fn tag(tag: u64) -> Self {
        Cont { value: tag, is_call: false }
    }

    #[inline]
    pub(crate) fn call(at: u32) -> Self {
        Cont { value: at.into(), is_call: true }
    }

    #[inline]
    pub(crate) fn awaited(at: u32) -> Self {
        Cont { value: AWAITED | u64::from(at), is_call: true }
    }

    /// Nothing follows.
    pub(crate) fn none() -> Self {
        Cont::call(u32::MAX)
    }

    #[inline]
    pub(crate) fn target(self) -> CompletionTarget {
        match self.is_call {
            false => CompletionTarget::Tag(self.value),
            true if self.value & AWAITED == 0 => CompletionTarget::Call(self.value as u32),
            true => CompletionTarget::Awaited(self.value as u32),
        }
    }
}

/// Closures by index. The number of entries is the largest number of concurrent calls with closures
/// so far, bounded by the limits of sessions, slots and call queues; 80 bytes each.
pub(crate) struct Continuations<F> {
    entries: Vec<Option<F>>,
    /// Free entries.
    vacant: Vec<u32>,
}

impl<F> Default for Continuations<F> {
    fn default() -> Self {
        Continuations { entries: Vec::new(), vacant: Vec::new() }
    }
}

impl<F> Continuations<F> {
    /// Stores a closure and returns its index.
    #[inline]
    pub(crate) fn put(&mut self, f: F) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.entries[at as usize] = Some(f);
            return at;
        }
        self.entries.push(Some(f));
        self.entries.len() as u32 - 1
    }

    /// Removes a closure.
    #[inline]
    pub(crate) fn take(&mut self, at: u32) -> Option<F> {
        let f = self.entries.get_mut(at as usize)?.take()?;
        self.vacant.push(at);
        Some(f)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use smallbox::smallbox;

    use super::*;
    use crate::core::context::{Context, ContinuationFn};
    use crate::core::message::Completion;

    #[test]
    fn a_closure_is_given_back_once_and_its_place_is_used_again() {
        let alive = Rc::new(());
        let closure = || -> ContinuationFn {
            let alive = alive.clone();
            smallbox!(move |_: &mut Context<'_>, _: Completion<'_>| drop(alive.clone()))
        };
        let mut continuations = Continuations::default();
        let (a, b) = (continuations.put(closure()), continuations.put(closure()));
        assert!(a != b && Rc::strong_count(&alive) == 3);
        drop(continuations.take(a));
        assert!(continuations.take(a).is_none() && continuations.take(99).is_none());
        assert_eq!(Rc::strong_count(&alive), 2);
        assert_eq!(continuations.put(closure()), a);
        assert_eq!(continuations.entries.len(), 2);
        drop(continuations);
        assert_eq!(Rc::strong_count(&alive), 1, "closures go with the endpoint");
    }
}
