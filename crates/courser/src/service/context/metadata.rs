//! Metadata of requests and answers: small pairs of keys and values.

use std::borrow::Cow;
use std::fmt;

use crate::error::service::DecodeError;

/// Most bytes of metadata on the network, with 3 bytes for each pair. A packet carries about a third.
const MOST_BYTES: usize = 4_096;
/// Most pairs. Their keys are compared with each other.
const MOST_PAIRS: usize = 32;
/// Most bytes of a key.
const MOST_KEY: usize = 64;
/// In the length of a value: it is bytes, not text.
const IS_BYTES: u16 = 0x8000;

/// Keys that are passed on to the calls that a handler makes, in this order as far as there is room:
/// those of W3C Trace Context and W3C Baggage. Others, such as tokens, are for one server.
const PASSED: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Pairs of keys and values beside the arguments of a call, or beside its answer.
///
/// A key has 1 to 64 of the characters `a-z`, `0-9`, `_`, `.` and `-`, and is there once. A value is text
/// without control characters, or bytes. There are at most 32 pairs. Keys, values and 3 bytes for
/// each pair have at most 4,096 bytes together.
///
/// ```
/// use courser::service::{Metadata, MetadataValue};
///
/// # fn main() -> Result<(), courser::service::MetadataError> {
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "blue")?;
/// metadata.insert("token", vec![1, 2, 3])?;
/// assert_eq!(metadata.text("tenant"), Some("blue"));
/// assert_eq!(metadata.bytes("token"), Some(&[1, 2, 3][..]));
/// assert_eq!(metadata.text("token"), None);
/// assert!(metadata.insert("Tenant", "an upper-case letter").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// The pairs as they are sent: the length of the key (1 byte), the key, the length of the value (2
    /// bytes, little endian) with [`IS_BYTES`], the value.
    pairs: Vec<u8>,
}

/// The value of a key of [`Metadata`].
///
/// ```
/// use courser::service::{Metadata, MetadataValue};
///
/// # fn main() -> Result<(), courser::service::MetadataError> {
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "blue")?;
/// metadata.insert("token", vec![1, 2, 3])?;
/// for (key, value) in metadata.iter() {
///     match value {
///         MetadataValue::Text(text) => println!("{key}: {text}"),
///         MetadataValue::Bytes(bytes) => println!("{key}: {} bytes", bytes.len()),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MetadataValue<'a> {
    /// Text without control characters.
    Text(Cow<'a, str>),
    /// Any bytes.
    Bytes(Cow<'a, [u8]>),
}

/// A pair cannot be added to [`Metadata`].
///
/// Example: [`Metadata`](crate::service::Metadata).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is empty or too long, or has another character.
    #[error(
        "the metadata key {key:?} is not allowed; use 1 to {MOST_KEY} of a-z, 0-9, '_', '.' and '-'"
    )]
    Key {
        /// The first 64 characters.
        key: Box<str>,
    },
    /// The text has a control character.
    #[error("the text of the metadata key {key} has a control character; use bytes")]
    Control {
        /// The key.
        key: Box<str>,
    },
    /// There are 32 pairs.
    #[error("metadata has at most {MOST_PAIRS} pairs; use arguments for the rest")]
    Pairs,
    /// The pairs would be too large.
    #[error("metadata of {bytes} bytes is above {MOST_BYTES}; use arguments for large values")]
    TooLarge {
        /// Bytes with the new pair.
        bytes: usize,
    },
}

impl<'a> From<&'a str> for MetadataValue<'a> {
    fn from(text: &'a str) -> Self {
        MetadataValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for MetadataValue<'_> {
    fn from(text: String) -> Self {
        MetadataValue::Text(Cow::Owned(text))
    }
}

impl<'a> From<&'a [u8]> for MetadataValue<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        MetadataValue::Bytes(Cow::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for MetadataValue<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        MetadataValue::Bytes(Cow::Owned(bytes))
    }
}

/// Shows keys, and the numbers of bytes of values, which may be secret.
impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(key, value)| (key, value.len()))).finish()
    }
}

impl MetadataValue<'_> {
    /// The number of bytes.
    fn len(&self) -> usize {
        match self {
            MetadataValue::Text(text) => text.len(),
            MetadataValue::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Metadata {
    /// Without a pair.
    pub fn new() -> Self {
        Metadata::default()
    }

    /// Adds a pair, in place of an earlier one with this key.
    ///
    /// # Errors
    /// The key or the value is not allowed, or there is no room: nothing is changed.
    pub fn insert<'v>(
        &mut self,
        key: &str,
        value: impl Into<MetadataValue<'v>>,
    ) -> Result<(), MetadataError> {
        let value = value.into();
        if !is_key(key.as_bytes()) {
            return Err(MetadataError::Key { key: key.chars().take(MOST_KEY).collect() });
        }
        let (bytes, mark) = match &value {
            MetadataValue::Text(text) if text.contains(char::is_control) => {
                return Err(MetadataError::Control { key: key.into() });
            }
            MetadataValue::Text(text) => (text.as_bytes(), 0),
            MetadataValue::Bytes(bytes) => (&**bytes, IS_BYTES),
        };
        let others = self.without(key);
        let total = others.pairs.len().saturating_add(3 + key.len()).saturating_add(bytes.len());
        if total > MOST_BYTES {
            return Err(MetadataError::TooLarge { bytes: total });
        }
        if others.len() == MOST_PAIRS {
            return Err(MetadataError::Pairs);
        }
        *self = others;
        self.pairs.push(key.len() as u8);
        self.pairs.extend(key.as_bytes());
        self.pairs.extend((bytes.len() as u16 | mark).to_le_bytes());
        self.pairs.extend(bytes);
        Ok(())
    }

    /// Removes the pair with this key. Returns whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let others = self.without(key);
        let removed = others.pairs.len() < self.pairs.len();
        *self = others;
        removed
    }

    /// The value of a key. Looks through all pairs.
    pub fn get(&self, key: &str) -> Option<MetadataValue<'_>> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// The value of a key, if it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            MetadataValue::Text(Cow::Borrowed(text)) => Some(text),
            _ => None,
        }
    }

    /// The value of a key, if it is bytes.
    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        match self.get(key)? {
            MetadataValue::Bytes(Cow::Borrowed(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The pairs, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, MetadataValue<'_>)> {
        let mut rest = &self.pairs[..];
        std::iter::from_fn(move || {
            // The pairs were checked.
            let (pair, behind) = Pair::split(rest).ok()?;
            rest = behind;
            Some((pair.key, pair.value))
        })
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pairs as they are sent.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.pairs
    }

    /// Reads pairs that were sent.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MOST_BYTES {
            return Err(DecodeError::Form("metadata of more than 4,096 bytes"));
        }
        let mut keys: Vec<&str> = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (pair, behind) = Pair::split(rest)?;
            if keys.len() == MOST_PAIRS {
                return Err(DecodeError::Form("metadata of more than 32 pairs"));
            }
            if keys.contains(&pair.key) {
                return Err(DecodeError::Form("metadata with a key twice"));
            }
            keys.push(pair.key);
            rest = behind;
        }
        Ok(Metadata { pairs: bytes.to_vec() })
    }

    fn without(&self, key: &str) -> Metadata {
        self.filtered(|known| known != key)
    }

    /// The pairs that calls of a handler have too, the most important ones first.
    pub(crate) fn passed(&self) -> Metadata {
        let of = |key| self.filtered(|known| known == key).pairs;
        Metadata { pairs: PASSED.into_iter().flat_map(of).collect() }
    }

    fn filtered(&self, keeps: impl Fn(&str) -> bool) -> Metadata {
        let (mut kept, mut rest) = (Vec::new(), &self.pairs[..]);
        while let Ok((pair, behind)) = Pair::split(rest) {
            if keeps(pair.key) {
                kept.extend(&rest[..rest.len() - behind.len()]);
            }
            rest = behind;
        }
        Metadata { pairs: kept }
    }

    /// Adds the pairs of others whose keys are not here, as far as there is room.
    ///
    /// # Errors
    /// There was none for one of them.
    pub(crate) fn fill_from(&mut self, others: &Metadata) -> Result<(), MetadataError> {
        let mut filled = Ok(());
        for (key, value) in others.iter() {
            if self.get(key).is_none() {
                filled = filled.and(self.insert(key, value));
            }
        }
        filled
    }
}

fn is_key(key: &[u8]) -> bool {
    (1..=MOST_KEY).contains(&key.len())
        && key.iter().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'))
}

/// A pair of received bytes.
struct Pair<'a> {
    key: &'a str,
    value: MetadataValue<'a>,
}

impl<'a> Pair<'a> {
    /// The first pair, and the bytes behind it.
    fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        const SHORT: DecodeError = DecodeError::Form("metadata that ends early");
        let (len, rest) = bytes.split_first().ok_or(SHORT)?;
        let (key, rest) = rest.split_at_checked(usize::from(*len)).ok_or(SHORT)?;
        let key = std::str::from_utf8(key).ok().filter(|key| is_key(key.as_bytes()));
        let key = key.ok_or(DecodeError::Form("a metadata key with another character"))?;
        let (len, rest) = rest.split_first_chunk::<2>().ok_or(SHORT)?;
        let len = u16::from_le_bytes(*len);
        let (value, rest) = rest.split_at_checked(usize::from(len & !IS_BYTES)).ok_or(SHORT)?;
        let value = if len & IS_BYTES != 0 {
            MetadataValue::Bytes(Cow::Borrowed(value))
        } else {
            let text = std::str::from_utf8(value).ok();
            let text = text.filter(|text| !text.contains(char::is_control));
            text.ok_or(DecodeError::Form("a metadata text that is none"))?.into()
        };
        Ok((Pair { key, value }, rest))
    }
}

#[cfg(test)]
mod tests;
