//! Seeds of a test that draws histories.

use std::env;
use std::ops::Range;

/// The seeds of a test, in order. Variables of the environment select others, to run more of them, parts of
/// them side by side, or one alone.
#[derive(Clone, Debug)]
pub struct Seeds {
    prefix: &'static str,
    /// The first seed without a variable.
    base: u64,
    range: Range<u64>,
}

impl Seeds {
    /// `count` seeds from `base` on. The variable `{prefix}_HISTORIES` is another count, and
    /// `{prefix}_FIRST` is added to `base`.
    ///
    /// # Panics
    /// A variable is not a number.
    pub fn from_env(prefix: &'static str, base: u64, count: u64) -> Seeds {
        let variable = |name: &str| {
            let text = env::var(format!("{prefix}_{name}")).ok()?;
            let number = text.parse::<u64>();
            Some(number.unwrap_or_else(|_| panic!("{prefix}_{name} is {text:?}; set a number")))
        };
        let first = base + variable("FIRST").unwrap_or(0);
        let count = variable("HISTORIES").unwrap_or(count);
        Seeds { prefix, base, range: first..first + count }
    }

    /// Their number.
    pub fn count(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The variables with which the test has only this seed.
    pub fn only(&self, seed: u64) -> String {
        let (prefix, first) = (self.prefix, seed - self.base);
        format!("{prefix}_FIRST={first} {prefix}_HISTORIES=1")
    }
}

impl IntoIterator for &Seeds {
    type Item = u64;
    type IntoIter = Range<u64>;

    fn into_iter(self) -> Range<u64> {
        self.range.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_named_by_its_variables() {
        let seeds = Seeds::from_env("COURSER_NO_SUCH_TEST", 1_000, 3);
        assert_eq!((seeds.count(), (&seeds).into_iter().collect()), (3, vec![1_000, 1_001, 1_002]));
        let expected = "COURSER_NO_SUCH_TEST_FIRST=2 COURSER_NO_SUCH_TEST_HISTORIES=1";
        assert_eq!(seeds.only(1_002), expected);
    }
}
