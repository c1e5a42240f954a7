//! Tables of the Internet from a file, to try a router with as many routes as it would have there.

use std::io::{BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use ipnet::IpNet;
use thiserror::Error;

use super::{Origin, RouteError, Routes};
use crate::route::NextHop;

/// Bytes of a line at most.
const LINE: u64 = 256;

/// Why a table was not read to its end. The routes before are there.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The file cannot be read, or unpacked.
    #[error("line {line}: {source}")]
    Read {
        /// The line, counted from 1.
        line: usize,
        /// The error.
        source: std::io::Error,
    },
    /// A line is no prefix and number.
    #[error("line {line}: {text:?} is no prefix and AS number with a tab between them")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// Its beginning.
        text: String,
    },
    /// A route was refused.
    #[error("line {line}: {source}")]
    Route {
        /// The line, counted from 1.
        line: usize,
        /// The error.
        source: RouteError,
    },
    /// No next hop was given.
    #[error("a table of routes needs at least one next hop")]
    NoHops,
}

impl Routes {
    /// Announces the routes of a file with one prefix and AS number in a line, and comments after
    /// `;` or `#`, for example those of Debian's `python3-pyasn`. It may be packed by gzip. The AS
    /// number selects one of the next hops. Prefixes of a family for which `hops` is empty are left
    /// out. Returns the number of routes.
    pub fn announce_snapshot(
        &mut self,
        origin: Origin,
        file: impl Read,
        hops4: &[NextHop],
        hops6: &[NextHop],
    ) -> Result<usize, SnapshotError> {
        if hops4.is_empty() && hops6.is_empty() {
            return Err(SnapshotError::NoHops);
        }
        let mut announced = 0;
        read_snapshot(file, |line, prefix, number| {
            let hops = if prefix.addr().is_ipv4() { hops4 } else { hops6 };
            if !hops.is_empty() {
                let hop = hops[number as usize % hops.len()];
                let result = self.announce(origin, prefix, &[(hop, 1)]);
                result.map_err(|source| SnapshotError::Route { line, source })?;
                announced += 1;
            }
            Ok(())
        })?;
        Ok(announced)
    }
}

/// Calls `each` with the number of the line, the prefix and the AS number of each route in a file.
fn read_snapshot(
    file: impl Read,
    mut each: impl FnMut(usize, IpNet, u32) -> Result<(), SnapshotError>,
) -> Result<(), SnapshotError> {
    let read = |line, source| SnapshotError::Read { line, source };
    let mut file = BufReader::new(file);
    let is_packed = file.fill_buf().map_err(|e| read(1, e))?.starts_with(&[0x1f, 0x8b]);
    let mut lines: Box<dyn BufRead> = if is_packed {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    };
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        let length = (&mut lines).take(LINE).read_line(&mut text).map_err(|e| read(line, e))?;
        if length == 0 {
            break;
        }
        let wrong = || SnapshotError::Line { line, text: text.chars().take(60).collect() };
        if length as u64 == LINE && !text.ends_with('\n') {
            return Err(wrong());
        }
        let content = text.split([';', '#']).next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let (prefix, number) = content.split_once('\t').ok_or_else(wrong)?;
        let prefix = prefix.parse().map_err(|_| wrong())?;
        each(line, prefix, number.trim().parse().map_err(|_| wrong())?)?;
    }
    Ok(())
}
