//! Copies of short messages.

/// Copies `data` to `out`, of equal length. 16 to 64 bytes take moves that may overlap: half
/// the instructions of a call of `memcpy`.
///
/// # Panics
/// The lengths differ.
#[inline]
pub fn copy_short(out: &mut [u8], data: &[u8]) {
    if data.len() <= 32 {
        if !copy_ends::<16>(out, data) {
            out.copy_from_slice(data);
        }
    } else if data.len() > 64 || !copy_ends::<32>(out, data) {
        out.copy_from_slice(data);
    }
}

/// Copies the first and the last `N` bytes. `false`: there are fewer, or the lengths differ.
#[inline]
fn copy_ends<const N: usize>(out: &mut [u8], data: &[u8]) -> bool {
    if let (Some(first), Some(last)) = (data.first_chunk::<N>(), data.last_chunk::<N>())
        && out.len() == data.len()
        && let Some(to) = out.first_chunk_mut::<N>()
    {
        *to = *first;
        if let Some(to) = out.last_chunk_mut::<N>() {
            *to = *last;
        }
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_of_any_length_are_copied() {
        let data: Vec<u8> = (1..=200).collect();
        for len in 0..=data.len() {
            let mut out = vec![0; len];
            copy_short(&mut out, &data[..len]);
            assert_eq!(out, data[..len]);
        }
    }

    #[test]
    #[should_panic(expected = "length")]
    fn slices_of_different_lengths_are_refused() {
        copy_short(&mut [0; 20], &[1; 21]);
    }
}
