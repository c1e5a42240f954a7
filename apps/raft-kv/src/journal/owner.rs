//! The file that names the node and the cluster of a directory.

use courser_disk::Storage;
use serde::{Deserialize, Serialize};

use super::files::{JournalError, disk, number, patiently};
use super::frame::checksum;
use super::snapshot;
use crate::store::Identity;

pub(super) const OWNER: &str = "owner";
const NEW: &str = "owner.new";
/// It exists while the files of a new directory are written: they do not count, and nothing was
/// promised by them.
const FOUNDING: &str = "founding";
const MAGIC: [u8; 8] = *b"rkvowner";
/// Magic, checksum.
const HEADER: usize = 16;

/// The user of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The node's number.
    pub id: u64,
    /// Name of the cluster.
    pub name: String,
    /// The cluster, as far as it is known.
    pub identity: Identity,
    /// A random number of the directory. It counts when the directory is founded.
    pub nonce: u64,
}

impl Owner {
    pub(super) fn encode(&self) -> Vec<u8> {
        let data = postcard::to_stdvec(self).expect("an owner is data");
        [&MAGIC[..], &checksum(&[&data]).to_le_bytes(), &data].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Owner> {
        let (head, data) = bytes.split_at_checked(HEADER)?;
        let is_intact = head[..8] == MAGIC && head[8..] == checksum(&[data]).to_le_bytes();
        match postcard::take_from_bytes(data) {
            Ok((owner, [])) if is_intact => Some(owner),
            _ => None,
        }
    }

    /// The owner of a directory with these files, which has to be this one. `None`: the directory is
    /// empty, or its foundation was interrupted, and its files are removed.
    pub(super) fn load(
        &self,
        storage: &dyn Storage,
        names: &[String],
    ) -> Result<Option<Owner>, JournalError> {
        let has = |name: &str| names.iter().any(|found| found == name);
        let has_numbered = |prefix| names.iter().any(|name| number(name, prefix).is_some());
        let (has_log, has_snapshot) = (has_numbered("log-"), has_numbered("snapshot-"));
        let has_owner = has(OWNER);
        if has(FOUNDING) {
            let is_first = |name: &&String| {
                *name == OWNER || number(name, "log-").or(number(name, "snapshot-")).is_some()
            };
            for name in names.iter().filter(is_first) {
                storage.remove(name).map_err(disk(name))?;
            }
            storage.sync_dir_blocking().map_err(disk("the directory"))?;
            Owner::mark(storage, false)?;
            return Ok(None);
        }
        if !has_owner && !has_log && !has_snapshot {
            return Ok(None);
        }
        for (is_there, file) in [(has_owner, "file `owner`"), (has_log, "log")] {
            if !is_there {
                return Err(JournalError::Missing(file));
            }
        }
        let corrupt =
            JournalError::Corrupt { file: OWNER.to_owned(), at: 0, detail: "its checksum".into() };
        let found = Owner::decode(&snapshot::contents(storage, OWNER)?).ok_or(corrupt)?;
        // A founder begins with a snapshot, and another node learns the cluster from one.
        if !has_snapshot && found.identity != Identity::default() {
            return Err(JournalError::Missing("snapshot"));
        }
        if (found.id, &found.name) != (self.id, &self.name) {
            return Err(JournalError::Owner { id: found.id, name: found.name });
        }
        Ok(Some(found))
    }

    /// Writes the file in place of the earlier one.
    pub(super) async fn save(
        &self,
        storage: &dyn Storage,
        pause: &impl AsyncFn(),
    ) -> Result<(), JournalError> {
        let file = storage.create(NEW).map_err(disk(NEW))?;
        let written = patiently(pause, || file.write_and_sync(0, self.encode())).await;
        written.map_err(disk(NEW))?;
        storage.rename(NEW, OWNER).map_err(disk(NEW))?;
        patiently(pause, || storage.sync_dir()).await.map_err(disk("the directory"))
    }

    /// The first and the last step of a foundation.
    pub(super) fn mark(storage: &dyn Storage, begins: bool) -> Result<(), JournalError> {
        if begins {
            storage.create(FOUNDING).map_err(disk(FOUNDING))?;
        } else {
            storage.remove(FOUNDING).map_err(disk(FOUNDING))?;
        }
        storage.sync_dir_blocking().map_err(disk("the directory"))
    }
}
