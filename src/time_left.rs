//! A time that is still to pass, in a sentence of ours.

use std::fmt;
use std::time::Duration;

/// A time in tenths of a second, rounded up: nobody who waits as long as it says is a moment early.
pub(crate) struct TimeLeft(pub(crate) Duration);

impl fmt::Display for TimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.as_nanos().div_ceil(100_000_000);
        write!(f, "{}.{} s", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_left_is_told_in_tenths_and_rounded_up() {
        let told = |nanos| TimeLeft(Duration::from_nanos(nanos)).to_string();
        assert_eq!([told(0), told(1), told(100_000_000)], ["0.0 s", "0.1 s", "0.1 s"]);
        assert_eq!([told(1_049_000_000), told(60_000_000_000)], ["1.1 s", "60.0 s"]);
        assert_eq!(TimeLeft(Duration::MAX).to_string(), "18446744073709551616.0 s");
    }
}
