//! The stand-in's own rate limiter: requests and tokens per minute, to the nanosecond.
//!
//! A provider does not run its caller's limiter, so nothing here is the crate's. Levels are whole
//! numbers of a sixty-billionth of a unit: a minute's budget times a nanosecond is one of those
//! exactly, so nothing is ever rounded.

use std::time::Duration;

use tokio::time::Instant;

/// Nanoseconds a minute, and the parts a unit is counted in.
const PARTS: i128 = 60_000_000_000;

/// Requests and tokens per minute of one model, enforced together.
#[derive(Debug)]
pub(crate) struct Meter {
    requests: Level,
    tokens: Level,
}

/// How a meter stands: what a provider's `x-ratelimit-*` headers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Of the requests.
    pub(crate) requests: Reading,
    /// Of the tokens.
    pub(crate) tokens: Reading,
}

/// One of the two budgets, as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The most there can be: a minute's worth.
    pub(crate) limit: u64,
    /// Whole units there are.
    pub(crate) remaining: u64,
    /// How long until the budget is full again.
    pub(crate) reset: Duration,
}

/// Why a request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It wants more tokens than a minute has.
    TooLarge { limit: u64 },
    /// It would fit later.
    Later {
        /// Which budget is short, the later one if both are.
        short: Budget,
        /// When it would fit, if nobody else asks.
        retry_after: Duration,
    },
}

/// Which of the two budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
}

impl Meter {
    /// A meter that starts full.
    pub(crate) const fn new(
        requests_per_minute: u64,
        tokens_per_minute: u64,
        now: Instant,
    ) -> Self {
        Self {
            requests: Level::new(requests_per_minute, now),
            tokens: Level::new(tokens_per_minute, now),
        }
    }

    /// Takes one request of `tokens`, both or neither.
    ///
    /// # Errors
    ///
    /// When either budget is short.
    pub(crate) fn take(&mut self, tokens: u64, now: Instant) -> Result<(), Refusal> {
        if tokens > self.tokens.limit {
            return Err(Refusal::TooLarge { limit: self.tokens.limit });
        }
        self.requests.advance(now);
        self.tokens.advance(now);
        let requests_in = self.requests.lacks(1);
        let tokens_in = self.tokens.lacks(tokens);
        let retry_after = requests_in.max(tokens_in);
        if !retry_after.is_zero() {
            let short = if tokens_in >= requests_in { Budget::Tokens } else { Budget::Requests };
            return Err(Refusal::Later { short, retry_after });
        }
        self.requests.parts -= PARTS;
        self.tokens.parts -= i128::from(tokens) * PARTS;
        Ok(())
    }

    /// Gives back what a request that took `taken` tokens has not used.
    pub(crate) fn settle(&mut self, taken: u64, used: u64, now: Instant) {
        self.tokens.advance(now);
        self.tokens.parts += (i128::from(taken) - i128::from(used)) * PARTS;
        self.tokens.parts = self.tokens.parts.min(self.tokens.full());
    }

    /// How both budgets stand.
    pub(crate) fn standing(&mut self, now: Instant) -> Standing {
        self.requests.advance(now);
        self.tokens.advance(now);
        Standing { requests: self.requests.reading(), tokens: self.tokens.reading() }
    }
}

#[derive(Debug)]
struct Level {
    limit: u64,
    /// What there is, in parts; never above `full`.
    parts: i128,
    read_at: Instant,
}

impl Level {
    const fn new(limit: u64, now: Instant) -> Self {
        Self { limit, parts: limit as i128 * PARTS, read_at: now }
    }

    const fn full(&self) -> i128 {
        self.limit as i128 * PARTS
    }

    /// In one nanosecond `limit` parts come in: a minute's worth of units in a minute.
    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.read_at);
        let inflow = i128::from(self.limit).saturating_mul(nanos(passed));
        self.parts = self.parts.saturating_add(inflow).min(self.full());
        self.read_at = self.read_at.max(now);
    }

    /// How long until there are `units`.
    fn lacks(&self, units: u64) -> Duration {
        self.until(i128::from(units) * PARTS)
    }

    fn until(&self, parts: i128) -> Duration {
        let missing = (parts - self.parts).max(0);
        let limit = i128::from(self.limit.max(1));
        let wait = (missing + limit - 1) / limit;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    fn reading(&self) -> Reading {
        let remaining = u64::try_from(self.parts / PARTS).unwrap_or(0);
        Reading { limit: self.limit, remaining, reset: self.until(self.full()) }
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn later(short: Budget, retry_after: Duration) -> Result<(), Refusal> {
        Err(Refusal::Later { short, retry_after })
    }

    #[test]
    fn tokens_come_back_with_the_clock_to_the_nanosecond() {
        let start = Instant::now();
        let mut meter = Meter::new(1_000, 600, start);
        assert_eq!(meter.take(600, start), Ok(()));
        // Ten tokens a second: seven of them after 700 ms and not a nanosecond before.
        let almost = start + Duration::from_nanos(699_999_999);
        assert_eq!(meter.take(7, almost), later(Budget::Tokens, Duration::from_nanos(1)));
        assert_eq!(meter.take(7, start + Duration::from_millis(700)), Ok(()));
    }

    #[test]
    fn requests_are_limited_with_no_regard_to_tokens() {
        let start = Instant::now();
        let mut meter = Meter::new(2, 1_000_000, start);
        assert_eq!(meter.take(1, start), Ok(()));
        assert_eq!(meter.take(1, start), Ok(()));
        assert_eq!(meter.take(1, start), later(Budget::Requests, 30 * SECOND));
        assert_eq!(meter.take(1, start + 30 * SECOND), Ok(()));
    }

    #[test]
    fn a_refused_request_takes_nothing_of_either() {
        let start = Instant::now();
        let mut meter = Meter::new(10, 100, start);
        assert_eq!(meter.take(60, start), Ok(()));
        let before = meter.standing(start);
        assert_eq!(meter.take(50, start), later(Budget::Tokens, 6 * SECOND));
        assert_eq!(meter.standing(start), before);
    }

    #[test]
    fn the_later_of_the_two_waits_is_the_one_that_is_told() {
        let start = Instant::now();
        let mut meter = Meter::new(1, 60, start);
        assert_eq!(meter.take(60, start), Ok(()));
        assert_eq!(meter.take(10, start), later(Budget::Requests, 60 * SECOND));
        let mut meter = Meter::new(60, 60, start);
        assert_eq!(meter.take(60, start), Ok(()));
        assert_eq!(meter.take(10, start), later(Budget::Tokens, 10 * SECOND));
    }

    #[test]
    fn what_can_never_fit_is_no_matter_of_waiting() {
        let start = Instant::now();
        let mut meter = Meter::new(10, 100, start);
        assert_eq!(meter.take(101, start), Err(Refusal::TooLarge { limit: 100 }));
        assert_eq!(meter.standing(start).requests.remaining, 10);
    }

    #[test]
    fn unused_tokens_come_back_and_never_more_than_the_budget() {
        let start = Instant::now();
        let mut meter = Meter::new(10, 100, start);
        assert_eq!(meter.take(80, start), Ok(()));
        meter.settle(80, 30, start);
        assert_eq!(meter.standing(start).tokens.remaining, 70);
        assert_eq!(meter.standing(start).tokens.reset, 18 * SECOND);
        meter.settle(80, 0, start);
        let full = Reading { limit: 100, remaining: 100, reset: Duration::ZERO };
        assert_eq!(meter.standing(start).tokens, full);
    }

    #[test]
    fn in_any_span_no_more_than_the_budget_and_the_inflow_gets_in() {
        let start = Instant::now();
        let mut meter = Meter::new(1_000_000, 7_919, start);
        let mut now = start;
        let mut taken = 0_u64;
        // Asks at odd instants for odd amounts, always more than flows in.
        for step in 0..20_000_u64 {
            now += Duration::from_nanos(7_000_003 + step * 31);
            let wanted = 1 + step % 97;
            if meter.take(wanted, now).is_ok() {
                taken += wanted;
            }
            let inflow = 7_919 * (now - start).as_nanos() / 60_000_000_000;
            assert!(u128::from(taken) <= 7_919 + inflow, "step {step}");
        }
        // And hardly less: what was lost to requests that were too large is below one of them.
        let inflow = 7_919 * (now - start).as_nanos() / 60_000_000_000;
        assert!(u128::from(taken) + 97 >= 7_919 + inflow - 97, "{taken} of {inflow}");
    }

    #[test]
    fn a_century_of_rest_overflows_nothing() {
        let start = Instant::now();
        let mut meter = Meter::new(u64::MAX, u64::MAX, start);
        assert_eq!(meter.take(u64::MAX, start), Ok(()));
        let later = start + SECOND * 3_155_760_000;
        assert_eq!(meter.standing(later).tokens.remaining, u64::MAX);
    }
}
