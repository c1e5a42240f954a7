//! Mixtures of operations.

use std::fmt;
use std::str::FromStr;

/// Kinds of operations, in the order of [`Mix`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Reads a value.
    Get,
    /// Sums the values of 128 successors.
    Scan,
    /// Stores a value.
    Put,
    /// Removes a key.
    Delete,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Get, Kind::Scan, Kind::Put, Kind::Delete];

    /// Its name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Scan => "scan",
            Kind::Put => "put",
            Kind::Delete => "delete",
        }
    }
}

/// Shares of the kinds, per cent; they add up to 100.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix([f64; 4]);

impl Mix {
    /// The mix of the paper: 99 % GET, 1 % SCAN.
    pub const PAPER: Mix = Mix([99.0, 1.0, 0.0, 0.0]);

    /// The share of a kind, per cent.
    pub fn share(&self, kind: Kind) -> f64 {
        self.0[kind as usize]
    }

    /// The kind of an operation, by random bits.
    pub fn pick(&self, random: u64) -> Kind {
        // The upper 53 bits as a fraction.
        let mut left = (random >> 11) as f64 / (1_u64 << 53) as f64 * 100.0;
        for kind in Kind::ALL {
            left -= self.share(kind);
            if left < 0.0 {
                return kind;
            }
        }
        // Rounding.
        Kind::Get
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut shares = [0.0; 4];
        for part in text.split(',') {
            let wrong = || format!("{part:?} is none of get=, scan=, put=, delete= with per cent");
            let (name, share) = part.split_once('=').ok_or_else(wrong)?;
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(wrong)?;
            let share: f64 = share.parse().map_err(|_| wrong())?;
            if !(0.0..=100.0).contains(&share) {
                return Err(wrong());
            }
            shares[kind as usize] = share;
        }
        let sum: f64 = shares.iter().sum();
        if (sum - 100.0).abs() > 1e-6 {
            return Err(format!("the shares add up to {sum}; write shares of 100 per cent"));
        }
        Ok(Mix(shares))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = Kind::ALL.into_iter().filter(|kind| self.share(*kind) > 0.0);
        for (at, kind) in used.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", kind.name(), self.share(kind))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_written() {
        let mix: Mix = "get=99,scan=1".parse().unwrap();
        assert_eq!((mix, mix.to_string().as_str()), (Mix::PAPER, "get=99,scan=1"));
        let mix: Mix = "put=12.5,delete=12.5,get=75".parse().unwrap();
        assert_eq!(mix.to_string(), "get=75,put=12.5,delete=12.5");
        for wrong in ["", "get", "get=99", "get=x", "read=100", "get=150,scan=-50", "get=nan"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn kinds_are_drawn_by_their_shares() {
        let mix: Mix = "get=50,scan=1,put=25,delete=24".parse().unwrap();
        let mut counts = [0; 4];
        let mut rng = courser_sim::Rng::new(1);
        (0..100_000).for_each(|_| counts[mix.pick(rng.next_u64()) as usize] += 1);
        for kind in Kind::ALL {
            let (count, wanted) = (f64::from(counts[kind as usize]), mix.share(kind) * 1_000.0);
            assert!((count - wanted).abs() < 0.1 * wanted + 10.0, "{kind:?}: {count}");
        }
    }
}
