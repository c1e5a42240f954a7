//! Whether every method of the service does what it must, by a library's own client.

use anyhow::{Result, ensure};

use super::drive::{Failure, Library, key};
use crate::work::{request, value};

/// The largest value that a store takes.
const MAX_VALUE: usize = 64 << 10;

/// All methods. The store has what [`key`] and [`value`] say.
///
/// # Errors
/// The first that does not.
pub async fn all<L: Library>(kv: &L) -> Result<()> {
    absent(kv, "no such key").await?;
    absent(kv, "").await?;
    for size in [0, 1, 32, 1000, 9_000, MAX_VALUE] {
        let (key, bytes) = (format!("size-{size}"), request(size, size));
        // The second replaces the first.
        for bytes in [&request(size + 1, size), &bytes] {
            kv.put(&key, bytes.clone()).await.map_err(|f| unexpected("put", size, &f))?;
        }
        let answer = kv.get(&key).await.map_err(|f| unexpected("get", size, &f))?;
        ensure!(answer == bytes, "get of {size} bytes: {} other bytes", answer.len());
    }
    let refused = kv.put("size-large", vec![1; MAX_VALUE + 1]).await;
    ensure!(matches!(refused, Err(Failure::TooLarge)), "a value that is too large: {refused:?}");
    absent(kv, "size-large").await?;
    scans(kv).await
}

async fn absent<L: Library>(kv: &L, key: &str) -> Result<()> {
    let answer = kv.get(key).await;
    ensure!(matches!(answer, Err(Failure::NotFound)), "get of an absent key: {answer:?}");
    Ok(())
}

async fn scans<L: Library>(kv: &L) -> Result<()> {
    for (from, first) in [("key-", 0), (&*key(500), 500), ("key-000000000500+", 501)] {
        let entries = kv.scan(from).await.map_err(|f| unexpected("scan", first, &f))?;
        let of_keys = entries.iter().take_while(|(key, _)| key.starts_with("key-"));
        let mut expected = first;
        for (found, bytes) in of_keys {
            ensure!(*found == key(expected), "scan from {from}: {found} is not entry {expected}");
            ensure!(*bytes == value(found.as_bytes()), "scan from {from}: value of {found}");
            expected += 1;
        }
        ensure!(expected == super::drive::ENTRIES, "scan from {from} ended at entry {expected}");
        // Those of other tests follow.
        ensure!(entries.last().is_some_and(|(key, _)| key == "size-9000"), "the end of a scan");
    }
    let none = kv.scan("size-9000+").await.map_err(|f| unexpected("scan", 0, &f))?;
    ensure!(none.is_empty(), "a scan behind the last key has {} entries", none.len());
    Ok(())
}

fn unexpected(method: &str, size: usize, failure: &Failure) -> anyhow::Error {
    anyhow::anyhow!("{method} ({size}) failed: {failure}")
}
