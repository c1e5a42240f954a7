//! Sizes and arrival times of web-search flows.
//!
//! The distribution is that of a production cluster for web search in the DCTCP paper (Alizadeh et
//! al., SIGCOMM '10, Figure 4), which shows it as a curve; these are the points of the authors'
//! later simulations (pFabric, SIGCOMM '13, workload `CDF_dctcp.tcl` for ns-2) and of most others
//! since, in packets of 1,460 bytes, with straight lines between them.

use crate::Rng;

/// Bytes of a packet of the table.
const PACKET: u64 = 1_460;

/// (packets, flows of at most that size, per hundred). Fifteen in a hundred have exactly 6.
const CDF: [(u64, u64); 11] = [
    (6, 15),
    (13, 20),
    (19, 30),
    (33, 40),
    (53, 53),
    (133, 60),
    (667, 70),
    (1_333, 80),
    (3_333, 90),
    (6_667, 97),
    (20_000, 100),
];

/// The largest flow, bytes.
pub const MAX_BYTES: u64 = 20_000 * PACKET;

/// Mean of all flows, bytes: about 1.67 MB.
pub fn mean_bytes() -> u64 {
    // Twice the mean of a line is the sum of its ends; in hundredths.
    let (first, first_share) = CDF[0];
    let lines = CDF.windows(2).map(|w| (w[0].0 + w[1].0) * (w[1].1 - w[0].1));
    (2 * first * first_share + lines.sum::<u64>()) * PACKET / 200
}

/// Draws a flow, bytes.
pub fn draw(rng: &mut Rng) -> u64 {
    const UNIT: u64 = 1 << 32;
    let at = rng.below(100 * UNIT);
    let (mut low, mut low_share) = (CDF[0].0, 0);
    for (high, share) in CDF {
        if at < share * UNIT {
            let part = u128::from(at - low_share * UNIT) * u128::from((high - low) * PACKET);
            return low * PACKET + (part / u128::from((share - low_share) * UNIT)) as u64;
        }
        (low, low_share) = (high, share);
    }
    MAX_BYTES
}

/// Draws the time to the next flow, ns, for independent arrivals with this mean interval.
pub fn gap_ns(rng: &mut Rng, mean_ns: f64) -> f64 {
    // 53 bits, and never 0, whose logarithm is infinite. `libm` has the same digits everywhere.
    let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -libm::log(uniform) * mean_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_mean_of_many_draws_are_those_of_the_table() {
        let mut rng = Rng::new(1);
        let mut sizes: Vec<_> = (0..200_000).map(|_| draw(&mut rng)).collect();
        sizes.sort_unstable();
        for (packets, share) in CDF {
            let below = sizes.partition_point(|&bytes| bytes <= packets * PACKET);
            let seen = below as f64 / sizes.len() as f64 * 100.0;
            assert!((seen - share as f64).abs() < 0.5, "{packets}: {seen} instead of {share}");
        }
        assert_eq!((sizes[0], sizes[20_000]), (6 * PACKET, 6 * PACKET));
        assert!(sizes[sizes.len() - 1] <= MAX_BYTES);
        let mean = sizes.iter().sum::<u64>() / sizes.len() as u64;
        assert!(mean.abs_diff(mean_bytes()) < mean_bytes() / 50, "{mean}");
        // The mean that simulations with this table state: 1,138 packets.
        assert!(mean_bytes().abs_diff(1_138 * PACKET) < 5 * PACKET, "{}", mean_bytes() / PACKET);
    }

    #[test]
    fn gaps_have_their_mean_and_no_memory() {
        let mut rng = Rng::new(2);
        let gaps: Vec<_> = (0..100_000).map(|_| gap_ns(&mut rng, 1_000.0)).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let long = gaps.iter().filter(|&&gap| gap > 2_000.0).count() as f64 / gaps.len() as f64;
        assert!((985.0..1_015.0).contains(&mean), "{mean}");
        assert!((long - 0.1353).abs() < 0.005, "e^-2: {long}");
    }
}
