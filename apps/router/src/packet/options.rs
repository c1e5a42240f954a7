//! IPv4 options.

const END: u8 = 0;
const NOP: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
/// Set in the type of options that all fragments carry.
const COPIED: u8 = 0x80;
/// The most bytes of options.
pub(super) const MOST: usize = 40;

/// Iterates over the options of a header up to their end. An option whose length is impossible is
/// an error, and the last item.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<&'a [u8], ()>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = match *self.0 {
            [] | [END, ..] => return None,
            [NOP, ..] => 1,
            [_, len, ..] if len >= 2 => usize::from(len),
            _ => usize::MAX,
        };
        let Some((option, rest)) = self.0.split_at_checked(len) else {
            self.0 = &[];
            return Some(Err(()));
        };
        self.0 = rest;
        Some(Ok(option))
    }
}

/// Whether packets with these options are forwarded: each option must end within the header, and
/// none be a source route, by which senders would get around routes and filters (RFC 7126).
pub(super) fn forwarded(options: &[u8]) -> bool {
    Options(options).all(|option| match option {
        Ok(option) => !matches!(option[0], LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE),
        Err(()) => false,
    })
}

/// Writes the options that fragments other than the first carry, padded to a multiple of 4 bytes.
/// Returns their length.
pub(super) fn copy(options: &[u8], out: &mut [u8; MOST]) -> usize {
    let mut len = 0;
    for option in Options(options).flatten() {
        let end = len + option.len();
        if option[0] & COPIED != 0 && end <= MOST {
            out[len..end].copy_from_slice(option);
            len = end;
        }
    }
    let padded = len.next_multiple_of(4);
    out[len..padded].fill(END);
    padded
}
