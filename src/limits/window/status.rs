//! How a window stands, as one value.

use std::fmt;
use std::time::Duration;

use super::refusal::RoundedUp;
use crate::limits::circuit::CircuitState;

/// How an [`ElasticWindow`](super::ElasticWindow) stood at one instant.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ElasticWindowStatus {
    /// The most requests in any span of the effective window.
    pub max: u32,
    /// How many more fit now, whatever the circuit says.
    pub available: u32,
    /// How much the window is stretched: 0.0 when nominal, in steps of a tenth.
    pub throttle: f64,
    /// The window's length now: the base times one plus the throttle.
    pub effective_window: Duration,
    /// Where the circuit stands. Blocked with nothing of the cooldown left: the next is the probe.
    pub circuit: CircuitState,
    /// What is left of the cooldown; zero unless blocked.
    pub cooldown_remaining: Duration,
    /// What is left of the time the upstream asked for; zero unless it is held.
    pub hold_remaining: Duration,
}

impl ElasticWindowStatus {
    /// One line naming the numbers.
    #[must_use]
    pub fn summary(&self) -> String {
        self.to_string()
    }
}

/// `3 of 5 requests left in any 2s, throttle 1.0, circuit healthy`.
impl fmt::Display for ElasticWindowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, available, throttle, effective_window, circuit, .. } = self;
        write!(f, "{available} of {max} requests left in any {effective_window:?}, ")?;
        write!(f, "throttle {throttle:.1}, circuit {circuit}")?;
        match circuit {
            CircuitState::Blocked if self.cooldown_remaining.is_zero() => {
                f.write_str(", the next to go is the probe")?;
            }
            CircuitState::Blocked => {
                write!(f, " for another {}", RoundedUp(self.cooldown_remaining))?;
            }
            CircuitState::Healthy | CircuitState::Probing => {}
        }
        match self.hold_remaining {
            Duration::ZERO => Ok(()),
            left => write!(f, ", held for another {}", RoundedUp(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_every_number() {
        let mut status = ElasticWindowStatus {
            max: 5,
            available: 3,
            throttle: 1.0,
            effective_window: Duration::from_secs(2),
            circuit: CircuitState::Healthy,
            cooldown_remaining: Duration::ZERO,
            hold_remaining: Duration::ZERO,
        };
        let numbers = "3 of 5 requests left in any 2s, throttle 1.0";
        assert_eq!(status.summary(), format!("{numbers}, circuit healthy"));
        status.circuit = CircuitState::Probing;
        assert_eq!(status.summary(), format!("{numbers}, circuit probing"));
        status.circuit = CircuitState::Blocked;
        let next = format!("{numbers}, circuit blocked, the next to go is the probe");
        assert_eq!(status.summary(), next);
        status.cooldown_remaining = Duration::from_millis(19_001);
        assert_eq!(status.summary(), format!("{numbers}, circuit blocked for another 20 s"));
        status.circuit = CircuitState::Healthy;
        status.hold_remaining = Duration::from_millis(6_001);
        assert_eq!(status.summary(), format!("{numbers}, circuit healthy, held for another 7 s"));
    }
}
