//! So much a minute: the token bucket.

mod level;
mod state;
mod status;

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use self::state::State;
pub use self::status::TokenBucketStatus;
use super::LONGEST_HOLD;
use crate::account::{Account, AccountLink, Ask, Charge, InPassage, Refusal, Replenishment};
use crate::amount::Amount;
use crate::caught::say;
use crate::error::ConfigError;
use crate::events::Category;
use crate::sync::{Arc, Mutex};
use crate::upstream::UpstreamFailure;

/// What a minute allows: requests, and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Limits {
    /// Requests a minute.
    pub requests: u32,
    /// Tokens a minute.
    pub tokens: u64,
}

impl Limits {
    /// So many requests and so many tokens a minute.
    #[must_use]
    pub const fn per_minute(requests: u32, tokens: u64) -> Self {
        Self { requests, tokens }
    }

    fn check(self, name: &str) -> Result<(), ConfigError> {
        let zero = |field| Err(ConfigError::new(field, 0, "must be at least 1").of(name));
        match self {
            Self { requests: 0, .. } => zero("requests_per_minute"),
            Self { tokens: 0, .. } => zero("tokens_per_minute"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests and {} tokens a minute", self.requests, self.tokens)
    }
}

/// Requests and tokens per minute, enforced together.
///
/// A bucket starts full and refills continuously: there is no tick, the level is computed from the
/// clock. What a job took comes back with time alone, whether or not the work has ended.
///
/// - More than a minute allows is refused outright. [`Amount::NONE`] is not, but waits while the
///   bucket is in debt or held.
/// - **Throttle.** The upstream's refusals stretch the minute to `60 s × (1 + throttle)`: a 429 adds
///   [`BACKPRESSURE_STEP`](Self::BACKPRESSURE_STEP), up to [`MAX_THROTTLE`](Self::MAX_THROTTLE).
///   Every third success takes 0.2 off, and every success takes 0.5 off once there has been no
///   backpressure for [`CALM_AFTER`](Self::CALM_AFTER).
/// - **One storm counts once.** A failure reported through a grant counts only if that grant was
///   taken at or after the last counted failure. What is recorded directly always counts.
/// - **Retry-after.** Nothing is granted until the instant the upstream named, at most
///   [`MAX_HOLD`](Self::MAX_HOLD) ahead, or what [`set_max_hold`](Self::set_max_hold) says; the level
///   refills meanwhile. It is only ever extended.
/// - **Reconcile.** Unused tokens come back at once; tokens used beyond the reservation are debited,
///   below zero if need be, and later jobs wait until the debt has been refilled.
///
/// # Examples
///
/// ```
/// use admit::{Limits, TokenBucket};
///
/// let bucket = TokenBucket::new("gpt-x", Limits::per_minute(500, 30_000))?;
/// assert!(bucket.status().has_capacity(30_000));
/// bucket.record_429();
/// assert_eq!(bucket.status().throttle, 0.5);
/// # Ok::<(), admit::ConfigError>(())
/// ```
pub struct TokenBucket {
    link: AccountLink,
    state: Mutex<State>,
}

impl TokenBucket {
    /// What a 429 adds to the throttle, in tenths.
    const STEP_TENTHS: u32 = 5;

    /// What a 429, or each step of [`record_backpressure`](Self::record_backpressure), adds to the
    /// throttle.
    pub const BACKPRESSURE_STEP: f64 = 0.5;
    /// The most the throttle can be: a budget in ten minutes.
    pub const MAX_THROTTLE: f64 = 9.0;
    /// How long after the last backpressure every success takes 0.5 off the throttle.
    pub const CALM_AFTER: Duration = Duration::from_secs(5 * 60);
    /// The longest a `retry_after` holds the bucket unless configured otherwise: a server that asks
    /// for a day is mistaken more often than right, and the next refusal says so again.
    pub const MAX_HOLD: Duration = Duration::from_secs(10 * 60);

    /// A full bucket of this name.
    ///
    /// # Errors
    ///
    /// When the name is empty, or `requests_per_minute` or `tokens_per_minute` is zero.
    pub fn new(name: impl Into<Arc<str>>, limits: Limits) -> Result<Arc<Self>, ConfigError> {
        let link = AccountLink::new(name)?;
        limits.check(link.name())?;
        let state = Mutex::new(State::full(limits, Instant::now()));
        Ok(Arc::new(Self { link, state }))
    }

    /// Changes the limits in place.
    ///
    /// The throttle stays. A level above a lowered cap is cut to it; a raised cap adds nothing
    /// now, only refills faster. An unchanged pair does nothing.
    ///
    /// # Errors
    ///
    /// When either limit is zero; the bucket is then unchanged.
    pub fn set_limits(&self, limits: Limits) -> Result<(), ConfigError> {
        limits.check(self.link.name())?;
        let before = self.state.lock().set_limits(limits, Instant::now());
        if limits.requests > before.requests || limits.tokens > before.tokens {
            self.link.grew();
        }
        if limits.requests < before.requests || limits.tokens < before.tokens {
            self.link.may_refuse();
        }
        Ok(())
    }

    /// Changes the longest a `retry_after` holds the bucket. Default: [`MAX_HOLD`](Self::MAX_HOLD).
    ///
    /// It is for what the upstream asks from now on; a hold there is stays. At zero none is
    /// believed. More than a day is a day.
    pub fn set_max_hold(&self, most: Duration) {
        self.state.lock().set_max_hold(most.min(LONGEST_HOLD));
    }

    /// Records that the upstream answered 429: one step of backpressure, attributed to no grant.
    pub fn record_429(&self) {
        self.record_backpressure(1);
    }

    /// Records `n` steps of backpressure, attributed to no grant. Zero does nothing.
    pub fn record_backpressure(&self, n: u32) {
        self.state.lock().press(n, Instant::now());
    }

    /// Records a failure of the upstream, attributed to no grant: logs it, puts its weight on the
    /// throttle, and holds the bucket for as long as the upstream asked.
    pub fn record_failure(&self, failure: &UpstreamFailure) {
        self.fail(failure, None, Instant::now());
    }

    /// Records a success, attributed to no grant.
    pub fn record_success(&self) {
        self.succeed(Instant::now());
    }

    /// The bucket's numbers now.
    #[must_use]
    pub fn status(&self) -> TokenBucketStatus {
        self.status_at(Instant::now())
    }

    fn status_at(&self, now: Instant) -> TokenBucketStatus {
        self.state.lock().status(now)
    }

    fn succeed(&self, now: Instant) {
        let relaxed = self.state.lock().succeed(now);
        if relaxed {
            self.link.grew();
        }
    }

    fn fail(&self, failure: &UpstreamFailure, charge: Option<&Charge>, now: Instant) {
        let name = self.link.name();
        let asked = failure.retry_after.unwrap_or_default();
        let cut_to = {
            let mut state = self.state.lock();
            let cut_to = state.hold(asked, now);
            if charge.is_none_or(|charge| state.is_news(charge)) {
                state.press(failure.kind.weight(), now);
            }
            cut_to
        };
        say(|| tracing::warn!(account = %name, "{failure}"));
        if let Some(held) = cut_to {
            say(|| {
                tracing::warn!(
                    account = %name,
                    ?asked,
                    "the server asked for more than is believed; held for {held:?}"
                );
            });
        }
    }
}

impl Account for TokenBucket {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::TokenBucket
    }

    fn capacity(&self) -> u64 {
        self.state.lock().limits().tokens
    }

    fn in_use(&self, now: Instant) -> u64 {
        let status = self.status_at(now);
        status.tokens_per_minute - status.available_tokens
    }

    fn indicator(&self, _: Instant) -> Option<String> {
        self.state.lock().indicator()
    }

    fn summary(&self, now: Instant) -> String {
        self.status_at(now).summary()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.state.lock().answer(ask)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.state.lock().try_take(ask)
    }

    fn give(&self, charge: &Charge, now: Instant) -> Amount {
        self.state.lock().credit(charge.amount, now)
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        self.state.lock().earliest_fit(ask)
    }

    fn reconcile(&self, charge: &Charge, actual_units: u64, now: Instant) -> Amount {
        self.state.lock().correct(charge.amount.units, actual_units, now);
        Amount { units: actual_units, ..charge.amount }
    }

    fn in_passage(&self) -> InPassage<'_> {
        InPassage::Brief
    }

    fn on_success(&self, _: &Charge, now: Instant) {
        self.succeed(now);
    }

    fn on_upstream_failure(&self, failure: &UpstreamFailure, charge: &Charge, now: Instant) {
        self.fail(failure, Some(charge), now);
    }

    fn is_fresh(&self, now: Instant) -> bool {
        self.state.lock().is_fresh(now)
    }
}

impl fmt::Debug for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBucket")
            .field("link", &self.link)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
