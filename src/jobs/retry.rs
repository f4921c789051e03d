//! How long to wait before the next attempt.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{AdmitError, ConfigError};
use crate::upstream::{FailureKind, UpstreamFailure};

/// How often a failed job is run again, and how long it waits in between, holding nothing.
///
/// Only failures of an upstream that are [worth retrying](FailureKind::is_retryable) are, and with
/// [`refusals`](Self::refusals) what a limit refuses until an instant it names. Where the upstream said
/// when to come back, that is when. Else the wait is drawn uniformly, so that jobs which failed
/// together do not come back together, and grows with the attempts.
///
/// # Examples
///
/// ```
/// use admit::RetryPolicy;
///
/// let patient = RetryPolicy { max_retries: 10, ..RetryPolicy::default() };
/// assert!(patient.validate().is_ok());
/// assert_eq!(RetryPolicy::none().max_retries, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RetryPolicy {
    /// How many attempts after the first. Default 3.
    pub max_retries: u32,
    /// The first wait after a rate limit or a stray fault. Default 5 s to 30 s.
    pub usual: RangeInclusive<Duration>,
    /// The first wait after an overload. Default 15 s to 90 s: an upstream that has no room for
    /// anybody needs longer.
    pub overload: RangeInclusive<Duration>,
    /// The wait is multiplied by the number of attempts so far, at most by this. Default 10.
    pub max_multiplier: u32,
    /// The longest wait that is drawn after a failure. Default 300 s. The range a wait is drawn from ends
    /// here at the latest, and begins the earlier for it, down to its first beginning; where this is
    /// sooner still, everybody waits just so long. A wait the upstream asked for is not cut: it would
    /// refuse an earlier attempt.
    pub max_wait: Duration,
    /// Whether a job that a limit refuses for now, as an open circuit does, asks again: from the
    /// instant the refusal names, or after `max_wait` where that is sooner, spread over as long as
    /// `usual` is wide, but no longer than `max_wait`. It is an attempt like any other. Default false:
    /// the caller is told at once.
    pub refusals: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            max_retries: 3,
            usual: seconds(5)..=seconds(30),
            overload: seconds(15)..=seconds(90),
            max_multiplier: 10,
            max_wait: seconds(300),
            refusals: false,
        }
    }
}

impl RetryPolicy {
    /// No other attempt, whatever happens.
    #[must_use]
    pub fn none() -> Self {
        Self { max_retries: 0, ..Self::default() }
    }

    /// Whether waits can be drawn by it.
    ///
    /// # Errors
    ///
    /// Names a range that ends before it begins, or a multiplier of zero.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, range) in [("usual", &self.usual), ("overload", &self.overload)] {
            if range.is_empty() {
                let value = format!("{:?} to {:?}", range.start(), range.end());
                return Err(ConfigError::new(field, value, "must not end before it begins"));
            }
        }
        if self.max_multiplier == 0 {
            return Err(ConfigError::new("max_multiplier", 0, "must be at least 1"));
        }
        Ok(())
    }

    /// The wait after an attempt was refused, if there is to be another.
    pub(super) fn wait_out(
        &self,
        refused: &AdmitError,
        now: Instant,
        draw: impl FnOnce() -> f64,
    ) -> Option<Duration> {
        let AdmitError::Refused { refusal, .. } = refused else { return None };
        let until = refusal.retry_instant().filter(|_| self.refusals)?;
        let first = until.saturating_duration_since(now).min(self.max_wait);
        // Whoever comes first may be a circuit's one probe; the rest would only be refused again.
        let spread = width(&self.usual).min(self.max_wait);
        Some(drawn(&(first..=first.saturating_add(spread)), draw()))
    }

    /// The wait after the `attempt`th attempt (from 1) failed; `draw` is a number in [0, 1).
    pub(super) fn wait(&self, failure: &UpstreamFailure, attempt: u32, draw: f64) -> Duration {
        if let Some(asked) = failure.retry_after {
            return asked;
        }
        let range =
            if failure.kind == FailureKind::Overload { &self.overload } else { &self.usual };
        // A job's own policy is not validated: one without a multiplier must not retry at once.
        let times = attempt.min(self.max_multiplier.max(1));
        let (first, width) = (*range.start(), width(range));
        let last = first.saturating_add(width).saturating_mul(times).min(self.max_wait);
        // Drawn from what the longest wait leaves, and not cut to it: all who drew more would come back
        // together. Where it leaves less than the first range was wide, it begins earlier.
        let widest = last.saturating_sub(width).max(first);
        drawn(&(first.saturating_mul(times).min(widest).min(last)..=last), draw)
    }
}

fn width(range: &RangeInclusive<Duration>) -> Duration {
    range.end().saturating_sub(*range.start())
}

fn drawn(range: &RangeInclusive<Duration>, draw: f64) -> Duration {
    range.start().saturating_add(width(range).mul_f64(draw.clamp(0.0, 1.0 - f64::EPSILON)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Refusal;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_waited_out_only_where_it_says_how_long_and_the_policy_that_it_counts() {
        let now = Instant::now();
        let refused = |refusal| AdmitError::Refused { account: "service".into(), refusal };
        let until = |seconds| refused(Refusal::new("shut").retry_at(now + secs(seconds)));
        let patient = RetryPolicy { refusals: true, ..RetryPolicy::default() };
        let wait = |error: &AdmitError, draw| patient.wait_out(error, now, || draw);
        assert_eq!(wait(&until(20), 0.0), Some(secs(20)));
        assert_eq!(wait(&until(20), 0.5), Some(Duration::from_millis(32_500)));
        assert_eq!(wait(&until(3_600), 0.0), Some(secs(300)), "it may end before it says");
        assert_eq!(patient.wait_out(&until(20), now + secs(30), || 0.0), Some(Duration::ZERO));
        assert_eq!(wait(&refused(Refusal::new("never")), 0.0), None);
        assert_eq!(wait(&AdmitError::ShutDown, 0.0), None);
        assert_eq!(RetryPolicy::default().wait_out(&until(20), now, || 0.0), None);
        // A range without end is as good as the longest wait: after a failure, and here.
        let wide = RetryPolicy { usual: Duration::ZERO..=Duration::MAX, ..patient };
        let most = wide.wait_out(&until(20), now, || 1.0).unwrap();
        assert!(most > secs(319) && most <= secs(320), "{most:?}");
    }

    #[test]
    fn a_wait_lies_in_its_kinds_range_times_the_attempts() {
        let policy = RetryPolicy::default();
        let limited = UpstreamFailure::status(429, "m", "");
        let overloaded = UpstreamFailure::status(529, "m", "");
        let stray = UpstreamFailure::no_response("m", "");
        for (failure, attempt, draw, expected) in [
            (&limited, 1, 0.0, 5_000),
            (&limited, 1, 0.5, 17_500),
            (&stray, 2, 0.0, 10_000),
            (&stray, 3, 1.0, 90_000),
            (&overloaded, 1, 0.0, 15_000),
            (&overloaded, 2, 1.0, 180_000),
            (&overloaded, 4, 1.0, 300_000),
            // What is drawn from ends at the longest wait.
            (&overloaded, 4, 0.5, 180_000),
            (&overloaded, 10, 0.0, 150_000),
            (&overloaded, 10, 0.5, 225_000),
            (&limited, 10, 0.0, 50_000),
            (&limited, 1_000_000, 0.0, 50_000),
        ] {
            let wait = policy.wait(failure, attempt, draw);
            assert_eq!(wait, Duration::from_millis(expected), "{failure} at attempt {attempt}");
        }
    }

    #[test]
    fn the_longest_wait_leaves_as_wide_a_range_as_the_first() {
        let limited = UpstreamFailure::status(429, "m", "");
        for (usual, max_wait, attempt, least, most) in [
            (60..=90, 300, 10, 270, 300),
            (60..=90, 80, 1, 60, 80),
            (60..=90, 80, 10, 60, 80),
            (60..=90, 20, 3, 20, 20),
            (60..=90, 0, 3, 0, 0),
            (7..=7, 30, 9, 30, 30),
        ] {
            let usual = secs(*usual.start())..=secs(*usual.end());
            let policy = RetryPolicy { usual, max_wait: secs(max_wait), ..RetryPolicy::default() };
            let waits = [0.0, 1.0].map(|draw| policy.wait(&limited, attempt, draw));
            assert_eq!(waits, [secs(least), secs(most)], "{policy:?}");
        }
    }

    #[test]
    fn an_upstream_that_says_when_is_taken_at_its_word() {
        let policy = RetryPolicy::default();
        for after in [secs(0), secs(7), secs(3_600)] {
            let failure = UpstreamFailure::status(529, "m", "").with_retry_after(after);
            assert_eq!(policy.wait(&failure, 5, 0.7), after);
        }
    }

    #[test]
    fn a_policy_that_cannot_draw_is_refused() {
        let backwards = RetryPolicy { usual: secs(2)..=secs(1), ..RetryPolicy::default() };
        assert_eq!(
            backwards.validate().unwrap_err().to_string(),
            "usual is 2s to 1s, but must not end before it begins"
        );
        let nothing = RetryPolicy { max_multiplier: 0, ..RetryPolicy::default() };
        assert_eq!(nothing.validate().unwrap_err().field, "max_multiplier");
        // As a job's own, where nobody asks: the least is waited, and never nothing.
        let failure = UpstreamFailure::status(429, "m", "");
        assert_eq!(nothing.wait(&failure, 3, 0.0), secs(5));
        assert_eq!(backwards.wait(&failure, 1, 0.9), secs(2));
    }

    #[test]
    fn the_longest_ranges_do_not_overflow() {
        let policy = RetryPolicy {
            usual: Duration::ZERO..=Duration::MAX,
            max_wait: Duration::MAX,
            ..RetryPolicy::default()
        };
        let failure = UpstreamFailure::status(429, "m", "");
        assert!(policy.wait(&failure, 10, 0.999) > secs(1));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_policy_as_data_needs_only_what_differs_and_refuses_what_it_does_not_know() {
        let policy: RetryPolicy = serde_json::from_str(r#"{"max_retries": 9}"#).unwrap();
        assert_eq!(policy, RetryPolicy { max_retries: 9, ..RetryPolicy::default() });
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), policy);
        assert!(serde_json::from_str::<RetryPolicy>(r#"{"retries": 9}"#).is_err());
    }
}
