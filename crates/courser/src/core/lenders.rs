//! The endpoints of a thread by numbers, for state that is `Send` and names an endpoint.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::{Lender, Loans};

/// The number of the next endpoint. Numbers are not used twice, so that a number of another thread is
/// not found here.
static NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LENDERS: RefCell<Vec<(u64, Weak<Loans>)>> = const { RefCell::new(Vec::new()) };
}

/// The number of an endpoint of this thread. The first call for an endpoint forgets those that are gone.
pub(crate) fn number_of(lender: &Lender) -> u64 {
    LENDERS.with_borrow_mut(|all| {
        let is_same = |known: &Weak<Loans>| std::ptr::eq(known.as_ptr(), Rc::as_ptr(&lender.0));
        if let Some((number, _)) = all.iter().find(|(_, known)| is_same(known)) {
            return *number;
        }
        all.retain(|(_, known)| known.strong_count() > 0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        all.push((number, Rc::downgrade(&lender.0)));
        number
    })
}

/// The endpoint with this number. `None`: it is gone, or of another thread.
pub(crate) fn find(number: u64) -> Option<Lender> {
    LENDERS.with_borrow(|all| {
        let (_, found) = all.iter().find(|(known, _)| *known == number)?;
        found.upgrade().map(Lender)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_found_by_their_numbers_until_they_are_gone() {
        let (one, other) = (Lender::default(), Lender::default());
        let (of_one, of_other) = (number_of(&one), number_of(&other));
        assert_ne!(of_one, of_other);
        assert_eq!(number_of(&one.clone()), of_one);
        assert!(find(of_one).is_some_and(|found| Rc::ptr_eq(&found.0, &one.0)));
        let elsewhere = std::thread::spawn(move || find(of_one).is_none());
        assert!(elsewhere.join().unwrap());
        drop(one);
        assert!(find(of_one).is_none() && find(of_other).is_some());
        number_of(&Lender::default());
        LENDERS.with_borrow(|all| assert_eq!(all.len(), 2, "the one that is gone is forgotten"));
    }
}
