//! References that functions further down the stack find without a parameter for them: the endpoint
//! and the received packet, for the futures that are polled meanwhile.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

/// A place through which a function lends a value to those that it calls.
pub struct Lent<T>(Cell<Option<NonNull<T>>>);

/// A place through which a function shows a value to those that it calls.
pub struct Shown<T: ?Sized>(Cell<Option<NonNull<T>>>);

/// Puts back what a place had before, also after a panic.
struct Restore<'a, T: ?Sized> {
    place: &'a Cell<Option<NonNull<T>>>,
    before: Option<NonNull<T>>,
}

impl<T: ?Sized> Drop for Restore<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.place.set(self.before);
    }
}

impl<T> Lent<T> {
    /// Lends `value` while `run` runs.
    #[inline]
    pub fn lend<R>(&self, value: &mut T, run: impl FnOnce() -> R) -> R {
        let before = self.0.replace(Some(NonNull::from(value)));
        let _restore = Restore { place: &self.0, before };
        run()
    }

    /// Passes the value to `use_it`. `None`: none is lent, or another call of this function uses it.
    #[inline]
    pub fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut value = self.0.take()?;
        let _restore = Restore { place: &self.0, before: Some(value) };
        // SAFETY: `lend` put the pointer here, and runs: it restores the place before it returns or
        // unwinds, and the place has one thread. Until then its `&mut T` is used through this place
        // alone, which is empty while this reference is. Tests: `tests` below, under miri.
        Some(use_it(unsafe { value.as_mut() }))
    }
}

impl<T: ?Sized> Shown<T> {
    /// A place that shows nothing.
    #[must_use]
    pub const fn new() -> Self {
        Shown(Cell::new(None))
    }

    /// Shows `value` while `run` runs.
    #[inline]
    pub fn show<R>(&self, value: &T, run: impl FnOnce() -> R) -> R {
        let before = self.0.replace(Some(NonNull::from(value)));
        let _restore = Restore { place: &self.0, before };
        run()
    }

    /// Passes the value to `look`. `None`: none is shown.
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let value = self.0.get()?;
        // SAFETY: `show` put the pointer here, and runs: it restores the place before it returns or
        // unwinds, and the place has one thread. Its `&T` lives until then. Tests: `tests` below,
        // under miri.
        Some(look(unsafe { value.as_ref() }))
    }
}

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Lent(Cell::new(None))
    }
}

impl<T: ?Sized> Default for Shown<T> {
    fn default() -> Self {
        Shown::new()
    }
}

impl<T> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.0.get().is_some()).finish()
    }
}

impl<T: ?Sized> fmt::Debug for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shown").field(&self.0.get().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_value_is_lent_once_at_a_time_and_until_its_lender_returns() {
        let place = Lent::default();
        let mut list = vec![1];
        assert!(place.with(|_: &mut Vec<i32>| ()).is_none());
        place.lend(&mut list, || {
            place.with(|list| {
                list.push(2);
                assert!(place.with(|_| ()).is_none(), "it has one user");
                // The user may lend it on, or lend another one.
                place.lend(list, || place.with(|list| list.push(3)).unwrap());
                place.lend(&mut vec![0], || place.with(|other| other.push(0)).unwrap());
                list.push(4);
            });
            place.with(|list| list.push(5)).unwrap();
        });
        assert!(place.with(|_| ()).is_none());
        list.push(6);
        assert_eq!(list, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_panic_returns_what_was_lent_and_shown() {
        let (lent, shown) = (Lent::default(), Shown::<[u8]>::default());
        let mut list = vec![1];
        let panics = AssertUnwindSafe(|| {
            lent.lend(&mut list, || {
                let used = AssertUnwindSafe(|| lent.with(|_| panic!("on purpose")));
                assert!(catch_unwind(used).is_err());
                lent.with(|list| list.push(2)).unwrap();
                shown.show(&[1, 2], || panic!("once more"));
            });
        });
        assert!(catch_unwind(panics).is_err());
        assert!(lent.with(|_| ()).is_none() && shown.with(|_| ()).is_none());
        assert_eq!(list, [1, 2]);
    }

    #[test]
    fn bytes_are_shown_to_several_and_those_of_an_inner_call_hide_them_meanwhile() {
        let place = Shown::<[u8]>::default();
        let bytes = vec![1, 2];
        place.show(&bytes, || {
            place.with(|outer| {
                place.show(&[3], || assert_eq!(place.with(<[u8]>::to_vec).unwrap(), [3]));
                assert_eq!(place.with(<[u8]>::to_vec).unwrap(), outer);
            });
        });
        assert!(place.with(|_| ()).is_none());
    }
}
