//! Latencies by placement.

use courser_kit::latency::{Latency, Pooled, Tail};

use super::placement::{Placement, Tag};

/// Latencies of all windows by placement.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    near: Pooled,
    far: Pooled,
    rest: Pooled,
}

impl Pool {
    /// Empty histograms.
    pub fn new() -> Self {
        Self::default()
    }

    fn at(&mut self, placement: Option<Placement>) -> &mut Pooled {
        match placement {
            Some(Placement::Near) => &mut self.near,
            Some(Placement::Far) => &mut self.far,
            None => &mut self.rest,
        }
    }

    /// Adds the window whose percentiles were taken last.
    pub fn add(&mut self, tag: Tag, latency: &Latency) {
        let placement = match tag {
            Tag::At(placement) => Some(placement),
            Tag::Mixed | Tag::Unprobed => None,
        };
        self.at(placement).add(latency);
    }

    /// Percentiles of the windows of a placement, or of those without one (`None`).
    pub fn tail(&mut self, placement: Option<Placement>) -> Option<Tail> {
        self.at(placement).tail()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_pooled_by_placement() {
        let (mut latency, mut pool) = (Latency::new(), Pool::new());
        for window in 0..10 {
            for ns in 1..=1000 {
                latency.record(window * 1000 + ns);
            }
            latency.take();
            let tag = if window < 9 { Tag::At(Placement::Near) } else { Tag::Mixed };
            pool.add(tag, &latency);
        }
        let tail = pool.tail(Some(Placement::Near)).expect("nine windows");
        assert_eq!(tail.samples, 9_000);
        assert!((8_990..=9_010).contains(&tail.p999_ns), "{tail:?}");
        assert_eq!(pool.tail(Some(Placement::Far)), None);
        assert_eq!(pool.tail(None).map(|t| t.samples), Some(1_000));
    }
}
