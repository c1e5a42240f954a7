//! The shapes of methods: their kinds, and how their values look on the network.
//!
//! As bytes, in the greeting: the kind (1 byte), the names of the parameters if there are several (their
//! number, then each after its length, in 2 bytes), then the shapes of the arguments, of the client's
//! items, of the value or of the server's items, and of the application error, each after its length (4
//! bytes). For clients that read them, the required fields of the four shapes follow.

use std::fmt;

use super::{Difference, FNV_BASIS, Shape, fnv, name, text};
use crate::error::service::DecodeError;

/// The kind of a method.
///
/// Example: [`MethodShape`](crate::service::MethodShape).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum MethodKind {
    /// A request and a response.
    Unary = 0,
    /// A message without a response.
    OneWay = 1,
    /// A request, and items from the server.
    ServerStream = 2,
    /// Items from the client, and a response.
    ClientStream = 3,
    /// A request, and items from both ends.
    BothStreams = 4,
}

impl MethodKind {
    fn of(byte: u8) -> Option<Self> {
        use MethodKind::{BothStreams, ClientStream, OneWay, ServerStream, Unary};
        let all = [Unary, OneWay, ServerStream, ClientStream, BothStreams];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    fn name(self) -> &'static str {
        match self {
            MethodKind::Unary => "a unary method",
            MethodKind::OneWay => "a one-way method",
            MethodKind::ServerStream => "a method with a stream of the server",
            MethodKind::ClientStream => "a method with a stream of the client",
            MethodKind::BothStreams => "a method with a stream each way",
        }
    }
}

/// Compares shapes by the rules of a codec: see [`crate::service::Codec::reads`].
pub(crate) type Reads = fn(&Shape, &Shape) -> Result<(), Difference>;

/// A method's kind, and the shapes of its values.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::{MethodKind, Shape};
///
/// # fn main() {
/// let get = &StoreClient::<courser::Client>::SERVICE.shapes()[1];
/// assert_eq!(get.kind(), MethodKind::Unary);
/// assert_eq!(*get.error(), Shape::of::<String>());
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct MethodShape {
    kind: MethodKind,
    /// The names of the parameters, if there are several.
    parameters: Box<[Box<str>]>,
    /// As in the module's text.
    parts: [Shape; 4],
    fingerprint: u64,
}

/// Most names of parameters.
const MOST_NAMES: usize = 255;
/// Most bytes of a name.
const LONGEST: usize = 4 * name::MAX;

/// Places in [`MethodShape::parts`].
const ARGUMENTS: usize = 0;
const SENT: usize = 1;
const VALUE: usize = 2;
const ERROR: usize = 3;

impl MethodShape {
    /// A method of this kind: its arguments, the client's items, the value or the server's items, and the
    /// application error. [`Shape::never`] stands for items and outcomes that the kind does not have.
    pub fn new(kind: MethodKind, parts: [Shape; 4]) -> Self {
        MethodShape::with_parameters(kind, &[], parts)
    }

    /// [`MethodShape::new`] with the names of several parameters, by which two that change places are
    /// noticed. There are up to 255; those of more than 200 characters are cut, and end in a hash.
    pub fn with_parameters(kind: MethodKind, names: &[&str], parts: [Shape; 4]) -> Self {
        let limited = |name: &&str| name::limited(name).into();
        let parameters: Box<[Box<str>]> = names.iter().take(MOST_NAMES).map(limited).collect();
        let mut hash = fnv(FNV_BASIS, &[kind as u8]);
        for name in &parameters {
            hash = fnv(fnv(hash, name.as_bytes()), &[0xFF]);
        }
        for part in &parts {
            hash = fnv(hash, &part.fingerprint().to_le_bytes());
        }
        MethodShape { kind, parameters, parts, fingerprint: hash }
    }

    /// The kind.
    pub fn kind(&self) -> MethodKind {
        self.kind
    }

    /// The parameters: one, or a tuple.
    pub fn arguments(&self) -> &Shape {
        &self.parts[ARGUMENTS]
    }

    /// The items that the client sends, of [`MethodKind::ClientStream`] and [`MethodKind::BothStreams`].
    pub fn sent(&self) -> &Shape {
        &self.parts[SENT]
    }

    /// The value, or the items that the server sends.
    pub fn value(&self) -> &Shape {
        &self.parts[VALUE]
    }

    /// The application error.
    pub fn error(&self) -> &Shape {
        &self.parts[ERROR]
    }

    /// A hash of all of it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns why a client that has the method in this shape cannot call it at a server that has it in
    /// another one.
    pub(crate) fn calls(&self, server: &MethodShape, reads: Reads) -> Result<(), String> {
        if self.fingerprint == server.fingerprint {
            return Ok(());
        }
        if self.kind != server.kind {
            let (own, other) = (self.kind.name(), server.kind.name());
            return Err(format!("the client has {own}, the server {other}"));
        }
        self.compare_parameters(server)?;
        for part in [ARGUMENTS, SENT] {
            let read = reads(&server.parts[part], &self.parts[part]);
            read.map_err(|difference| difference.between("server", "client"))?;
        }
        let [own, other] = [self, server].map(|method| method.error() == &Shape::tuple([]));
        if own != other {
            // As another type it would be an error without a reason.
            return Err("the error of one end is `()`, and that of the other one is not".to_owned());
        }
        for part in [VALUE, ERROR] {
            let read = reads(&self.parts[part], &server.parts[part]);
            read.map_err(|difference| difference.between("client", "server"))?;
        }
        Ok(())
    }

    /// Parameters are sent by their places. One may have another name, but not that of another place.
    fn compare_parameters(&self, server: &MethodShape) -> Result<(), String> {
        for (here, name) in self.parameters.iter().enumerate() {
            let there = server.parameters.iter().position(|other| other == name);
            if let Some(there) = there.filter(|there| *there != here) {
                let (own, other) = (here + 1, there + 1);
                return Err(format!(
                    "`{name}` is parameter {own} of the client, and parameter {other} of the server"
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend((self.parameters.len() as u16).to_le_bytes());
        for name in &self.parameters {
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        for part in &self.parts {
            let part = part.to_bytes();
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// The bytes for clients that read which fields are required.
    pub(crate) fn to_bytes_with_required(&self) -> Vec<u8> {
        let mut bytes = self.to_bytes();
        self.parts.iter().for_each(|part| bytes.extend(part.required()));
        bytes
    }

    /// Reads a method's shape, with or without the required fields.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut rest) = bytes.split_first().ok_or(EARLY)?;
        let kind = MethodKind::of(*kind).ok_or(DecodeError::Form("a method of an unknown kind"))?;
        let names = parameters(&mut rest)?;
        let mut part = || {
            let (len, behind) = rest.split_first_chunk().ok_or(EARLY)?;
            let len = u32::from_le_bytes(*len) as usize;
            let (part, behind) = behind.split_at_checked(len).ok_or(EARLY)?;
            rest = behind;
            Shape::from_bytes(part)
        };
        let mut parts = [part()?, part()?, part()?, part()?];
        if !rest.is_empty() {
            for part in &mut parts {
                let fields = part.read_required(rest);
                rest =
                    fields.ok_or(DecodeError::Form("required fields that are none of a shape"))?;
            }
        }
        match rest {
            [] => Ok(MethodShape::with_parameters(kind, &names, parts)),
            left => Err(DecodeError::Trailing { left: left.len() }),
        }
    }
}

const EARLY: DecodeError = DecodeError::Form("a method's shape that ends early");

/// Reads the names of parameters.
fn parameters<'b>(rest: &mut &'b [u8]) -> Result<Vec<&'b str>, DecodeError> {
    let (count, behind) = rest.split_first_chunk().ok_or(EARLY)?;
    *rest = behind;
    let count = limited(*count, MOST_NAMES)?;
    let mut names = Vec::new();
    for _ in 0..count {
        let (len, behind) = rest.split_first_chunk().ok_or(EARLY)?;
        let (name, behind) = behind.split_at_checked(limited(*len, LONGEST)?).ok_or(EARLY)?;
        *rest = behind;
        let name = std::str::from_utf8(name);
        names.push(name.map_err(|_| DecodeError::Form("a parameter's name that is no text"))?);
    }
    Ok(names)
}

/// A number of names, or of bytes of one.
fn limited(number: [u8; 2], most: usize) -> Result<usize, DecodeError> {
    match usize::from(u16::from_le_bytes(number)) {
        number if number <= most => Ok(number),
        _ => Err(DecodeError::Form("too many names of parameters, or one that is too long")),
    }
}

/// As a method of a trait, without its name.
impl fmt::Display for MethodShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, sent, value, error] = self.parts.each_ref().map(Shape::to_string);
        let arguments = text::parameters(self.arguments(), &self.parameters);
        match self.kind {
            MethodKind::Unary => write!(f, "fn({arguments}) -> {value}")?,
            MethodKind::OneWay => return write!(f, "one-way fn({arguments})"),
            MethodKind::ServerStream => write!(f, "fn({arguments}) -> stream of {value}")?,
            MethodKind::ClientStream | MethodKind::BothStreams => {
                let comma = if arguments.is_empty() { "" } else { ", " };
                let of = if self.kind == MethodKind::BothStreams { "stream of " } else { "" };
                write!(f, "fn({arguments}{comma}stream of {sent}) -> {of}{value}")?;
            }
        }
        match self.error() == &Shape::never() {
            true => Ok(()),
            false => write!(f, " or {error}"),
        }
    }
}

impl fmt::Debug for MethodShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
