//! The rate limit of ICMP messages.

#[cfg(test)]
mod tests;

/// A token bucket: lets through a number of messages per second, and bursts of a number of them.
///
/// The credit is counted in billionths of a message, of which each nanosecond adds as many as
/// messages are allowed per second: no fraction is ever lost. If time goes back, the credit stays,
/// and grows again from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limiter {
    per_second: u64,
    most: u64,
    credit: u64,
    then: u64,
}

/// The credit that a message takes.
const MESSAGE: u64 = 1_000_000_000;

impl Limiter {
    /// A limiter that starts with the credit of a burst. With a rate of 0 it lets nothing through.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let most = if per_second == 0 { 0 } else { u64::from(burst) * MESSAGE };
        Limiter { per_second: per_second.into(), most, credit: most, then: 0 }
    }

    /// Takes the credit of one message. False if there is not enough.
    pub fn allow(&mut self, now_ns: u64) -> bool {
        let elapsed = now_ns.saturating_sub(self.then);
        self.then = now_ns;
        let earned = elapsed.saturating_mul(self.per_second);
        self.credit = self.credit.saturating_add(earned).min(self.most);
        match self.credit.checked_sub(MESSAGE) {
            Some(rest) => {
                self.credit = rest;
                true
            }
            None => false,
        }
    }
}
