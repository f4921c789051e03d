//! The elastic window: so many requests in any span of time, slower under pressure, with a circuit.

mod config;
mod refusal;
mod status;

use std::time::Duration;

use tokio::time::Instant;

pub use config::{ElasticWindowBuilder, WindowConfig};
pub use status::ElasticWindowStatus;

use super::LONGEST_HOLD;
use super::circuit::{Circuit, CircuitState, Door, Reporter};
use super::stamps::Stamps;
use super::throttle::Throttle;
use crate::account::{Account, AccountLink, Ask, Charge, Refusal, Replenishment};
use crate::amount::Amount;
use crate::caught::say;
use crate::error::ConfigError;
use crate::events::Category;
use crate::sync::{Arc, Mutex};
use crate::upstream::UpstreamFailure;

/// At most so many requests in any span of time, for an upstream with a rate of its own.
///
/// **The limit.** No half-open span of the effective window, `per × (1 + throttle)`, holds more than
/// `max` requests: a request leaves exactly that long after it was taken. What a rollback takes out
/// is the request that is rolled back, and nothing once that has left.
///
/// **The throttle.** Every failure the upstream is reported to have answered, of whatever kind,
/// adds 1.0, up to a maximum. Three successes take 0.2 off; five minutes after the last pressure
/// every success takes 0.5 off. One storm counts once: a failure reported through a grant that was
/// taken before the last counted failure says nothing new.
///
/// **The circuit.** Three failures in a row at maximum throttle block the window: everyone is
/// refused, those who wait are told at once. After the cooldown (30 s, doubled up to 1 h each time
/// the upstream is found still failing) the first to take is a probe, and everyone else is refused
/// until it ends. Only the probe's own grant, or a record made directly on the window, decides.
///
/// **Retry-after.** With a [`max_hold`](WindowConfig::max_hold), nobody goes until the instant the
/// upstream named, at most so far ahead. It is only ever extended. Without, it is not read.
///
/// Reports come through a grant, or directly ([`record_failure`](Self::record_failure) and its
/// kin); the latter are attributed to no grant and always count.
///
/// Of an [`Amount`] a window counts the requests; units are ignored, so a demand may be written as
/// `permit` or as `tokens`, and both take one slot.
///
/// # Examples
///
/// ```
/// use admit::ElasticWindow;
/// use std::time::Duration;
///
/// let window = ElasticWindow::builder("geocoder").per(Duration::from_secs(1)).max(5).build()?;
/// assert_eq!(window.status().available, 5);
/// window.record_429();
/// assert_eq!(window.status().effective_window, Duration::from_secs(2));
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct ElasticWindow {
    link: AccountLink,
    max: u32,
    per: Duration,
    max_hold: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stamps: Stamps,
    throttle: Throttle,
    circuit: Circuit,
    /// The upstream asked for this.
    held_until: Option<Instant>,
    /// The last failure in a few words, for those who are refused.
    last_said: Option<Arc<str>>,
    /// The latest instant at which anything changed: an older `now` counts as this. Questions do
    /// not move it, so whoever asks about a later instant changes nothing.
    latest: Option<Instant>,
}

impl ElasticWindow {
    /// Starts a window of this name, at most 1 request a second until told otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// use admit::ElasticWindow;
    /// use std::time::Duration;
    ///
    /// let window = ElasticWindow::builder("geocoder")
    ///     .per(Duration::from_secs(1))
    ///     .max(5)
    ///     .initial_cooldown(Duration::from_secs(10))
    ///     .build()?;
    /// assert_eq!(window.status().max, 5);
    /// assert!(ElasticWindow::builder("geocoder").max(0).build().is_err());
    /// # Ok::<(), admit::ConfigError>(())
    /// ```
    pub fn builder(name: impl Into<Arc<str>>) -> ElasticWindowBuilder {
        ElasticWindowBuilder::new(name.into())
    }

    /// A window of these numbers.
    ///
    /// # Errors
    ///
    /// When the name is empty, or a number is outside what its field in [`WindowConfig`] says.
    pub fn new(name: impl Into<Arc<str>>, config: WindowConfig) -> Result<Arc<Self>, ConfigError> {
        let link = AccountLink::new(name)?;
        config.validate().map_err(|error| error.of(&**link.name()))?;
        Ok(Arc::new(Self {
            link,
            max: config.max,
            per: config.per,
            max_hold: config.max_hold.min(LONGEST_HOLD),
            state: Mutex::new(State {
                stamps: Stamps::default(),
                throttle: Throttle::new(config.throttle_rules()),
                circuit: Circuit::new(config.circuit_rules()),
                held_until: None,
                last_said: None,
                latest: None,
            }),
        }))
    }

    /// How the window stands now.
    #[must_use]
    pub fn status(&self) -> ElasticWindowStatus {
        self.status_at(Instant::now())
    }

    /// Notes a success that no grant reports. It closes a probing circuit.
    pub fn record_success(&self) {
        self.succeeded(Reporter::Unattributed, Instant::now());
    }

    /// Notes a failure that no grant reports. It always counts, and reopens a probing circuit.
    pub fn record_failure(&self, failure: &UpstreamFailure) {
        self.failed(failure, None, Instant::now());
    }

    /// Notes a 429 of which nothing more is known. As [`record_failure`](Self::record_failure).
    pub fn record_429(&self) {
        self.record_failure(&UpstreamFailure::status(429, self.link.name().as_ref(), ""));
    }

    /// Slows down by one step without anything having failed, on a warning from the upstream.
    ///
    /// It raises the throttle like a failure, but never opens the circuit.
    pub fn record_advisory_pressure(&self) {
        self.advised(Instant::now());
    }

    fn status_at(&self, now: Instant) -> ElasticWindowStatus {
        let state = self.state.lock();
        let now = state.never_older(now);
        ElasticWindowStatus {
            max: self.max,
            available: self.max.saturating_sub(state.live(now, self.per)),
            throttle: state.throttle.value(),
            effective_window: state.throttle.stretch(self.per),
            circuit: state.circuit.state(now),
            cooldown_remaining: state.circuit.cooldown_remaining(now),
            hold_remaining: state.hold_remaining(now),
        }
    }

    /// The refusal of what no waiting helps, whatever the state.
    fn never_fits(&self, amount: Amount) -> Option<Refusal> {
        (amount.requests > self.max || amount.is_saturated()).then(|| {
            let limit = format_args!("{} requests in any {:?}", self.max, self.per).to_string();
            Refusal::never_fits(amount, limit)
        })
    }

    /// The one answer that both the check and the take give; `now` is not older than the state.
    fn answer(&self, state: &State, ask: &Ask, now: Instant) -> Result<bool, Refusal> {
        if let Some(never) = self.never_fits(ask.mine) {
            return Err(never);
        }
        match state.circuit.door(is_behind(ask), now) {
            Door::Shut(until) => {
                let circuit = state.circuit.state(now);
                Err(refusal::shut(circuit, until, now, state.last_said.as_deref()))
            }
            Door::Behind => Ok(false),
            Door::Open | Door::Probe => {
                let is_held = !state.hold_remaining(now).is_zero();
                Ok(!is_held && self.shortfall(state, ask, now) == Some(0))
            }
        }
    }

    /// How many slots must leave before mine and the reservation fit; `None` when none help.
    fn shortfall(&self, state: &State, ask: &Ask, now: Instant) -> Option<u64> {
        let total = u64::from(ask.mine.requests) + u64::from(ask.reserved_ahead.requests);
        if total > u64::from(self.max) || ask.reserved_ahead.is_saturated() {
            return None;
        }
        let live = u64::from(state.live(now, self.per));
        Some((live + total).saturating_sub(u64::from(self.max)))
    }

    /// When the circuit lets the asker through, no hold keeps it and there is room, from the clock
    /// alone.
    fn clock_lets_through(&self, state: &State, ask: &Ask, now: Instant) -> Option<Instant> {
        let passable = state.circuit.passable_at(is_behind(ask), now)?;
        let room = match self.shortfall(state, ask, now)? {
            0 => now,
            short => state.stamps.leaving(short, now, state.throttle.stretch(self.per))?,
        };
        let both = passable.max(room);
        Some(state.held_until.map_or(both, |until| both.max(until)))
    }

    fn succeeded(&self, by: Reporter, now: Instant) {
        let mut state = self.state.lock();
        let now = state.advance(now, self.per);
        let relaxed = state.throttle.success(now);
        let closed = state.circuit.success(by, now);
        if closed {
            self.link.set_survey_first(false);
        }
        drop(state);
        if relaxed || closed {
            self.link.grew();
        }
        if closed {
            let account = self.link.name();
            say(|| tracing::info!(%account, "the upstream has recovered: circuit closed"));
        }
    }

    fn advised(&self, now: Instant) {
        let mut state = self.state.lock();
        let now = state.advance(now, self.per);
        state.throttle.pressure(1, now);
    }

    /// Notes a failure of work whose charge was taken at `charge.at`, or of no known work.
    fn failed(&self, failure: &UpstreamFailure, charge: Option<&Charge>, now: Instant) {
        let said: Arc<str> = refusal::brief(failure).into();
        let by = charge.map_or(Reporter::Unattributed, |charge| Reporter::Charge(charge.id));
        let mut state = self.state.lock();
        let now = state.advance(now, self.per);
        // Also where the failure is no news: only the latest instant asked for counts.
        state.hold(failure.retry_after.unwrap_or_default().min(self.max_hold), now);
        let counted = charge.is_none_or(|charge| state.throttle.is_news(charge.at));
        if counted {
            state.throttle.pressure(1, now);
            state.throttle.count_failure(now);
        }
        let at_max = state.throttle.is_at_max();
        let opened = state.circuit.failure(by, counted, at_max, now);
        state.last_said = Some(Arc::clone(&said));
        if opened.is_some() {
            // Under the lock, so that the flag is never older than the circuit it speaks of.
            self.link.set_survey_first(true);
        }
        drop(state);
        if let Some(cooldown) = opened {
            self.link.may_refuse();
            let account = self.link.name();
            say(|| {
                tracing::warn!(%account, ?cooldown, "circuit blocked; the upstream said \"{said}\"");
            });
        }
    }
}

impl State {
    /// The instant a question is about.
    fn never_older(&self, now: Instant) -> Instant {
        self.latest.map_or(now, |latest| now.max(latest))
    }

    /// The instant of a change. What has left by then is dropped, because a change may be one of
    /// the length, and a stretch must revive nothing.
    fn advance(&mut self, now: Instant, per: Duration) -> Instant {
        let now = self.never_older(now);
        self.latest = Some(now);
        self.stamps.drop_left(now, self.throttle.stretch(per));
        now
    }

    fn hold(&mut self, span: Duration, now: Instant) {
        if !span.is_zero() {
            self.held_until = self.held_until.max(Some(now + span));
        }
    }

    /// What is left of the hold; zero unless held.
    fn hold_remaining(&self, now: Instant) -> Duration {
        self.held_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// How many slots are live: at most the window's maximum, whatever the length has been.
    fn live(&self, now: Instant, per: Duration) -> u32 {
        let live = self.stamps.live(now, self.throttle.stretch(per));
        u32::try_from(live).unwrap_or(u32::MAX)
    }
}

/// Whether something of this window is set aside for the one ahead.
const fn is_behind(ask: &Ask) -> bool {
    ask.reserved_ahead.requests > 0
}

impl Account for ElasticWindow {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::ElasticWindow
    }

    fn capacity(&self) -> u64 {
        u64::from(self.max)
    }

    fn in_use(&self, now: Instant) -> u64 {
        let state = self.state.lock();
        u64::from(state.live(state.never_older(now), self.per))
    }

    fn indicator(&self, now: Instant) -> Option<String> {
        let state = self.state.lock();
        match state.circuit.state(state.never_older(now)) {
            CircuitState::Healthy => state.throttle.indicator(),
            unwell => Some(unwell.to_string()),
        }
    }

    fn summary(&self, now: Instant) -> String {
        self.status_at(now).summary()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        let state = self.state.lock();
        self.answer(&state, ask, state.never_older(ask.now))
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let mut state = self.state.lock();
        let now = state.never_older(ask.now);
        if !self.answer(&state, ask, now)? {
            return Ok(None);
        }
        state.advance(now, self.per);
        state.stamps.file(now, ask.mine.requests);
        let is_probe = state.circuit.claim(ask.id, now);
        drop(state);
        if is_probe {
            // From here on everyone else is refused, those who wait included.
            self.link.may_refuse();
        }
        Ok(Some(now))
    }

    fn give(&self, charge: &Charge, now: Instant) -> Amount {
        let mut state = self.state.lock();
        let now = state.advance(now, self.per);
        state.circuit.put_back(charge.id, now);
        let removed = state.stamps.remove(charge.at, charge.amount.requests);
        drop(state);
        match removed {
            0 => Amount::NONE,
            all if all == charge.amount.requests => charge.amount,
            some => Amount::permits(some),
        }
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        if self.never_fits(ask.mine).is_some() {
            return None;
        }
        let state = self.state.lock();
        self.clock_lets_through(&state, ask, state.never_older(ask.now))
    }

    fn on_success(&self, charge: &Charge, now: Instant) {
        self.succeeded(Reporter::Charge(charge.id), now);
    }

    fn on_upstream_failure(&self, failure: &UpstreamFailure, charge: &Charge, now: Instant) {
        self.failed(failure, Some(charge), now);
    }

    fn settled(&self, charge: &Charge, reported: bool, now: Instant) {
        if reported {
            return;
        }
        let mut state = self.state.lock();
        let now = state.advance(now, self.per);
        let is_lost = state.circuit.put_back(charge.id, now);
        drop(state);
        if is_lost {
            // The next may probe: those whom it refused until now may go.
            self.link.grew();
        }
    }

    fn needs_http(&self) -> bool {
        true
    }

    /// A failure that counts towards the circuit is not forgotten either, though it may have left
    /// no throttle: a service asked less often than the window is long would never be blocked.
    fn is_fresh(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let now = state.never_older(now);
        state.throttle.tenths() == 0
            && state.circuit.is_spotless()
            && state.live(now, self.per) == 0
            && state.hold_remaining(now).is_zero()
    }
}

#[cfg(test)]
mod tests;
