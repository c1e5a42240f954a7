//! The model of a key-value store, and with one key that of a register.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use super::Model;

/// An operation of a key-value store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvOp<K, V> {
    /// Reads a value.
    Get(K),
    /// Stores a value.
    Put(K, V),
    /// Removes a key.
    Delete(K),
    /// Stores a value if the present one is `expected`; `None`: if there is none.
    Cas {
        /// The key.
        key: K,
        /// The value that must be there.
        expected: Option<V>,
        /// The new value.
        new: V,
    },
}

/// The answer of a [`KvOp`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvAnswer<V> {
    /// It was carried out; the answer says nothing else. For `Put` and `Delete` of a store that does
    /// not report whether there was a value.
    Done,
    /// The answer of `Put`: there was a value.
    Replaced(bool),
    /// The value, of `Get`.
    Value(Option<V>),
    /// The answer of `Delete`: there was a value.
    Removed(bool),
    /// The answer of `Cas`: the new value was stored.
    Swapped(bool),
}

/// A key-value store that is empty at first.
#[derive(Clone, Copy, Debug)]
pub struct KvModel<K, V>(PhantomData<fn() -> (K, V)>);

impl<K, V> Default for KvModel<K, V> {
    fn default() -> Self {
        KvModel(PhantomData)
    }
}

impl<K: Ord + Clone + fmt::Debug, V: Clone + Eq + Hash> Model for KvModel<K, V> {
    type State = Option<V>;
    type Op = KvOp<K, V>;
    type Answer = KvAnswer<V>;
    type Key = K;

    fn key(&self, op: &KvOp<K, V>) -> K {
        let (KvOp::Get(key) | KvOp::Put(key, _) | KvOp::Delete(key) | KvOp::Cas { key, .. }) = op;
        key.clone()
    }

    fn initial(&self, _: &K) -> Option<V> {
        None
    }

    fn step(
        &self,
        state: &Option<V>,
        op: &KvOp<K, V>,
        answer: Option<&KvAnswer<V>>,
    ) -> Option<Option<V>> {
        let (after, fits) = match op {
            KvOp::Get(_) => (
                state.clone(),
                answer.is_none_or(|a| matches!(a, KvAnswer::Value(v) if v == state)),
            ),
            KvOp::Put(_, value) => {
                let replaced = KvAnswer::Replaced(state.is_some());
                let fits = answer.is_none_or(|a| *a == replaced || *a == KvAnswer::Done);
                (Some(value.clone()), fits)
            }
            KvOp::Delete(_) => {
                let removed = KvAnswer::Removed(state.is_some());
                (None, answer.is_none_or(|a| *a == removed || *a == KvAnswer::Done))
            }
            KvOp::Cas { expected, new, .. } => {
                let swaps = state == expected;
                let after = if swaps { Some(new.clone()) } else { state.clone() };
                (after, answer.is_none_or(|a| *a == KvAnswer::Swapped(swaps)))
            }
        };
        fits.then_some(after)
    }

    fn is_read(&self, op: &KvOp<K, V>) -> bool {
        matches!(op, KvOp::Get(_))
    }
}
