//! The memory of scans whose clients read slowly.

use std::pin::Pin;

use allocation_counter::measure;
use courser::service::Stream;
use courser_example_kv::{Kv, Store};
use futures::StreamExt;
use futures::executor::block_on;

const READERS: usize = 30;

type Scan<'a> = Pin<Box<dyn Stream<Item = (String, Vec<u8>)> + 'a>>;

/// Bytes that readers hold after their first entry of `count` entries of `size` bytes.
fn held(count: usize, size: usize) -> u64 {
    let store = Store::default();
    for n in 0..count {
        block_on(store.put(format!("{n:06}"), vec![1; size])).expect("room");
    }
    let mut scans: Vec<Scan<'_>> = Vec::new();
    let allocated = measure(|| {
        for _ in 0..READERS {
            let mut scan: Scan<'_> = Box::pin(store.scan(String::new()));
            assert_eq!(block_on(scan.next()).map(|(_, value)| value.len()), Some(size));
            scans.push(scan);
        }
    });
    for scan in scans {
        assert_eq!(block_on(scan.count()), count - 1, "the others come too");
    }
    allocated.bytes_max
}

#[test]
fn slow_readers_hold_a_page_of_bytes_each_whatever_the_values_are() {
    // Besides the page there is the entry that is read.
    for (count, size, page) in [(40, 1_000_000, 1_100_000), (5_000, 100, 150_000), (3, 0, 5_000)] {
        let bytes = held(count, size);
        assert!(bytes <= (READERS * page) as u64, "{bytes} bytes for {count} values of {size}");
    }
}
