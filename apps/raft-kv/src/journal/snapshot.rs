//! Snapshots as files.

use std::sync::Arc;

use courser_disk::Storage;

use super::files::{JournalError, disk, number, patiently, snapshot_name};
use super::frame::{Checksum, checksum};
use crate::store::{Image, Store};

const MAGIC: [u8; 8] = *b"rkvsnap1";
/// Magic, length, checksum.
const HEADER: usize = 24;
/// Bytes that are written and synced at a time, so that frames of the log wait for no more than these.
const CHUNK: usize = 4 << 20;
const NEW: &str = "snapshot.new";

fn header(len: [u8; 8], checksum: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&len);
    header[16..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Makes a snapshot durable, with its name. Each poll copies and sums 4 MiB at most.
///
/// # Errors
/// The disk's.
pub async fn save(
    storage: Arc<dyn Storage>,
    image: Image,
    pause: &impl AsyncFn(),
) -> Result<(), JournalError> {
    let file = storage.create(NEW).map_err(disk(NEW))?;
    let len = (image.bytes.len() as u64).to_le_bytes();
    let mut sum = Checksum::default();
    sum.add(&len);
    let mut at = HEADER as u64;
    for chunk in image.bytes.chunks(CHUNK) {
        sum.add(chunk);
        let written = patiently(pause, || file.write_and_sync(at, chunk.to_vec())).await;
        written.map_err(disk(NEW))?;
        at += chunk.len() as u64;
    }
    let header = header(len, sum.end());
    let written = patiently(pause, || file.write_and_sync(0, header.to_vec())).await;
    written.map_err(disk(NEW))?;
    storage.rename(NEW, &snapshot_name(image.at.0)).map_err(disk(NEW))?;
    patiently(pause, || storage.sync_dir()).await.map_err(disk("the directory"))
}

/// [`save`], for the set-up.
pub(super) fn save_blocking(storage: &dyn Storage, image: &Image) -> Result<(), JournalError> {
    let file = storage.create(NEW).map_err(disk(NEW))?;
    let len = (image.bytes.len() as u64).to_le_bytes();
    let header = header(len, checksum(&[&len, &image.bytes]));
    file.write_at(0, &header).map_err(disk(NEW))?;
    file.write_at(HEADER as u64, &image.bytes).map_err(disk(NEW))?;
    file.sync_blocking().map_err(disk(NEW))?;
    storage.rename(NEW, &snapshot_name(image.at.0)).map_err(disk(NEW))?;
    storage.sync_dir_blocking().map_err(disk("the directory"))
}

/// The contents of a file.
pub(super) fn contents(storage: &dyn Storage, name: &str) -> Result<Vec<u8>, JournalError> {
    let file = storage.open(name).map_err(disk(name))?;
    let len = file.len().map_err(disk(name))?;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let read = file.read_at(0, &mut bytes).map_err(disk(name))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The last snapshot; `None`: there is none.
pub(super) fn load(
    storage: &dyn Storage,
    names: &[String],
) -> Result<Option<(Store, Image)>, JournalError> {
    let index = names.iter().filter_map(|name| number(name, "snapshot-")).max();
    let Some(index) = index else { return Ok(None) };
    let name = snapshot_name(index);
    let corrupt = |at, detail: &str| {
        let detail = detail.to_owned().into();
        JournalError::Corrupt { file: name.clone(), at, detail }
    };
    let mut bytes = contents(storage, &name)?;
    if bytes.len() < HEADER || bytes[..8] != MAGIC {
        return Err(corrupt(0, "no snapshot begins there"));
    }
    let data = bytes.split_off(HEADER);
    let (len, sum) = bytes[8..].split_at(8);
    if len != (data.len() as u64).to_le_bytes() || sum != checksum(&[len, &data]).to_le_bytes() {
        return Err(corrupt(HEADER as u64, "the checksum of the snapshot"));
    }
    let store = Store::from_image(&data).map_err(|error| corrupt(HEADER as u64, &error.0))?;
    if store.applied().0 != index {
        return Err(corrupt(HEADER as u64, "a snapshot under another name"));
    }
    let (at, membership) = (store.applied(), store.membership().clone());
    Ok(Some((store, Image { at, membership, bytes: Arc::new(data) })))
}
