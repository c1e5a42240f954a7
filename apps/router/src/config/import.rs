//! The routes that a node imports from its kernel, as the file has them.

use std::path::PathBuf;
use std::time::Duration;

use super::check::{Result, Source};
use super::raw;
use crate::routes::Routes;

/// Tables that the kernel uses itself: `default`, `main` and `local`.
const KERNEL_TABLES: std::ops::RangeInclusive<i64> = 253..=255;
/// The longest grace time.
const GRACE: Duration = Duration::from_secs(3_600);
/// The grace time unless stated otherwise: enough for a daemon that is restarted.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Routes that a node takes over from a table of its kernel, see [`crate::import`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Import {
    /// The table.
    pub table: u32,
    /// A Unix stream socket of the routing daemon, by which its end is noticed.
    pub daemon: Option<PathBuf>,
    /// The routes stay for this time after the end of the daemon.
    pub grace: Duration,
    /// Routes at most. Others are left out, with a warning.
    pub limit: usize,
}

impl Source<'_> {
    /// The import of a node.
    pub(super) fn import(&self, raw: &raw::Import) -> Result<Import> {
        let daemon = raw.daemon.as_ref();
        let most = Routes::ROUTES as i64;
        Ok(Import {
            table: self.table(&raw.table)?,
            daemon: daemon.map(|path| self.socket("node.import.daemon", path)).transpose()?,
            grace: self.grace(raw)?,
            limit: self.number("node.import.limit", &raw.limit, 1..=most, most)? as usize,
        })
    }

    fn table(&self, raw: &toml::Spanned<i64>) -> Result<u32> {
        let table = *raw.get_ref();
        let allowed = match u32::try_from(table) {
            Ok(1..) if !KERNEL_TABLES.contains(&table) => return Ok(table as u32),
            Ok(1..) => {
                "tables 253 to 255 (default, main, local) have the machine's own routes; let the \
                 daemon export to a table that nothing else uses, like 100"
            }
            _ => "1 to 252 and 256 to 4294967295 are allowed",
        };
        Err(self.error(raw.span(), format!("node.import.table = {table}: {allowed}")))
    }

    fn grace(&self, raw: &raw::Import) -> Result<Duration> {
        let Some(text) = &raw.grace else { return Ok(DEFAULT_GRACE) };
        if raw.daemon.is_none() {
            return self.wrong(
                "node.import.grace",
                text,
                "only beside `daemon`, whose end begins it",
            );
        }
        match humantime::parse_duration(text.get_ref()) {
            Ok(time) if time <= GRACE => Ok(time),
            _ => self.wrong("node.import.grace", text, "0s to 1h, with a unit"),
        }
    }
}
