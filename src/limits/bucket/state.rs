//! What a bucket's lock guards: plain state and its rules, no lock, no clock, no announcing.

use std::time::Duration;

use tokio::time::Instant;

use super::level::Level;
use super::{Limits, TokenBucket, TokenBucketStatus};
use crate::account::{Ask, Charge, Refusal};
use crate::amount::Amount;
use crate::limits::throttle::{Throttle, ThrottleRules};

/// What the lock guards: two levels under one throttle, and a hold.
#[derive(Debug)]
pub(super) struct State {
    requests: Level,
    tokens: Level,
    throttle: Throttle,
    held_until: Option<Instant>,
    max_hold: Duration,
    /// The latest instant at which something changed: an older `now` counts as this.
    latest: Instant,
}

impl State {
    pub(super) fn full(limits: Limits, now: Instant) -> Self {
        Self {
            requests: Level::full(u64::from(limits.requests), now),
            tokens: Level::full(limits.tokens, now),
            throttle: Throttle::new(ThrottleRules {
                calm_after: TokenBucket::CALM_AFTER,
                ..ThrottleRules::with_step(TokenBucket::STEP_TENTHS)
            }),
            held_until: None,
            max_hold: TokenBucket::MAX_HOLD,
            latest: now,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let requests = u32::try_from(self.requests.cap()).unwrap_or(u32::MAX);
        Limits { requests, tokens: self.tokens.cap() }
    }

    /// The instant of a change.
    fn advance(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    pub(super) fn indicator(&self) -> Option<String> {
        self.throttle.indicator()
    }

    /// Whether a failure of the work under this charge says anything new.
    pub(super) fn is_news(&self, charge: &Charge) -> bool {
        self.throttle.is_news(charge.at)
    }

    fn is_held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }

    pub(super) fn answer(&self, ask: &Ask) -> Result<bool, Refusal> {
        Ok(self.levels_for(ask)?.is_some())
    }

    /// The same and the take in one step: each level is worked out once.
    pub(super) fn try_take(&mut self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let Some(Levels { now, requests, tokens }) = self.levels_for(ask)? else { return Ok(None) };
        self.latest = now;
        self.requests.debit_from(requests, u64::from(ask.mine.requests), now);
        self.tokens.debit_from(tokens, ask.mine.units, now);
        Ok(Some(now))
    }

    /// How the levels stand, when what is asked for fits.
    fn levels_for(&self, ask: &Ask) -> Result<Option<Levels>, Refusal> {
        let limits = self.limits();
        let most = Amount { requests: limits.requests, units: limits.tokens };
        if ask.mine.is_saturated() || !most.covers(ask.mine) {
            return Err(Refusal::never_fits(ask.mine, limits));
        }
        let now = self.latest.max(ask.now);
        if self.is_held(now) || ask.reserved_ahead.is_saturated() {
            return Ok(None);
        }
        let (requests, tokens) = wanted(ask);
        let since = self.requests.since(now);
        let requests = self.requests.covering(requests, since);
        // Mostly the two have been full, or not, at one time.
        let since =
            if self.tokens.is_as_old_as(&self.requests) { since } else { self.tokens.since(now) };
        let tokens = self.tokens.covering(tokens, since);
        Ok(requests.zip(tokens).map(|(requests, tokens)| Levels { now, requests, tokens }))
    }

    pub(super) fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        if ask.mine.is_saturated() || ask.reserved_ahead.is_saturated() {
            return None;
        }
        let (requests, tokens) = wanted(ask);
        let there = self.requests.covers_at(requests)?.max(self.tokens.covers_at(tokens)?);
        Some(self.held_until.map_or(there, |until| there.max(until)))
    }

    pub(super) fn credit(&mut self, amount: Amount, now: Instant) -> Amount {
        let now = self.advance(now);
        let requests = self.requests.credit(u64::from(amount.requests), now);
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        Amount { requests, units: self.tokens.credit(amount.units, now) }
    }

    /// Goes from what a charge holds to what it really used.
    pub(super) fn correct(&mut self, held: u64, used: u64, now: Instant) {
        let now = self.advance(now);
        if used > held {
            self.tokens.debit(used - held, now);
        } else {
            self.tokens.credit(held - used, now);
        }
    }

    /// Answers the limits there were.
    pub(super) fn set_limits(&mut self, limits: Limits, now: Instant) -> Limits {
        let before = self.limits();
        if limits != before {
            let now = self.advance(now);
            self.requests.set_cap(u64::from(limits.requests), now);
            self.tokens.set_cap(limits.tokens, now);
        }
        before
    }

    /// A counted failure, of so many steps.
    pub(super) fn press(&mut self, weight: u32, now: Instant) {
        if weight == 0 {
            return;
        }
        let now = self.advance(now);
        self.throttle.count_failure(now);
        if self.throttle.pressure(weight, now) {
            self.apply_throttle(now);
        }
    }

    /// Answers whether the throttle relaxed.
    pub(super) fn succeed(&mut self, now: Instant) -> bool {
        let now = self.advance(now);
        let relaxed = self.throttle.success(now);
        if relaxed {
            self.apply_throttle(now);
        }
        relaxed
    }

    fn apply_throttle(&mut self, now: Instant) {
        let tenths = self.throttle.tenths();
        self.requests.set_throttle(tenths, now);
        self.tokens.set_throttle(tenths, now);
    }

    pub(super) const fn set_max_hold(&mut self, most: Duration) {
        self.max_hold = most;
    }

    /// Nothing goes for so long, or as long as is believed; answers that, where it is less.
    pub(super) fn hold(&mut self, asked: Duration, now: Instant) -> Option<Duration> {
        let span = asked.min(self.max_hold);
        if !span.is_zero() {
            let until = self.advance(now) + span;
            self.held_until = self.held_until.max(Some(until));
        }
        (span < asked).then_some(span)
    }

    pub(super) fn status(&self, now: Instant) -> TokenBucketStatus {
        let now = self.latest.max(now);
        let limits = self.limits();
        TokenBucketStatus {
            requests_per_minute: limits.requests,
            available_requests: u32::try_from(self.requests.available(now)).unwrap_or(u32::MAX),
            tokens_per_minute: limits.tokens,
            available_tokens: self.tokens.available(now),
            debt_tokens: self.tokens.debt(now),
            throttle: self.throttle.value(),
            held_until: self.held_until.filter(|_| self.is_held(now)),
            read_at: now,
        }
    }

    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        let now = self.latest.max(now);
        self.requests.is_full(now)
            && self.tokens.is_full(now)
            && self.throttle.tenths() == 0
            && !self.is_held(now)
    }
}

/// The scaled levels at an instant.
struct Levels {
    now: Instant,
    requests: i128,
    tokens: i128,
}

/// Requests and tokens that must be there: mine and the reservation, wide enough not to saturate.
fn wanted(ask: &Ask) -> (u128, u128) {
    let Ask { mine, reserved_ahead: ahead, .. } = ask;
    (
        u128::from(mine.requests) + u128::from(ahead.requests),
        u128::from(mine.units) + u128::from(ahead.units),
    )
}
