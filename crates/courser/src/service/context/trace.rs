//! The parent of a span, as W3C Trace Context writes it.

use std::fmt;
use std::str::FromStr;

use super::metadata::{Metadata, MetadataValue};

/// The value of the metadata key `traceparent`: the trace and the span that a call belongs to
/// ([W3C Trace Context, section 3.2](https://www.w3.org/TR/trace-context/#traceparent-header)).
///
/// ```
/// use courser::service::{Metadata, TraceParent};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent: TraceParent = text.parse()?;
/// assert!(parent.is_sampled());
/// // The span of this process is the parent of the calls that it makes.
/// let child = parent.child([1, 2, 3, 4, 5, 6, 7, 8]);
/// let mut metadata = Metadata::new();
/// metadata.insert(TraceParent::KEY, child)?;
/// let sent = TraceParent::of(&metadata).expect("a valid one");
/// assert_eq!(sent.trace_id(), parent.trace_id());
/// assert_eq!(sent.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0102030405060708-01");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceParent {
    trace_id: [u8; 16],
    parent_id: [u8; 8],
    flags: u8,
}

/// A text is no valid `traceparent`.
///
/// ```
/// use courser::service::{TraceParent, TraceParentError};
///
/// // An id of zeros is not valid.
/// let text = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
/// assert!(matches!(text.parse::<TraceParent>(), Err(TraceParentError { .. })));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the text is no traceparent of W3C Trace Context; write 00, 32 and 16 lower-case hexadecimal \
     digits that are not all 0, and 2 for the flags, with '-' between them"
)]
pub struct TraceParentError;

/// The flag of traces that are recorded.
const SAMPLED: u8 = 1;
/// Bytes of the text of version 00.
const LEN: usize = 55;

impl TraceParent {
    /// The key in [`Metadata`].
    pub const KEY: &'static str = "traceparent";

    /// A trace and a span of it. `None`: an id is 0.
    pub fn new(trace_id: [u8; 16], parent_id: [u8; 8], sampled: bool) -> Option<Self> {
        let valid = trace_id != [0; 16] && parent_id != [0; 8];
        valid.then_some(TraceParent { trace_id, parent_id, flags: u8::from(sampled) })
    }

    /// The parent that metadata names. `None`: it names none, or one that is not valid, which receivers
    /// ignore.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        metadata.text(Self::KEY)?.parse().ok()
    }

    /// The trace.
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span that the call belongs to.
    pub fn parent_id(&self) -> [u8; 8] {
        self.parent_id
    }

    /// Returns whether the caller may have recorded the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace with another span, which is not 0 (a span of 0 is left as it was).
    #[must_use]
    pub fn child(self, span_id: [u8; 8]) -> Self {
        let parent_id = if span_id == [0; 8] { self.parent_id } else { span_id };
        TraceParent { parent_id, ..self }
    }
}

/// Reads `N` bytes of lower-case hexadecimal digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn parse(text: &[u8]) -> Option<TraceParent> {
    let (own, behind) = text.split_at_checked(LEN)?;
    let [version] = hex::<1>(&own[..2])?;
    // Later versions may append parts.
    let ends = match version {
        0 => behind.is_empty(),
        0xff => false,
        _ => behind.first().is_none_or(|c| *c == b'-'),
    };
    if !ends || [own[2], own[35], own[52]] != *b"---" {
        return None;
    }
    let [flags] = hex::<1>(&own[53..])?;
    let parent = TraceParent::new(hex(&own[3..35])?, hex(&own[36..52])?, false)?;
    // Only this flag has a meaning in version 00; the others are not passed on.
    Some(TraceParent { flags: flags & SAMPLED, ..parent })
}

impl From<TraceParent> for MetadataValue<'_> {
    fn from(parent: TraceParent) -> Self {
        parent.to_string().into()
    }
}

impl FromStr for TraceParent {
    type Err = TraceParentError;

    fn from_str(text: &str) -> Result<Self, TraceParentError> {
        parse(text.as_bytes()).ok_or(TraceParentError)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.parent_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_written_as_it_was_read() {
        let parent: TraceParent = TEXT.parse().unwrap();
        assert_eq!(parent.to_string(), TEXT);
        assert_eq!(parent.parent_id(), [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert!(parent.is_sampled());
        assert_eq!(parent.child([0; 8]), parent);
        assert_eq!(TraceParent::new([0; 16], [1; 8], true), None);
        assert_eq!(TraceParent::new([1; 16], [0; 8], true), None);
        let unknown_flags = TEXT.replace("-01", "-fe").parse::<TraceParent>().unwrap();
        assert!(!unknown_flags.is_sampled() && unknown_flags.to_string().ends_with("-00"));
    }

    #[test]
    fn later_versions_are_read_by_their_first_parts() {
        for text in [TEXT.replacen("00", "cc", 1), TEXT.replacen("00", "01", 1) + "-more"] {
            assert_eq!(text.parse::<TraceParent>().unwrap().to_string(), TEXT, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let zeros = |from: usize, to: usize| {
            format!("{}{}{}", &TEXT[..from], "0".repeat(to - from), &TEXT[to..])
        };
        let texts = [
            String::new(),
            TEXT[..54].to_owned(),
            format!("{TEXT}-"),
            TEXT.replacen("00", "ff", 1),
            TEXT.replacen("00", "01", 1) + "more",
            TEXT.to_uppercase(),
            TEXT.replace("-b7", "_b7"),
            TEXT.replacen("0a", "0g", 1),
            zeros(3, 35),
            zeros(36, 52),
            "ä".repeat(28),
        ];
        for text in texts {
            assert_eq!(text.parse::<TraceParent>(), Err(TraceParentError), "{text}");
        }
    }
}
