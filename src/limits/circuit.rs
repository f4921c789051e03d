//! The circuit of a window: closed to everyone after repeated failures, then tried by one probe.
//!
//! A leaf: no clock, no lock, no announcing. Where the literature says *open* for "lets nobody
//! through", these pages do too: a circuit opens on failures and closes on recovery (M. Nygard,
//! "Release It!", 2007, named from memory).

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Where the circuit of a window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum CircuitState {
    /// Everyone goes who fits.
    Healthy,
    /// Everyone is refused until the cooldown is over; then the next take is the probe.
    Blocked,
    /// One probe is out, and everyone else is refused until it ends.
    Probing,
}

/// `healthy`, `blocked`, `probing`.
impl fmt::Display for CircuitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Healthy => "healthy",
            Self::Blocked => "blocked",
            Self::Probing => "probing",
        })
    }
}

/// The numbers a circuit goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CircuitRules {
    /// Failures in a row at maximum throttle that open it. Positive.
    pub(crate) failures_to_open: u32,
    /// The first cooldown. Positive.
    pub(crate) initial_cooldown: Duration,
    /// What doubling stops at. At least the first.
    pub(crate) max_cooldown: Duration,
    /// After how long a probe that never ends is given up. Positive.
    pub(crate) probe_timeout: Duration,
}

/// Whose report it is: only the probe's own and an unattributed one decide a probing circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reporter {
    /// Told to the window directly.
    Unattributed,
    /// Told through the grant of this `Charge::id`.
    Charge(u64),
}

/// What a circuit answers to one who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Whoever fits goes.
    Open,
    /// One goes, and is the probe.
    Probe,
    /// The probe is for the one ahead: wait.
    Behind,
    /// Nobody goes before that instant, or before the probe out now has ended.
    Shut(Instant),
}

/// The state machine.
///
/// ```text
///           failures_to_open in a row at maximum throttle
///  Healthy ----------------------------------------------> Blocked
///     ^                                                     |   ^
///     |                           cooldown over, and a take |   | failed: cooldown doubled
///     | succeeded                 with nothing ahead of it  |   | lost or expired: cooldown
///     |                                                     v   | stays, and is served
///     +-------------------------------------------------- Probing
/// ```
///
/// The arrow from `Probing` that the clock alone takes (expiry) is not stored: a probe past its
/// time reads as `Blocked` with the cooldown served, and is made so by whatever changes the circuit
/// next.
#[derive(Clone, Debug)]
pub(crate) struct Circuit {
    rules: CircuitRules,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Healthy {
        /// Counted failures in a row at maximum throttle.
        streak: u32,
    },
    Blocked {
        until: Instant,
        cooldown: Duration,
    },
    Probing {
        id: u64,
        since: Instant,
        expires: Instant,
        /// The cooldown that was served before it, which its failure doubles.
        cooldown: Duration,
    },
}

impl Circuit {
    pub(crate) const fn new(rules: CircuitRules) -> Self {
        Self { rules, state: State::Healthy { streak: 0 } }
    }

    pub(crate) fn state(&self, now: Instant) -> CircuitState {
        match self.at(now) {
            State::Healthy { .. } => CircuitState::Healthy,
            State::Blocked { .. } => CircuitState::Blocked,
            State::Probing { .. } => CircuitState::Probing,
        }
    }

    /// Healthy, and with no failure counted against it.
    pub(crate) const fn is_spotless(&self) -> bool {
        matches!(self.state, State::Healthy { streak: 0 })
    }

    /// What is left of the cooldown; zero unless blocked.
    pub(crate) fn cooldown_remaining(&self, now: Instant) -> Duration {
        match self.at(now) {
            State::Blocked { until, .. } => until.saturating_duration_since(now),
            State::Healthy { .. } | State::Probing { .. } => Duration::ZERO,
        }
    }

    /// What one who asks meets; `behind` says that something of the window is reserved ahead.
    pub(crate) fn door(&self, behind: bool, now: Instant) -> Door {
        match self.at(now) {
            State::Healthy { .. } => Door::Open,
            State::Blocked { until, .. } if now < until => Door::Shut(until),
            State::Blocked { .. } if behind => Door::Behind,
            State::Blocked { .. } => Door::Probe,
            State::Probing { expires, .. } => Door::Shut(expires),
        }
    }

    /// When the clock alone lets the asker through; `None` when only an event can.
    pub(crate) fn passable_at(&self, behind: bool, now: Instant) -> Option<Instant> {
        match self.door(behind, now) {
            Door::Open | Door::Probe => Some(now),
            Door::Behind => None,
            Door::Shut(until) => (!behind).then_some(until),
        }
    }

    /// The take of `id` is the probe, if one is due; answers whether it is.
    pub(crate) fn claim(&mut self, id: u64, now: Instant) -> bool {
        match self.at(now) {
            State::Blocked { until, cooldown } if now >= until => {
                let expires = later(now, self.rules.probe_timeout);
                self.state = State::Probing { id, since: now, expires, cooldown };
                true
            }
            _ => false,
        }
    }

    /// The take of `id` came to nothing; answers whether it was the probe, and the next may be.
    pub(crate) fn put_back(&mut self, id: u64, now: Instant) -> bool {
        match self.settle(now) {
            State::Probing { id: probe, since, cooldown, .. } if probe == id => {
                self.state = State::Blocked { until: since, cooldown };
                true
            }
            _ => false,
        }
    }

    /// Notes a failure, and answers the cooldown if the circuit opened, for the first time or again.
    ///
    /// `counted` is the throttle's judgement whether the report is news, `at_max` whether the
    /// throttle stands at its maximum with this failure in it. Neither matters to a probe.
    pub(crate) fn failure(
        &mut self,
        by: Reporter,
        counted: bool,
        at_max: bool,
        now: Instant,
    ) -> Option<Duration> {
        let cooldown = match self.settle(now) {
            State::Healthy { .. } if !counted => return None,
            State::Healthy { streak } => {
                let streak = if at_max { streak.saturating_add(1) } else { 0 };
                self.state = State::Healthy { streak };
                if streak < self.rules.failures_to_open {
                    return None;
                }
                self.rules.initial_cooldown
            }
            State::Probing { id, cooldown, .. } if by.decides(id) => {
                cooldown.saturating_mul(2).min(self.rules.max_cooldown)
            }
            State::Blocked { .. } | State::Probing { .. } => return None,
        };
        self.state = State::Blocked { until: later(now, cooldown), cooldown };
        Some(cooldown)
    }

    /// Notes a success, and answers whether it closed the circuit.
    pub(crate) fn success(&mut self, by: Reporter, now: Instant) -> bool {
        let closes = match self.settle(now) {
            State::Healthy { .. } => false,
            State::Probing { id, .. } if by.decides(id) => true,
            State::Blocked { .. } | State::Probing { .. } => return false,
        };
        self.state = State::Healthy { streak: 0 };
        closes
    }

    /// The state at `now`: what is stored, less a probe whose time is up.
    fn at(&self, now: Instant) -> State {
        match self.state {
            State::Probing { since, expires, cooldown, .. } if now >= expires => {
                State::Blocked { until: since, cooldown }
            }
            state => state,
        }
    }

    /// Stores the state at `now`, so that a probe given up stays given up, and answers it.
    fn settle(&mut self, now: Instant) -> State {
        self.state = self.at(now);
        self.state
    }
}

impl Reporter {
    /// Whether its report is about the probe of this id.
    fn decides(self, probe: u64) -> bool {
        match self {
            Self::Unattributed => true,
            Self::Charge(id) => id == probe,
        }
    }
}

/// `at + by`, short of what the clock cannot say: a century serves for "never".
fn later(at: Instant, by: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    at + by.min(CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NANO: Duration = Duration::from_nanos(1);
    const DIRECT: Reporter = Reporter::Unattributed;

    fn circuit() -> (Circuit, Instant) {
        let rules = CircuitRules {
            failures_to_open: 3,
            initial_cooldown: 30 * SECOND,
            max_cooldown: 3_600 * SECOND,
            probe_timeout: 10 * SECOND,
        };
        (Circuit::new(rules), Instant::now())
    }

    fn opened() -> (Circuit, Instant) {
        let (mut circuit, now) = circuit();
        for _ in 0..2 {
            assert_eq!(circuit.failure(DIRECT, true, true, now), None);
        }
        assert_eq!(circuit.failure(DIRECT, true, true, now), Some(30 * SECOND));
        (circuit, now)
    }

    /// A circuit whose probe, of id 7, went out at the instant answered.
    fn probing() -> (Circuit, Instant) {
        let (mut circuit, start) = opened();
        let now = start + 30 * SECOND;
        assert!(circuit.claim(7, now));
        (circuit, now)
    }

    #[test]
    fn only_failures_in_a_row_at_maximum_throttle_open_it() {
        let (mut circuit, now) = circuit();
        for _ in 0..100 {
            assert_eq!(circuit.failure(DIRECT, true, false, now), None, "below the maximum");
            assert_eq!(circuit.failure(Reporter::Charge(1), false, true, now), None, "no news");
        }
        for _ in 0..2 {
            assert_eq!(circuit.failure(DIRECT, true, true, now), None);
            assert_eq!(circuit.failure(DIRECT, true, true, now), None);
            assert!(!circuit.success(Reporter::Charge(9), now), "closes nothing, ends the streak");
        }
        assert!(circuit.is_spotless());
        assert_eq!(circuit.failure(DIRECT, true, true, now), None);
        assert!(!circuit.is_spotless());
        assert_eq!(circuit.state(now), CircuitState::Healthy);
    }

    #[test]
    fn blocked_refuses_everyone_until_the_cooldown_is_over() {
        let (mut circuit, start) = opened();
        let end = start + 30 * SECOND;
        for behind in [false, true] {
            assert_eq!(circuit.door(behind, start), Door::Shut(end));
            assert_eq!(circuit.door(behind, end - NANO), Door::Shut(end));
        }
        assert!(!circuit.claim(1, end - NANO));
        assert_eq!(circuit.cooldown_remaining(start + 10 * SECOND), 20 * SECOND);
        assert_eq!(circuit.door(false, end), Door::Probe);
        assert_eq!(circuit.door(true, end), Door::Behind);
        assert_eq!(circuit.state(end), CircuitState::Blocked);
        assert_eq!(circuit.cooldown_remaining(end), Duration::ZERO);
        assert_eq!(circuit.passable_at(false, start), Some(end));
        assert_eq!(circuit.passable_at(true, start), None, "only the probe's end helps");
        assert_eq!(circuit.passable_at(true, end), None);
    }

    #[test]
    fn reports_while_blocked_change_nothing() {
        let (mut circuit, start) = opened();
        for now in [start, start + 30 * SECOND] {
            assert_eq!(circuit.failure(DIRECT, true, true, now), None);
            assert!(!circuit.success(DIRECT, now));
            assert!(!circuit.put_back(7, now));
            assert_eq!(circuit.state(now), CircuitState::Blocked);
        }
        assert_eq!(circuit.door(false, start + 30 * SECOND), Door::Probe, "never put off");
    }

    #[test]
    fn one_probe_is_out_and_shuts_the_door() {
        let (mut circuit, now) = probing();
        assert!(!circuit.claim(8, now));
        assert_eq!(circuit.state(now), CircuitState::Probing);
        assert_eq!(circuit.door(false, now), Door::Shut(now + 10 * SECOND));
        assert_eq!(circuit.cooldown_remaining(now), Duration::ZERO);
    }

    #[test]
    fn only_the_probe_itself_or_an_unattributed_record_decides() {
        let other = Reporter::Charge(6);
        let (mut circuit, now) = probing();
        assert!(!circuit.success(other, now));
        assert_eq!(circuit.failure(other, true, true, now), None);
        assert!(!circuit.put_back(6, now));
        assert_eq!(circuit.state(now), CircuitState::Probing);
        for by in [Reporter::Charge(7), DIRECT] {
            let (mut closing, mut opening) = (circuit.clone(), circuit.clone());
            assert!(closing.success(by, now));
            assert!(closing.is_spotless());
            assert_eq!(opening.failure(by, false, false, now), Some(60 * SECOND));
            assert_eq!(opening.door(false, now), Door::Shut(now + 60 * SECOND));
        }
    }

    #[test]
    fn cooldowns_double_up_to_the_most() {
        let (mut circuit, mut now) = opened();
        let mut cooldown = 30;
        for _ in 0..12 {
            now += cooldown * SECOND;
            assert!(circuit.claim(7, now));
            cooldown = (cooldown * 2).min(3_600);
            let again = circuit.failure(Reporter::Charge(7), true, true, now);
            assert_eq!(again, Some(cooldown * SECOND));
        }
        assert_eq!(cooldown, 3_600);
        now += cooldown * SECOND;
        assert!(circuit.claim(7, now) && circuit.success(Reporter::Charge(7), now));
        for _ in 0..2 {
            assert_eq!(circuit.failure(DIRECT, true, true, now), None);
        }
        let first = circuit.failure(DIRECT, true, true, now);
        assert_eq!(first, Some(30 * SECOND), "closing starts over");
    }

    #[test]
    fn a_lost_probe_leaves_the_cooldown_served_and_as_long_as_it_was() {
        let (mut circuit, now) = probing();
        assert!(circuit.put_back(7, now));
        assert!(!circuit.put_back(7, now));
        assert_eq!(circuit.door(false, now), Door::Probe);
        assert!(circuit.claim(8, now));
        assert_eq!(circuit.failure(Reporter::Charge(8), true, true, now), Some(60 * SECOND));
    }

    #[test]
    fn a_probe_without_an_end_expires() {
        let (mut circuit, now) = probing();
        let expiry = now + 10 * SECOND;
        assert_eq!(circuit.passable_at(false, now), Some(expiry));
        assert_eq!(circuit.door(false, expiry - NANO), Door::Shut(expiry));
        assert_eq!(circuit.door(false, expiry), Door::Probe);
        assert_eq!(circuit.state(expiry), CircuitState::Blocked);
        let late = Reporter::Charge(7);
        assert!(!circuit.clone().success(late, expiry), "it is the probe no more");
        assert_eq!(circuit.clone().failure(late, true, true, expiry), None);
        assert!(circuit.claim(8, expiry));
        assert_eq!(circuit.failure(late, true, true, expiry), None);
        assert_eq!(circuit.state(expiry), CircuitState::Probing);
    }

    #[test]
    fn endless_cooldowns_do_not_overflow_the_clock() {
        let rules = CircuitRules {
            failures_to_open: 1,
            initial_cooldown: Duration::MAX,
            max_cooldown: Duration::MAX,
            probe_timeout: Duration::MAX,
        };
        let mut circuit = Circuit::new(rules);
        let now = Instant::now();
        assert_eq!(circuit.failure(DIRECT, true, true, now), Some(Duration::MAX));
        assert_eq!(circuit.state(now + 86_400 * SECOND), CircuitState::Blocked);
        let end = now + Duration::from_secs(100 * 365 * 86_400);
        assert!(circuit.claim(1, end));
        assert_eq!(circuit.failure(DIRECT, true, true, end), Some(Duration::MAX));
    }
}
