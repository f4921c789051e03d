//! What a window says to those it refuses: sentences for people and for language models.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::account::Refusal;
use crate::limits::circuit::CircuitState;
use crate::upstream::UpstreamFailure;

/// The most characters of the upstream's own message that a refusal repeats.
const MOST_OF_MESSAGE: usize = 120;
/// The most characters of the service's name.
const MOST_OF_NAME: usize = 60;

/// The refusal of everyone by a circuit that lets nobody through before `until`.
pub(super) fn shut(
    circuit: CircuitState,
    until: Instant,
    now: Instant,
    last_said: Option<&str>,
) -> Refusal {
    let left = RoundedUp(until.saturating_duration_since(now));
    let said = last_said.unwrap_or("nothing");
    let text = match circuit {
        CircuitState::Probing => format!(
            "one probe is out to see whether the upstream has recovered, and all others are \
             refused until it ends, {left} at the longest; the upstream last said \"{said}\"; \
             do not retry yet"
        ),
        _ => format!(
            "blocked for another {left} after repeated failures; the upstream last said \
             \"{said}\"; do not retry yet"
        ),
    };
    Refusal::new(text).retry_at(until)
}

/// One short line of a failure, fit to be repeated between quotes.
///
/// The message is somebody else's text and goes to readers who may act on it: it is kept short, on
/// one line, and cannot close the quotes it is put in.
pub(super) fn brief(failure: &UpstreamFailure) -> String {
    let mut brief = failure.clone();
    brief.service = one_line(&failure.service, MOST_OF_NAME);
    brief.message = one_line(&failure.message, MOST_OF_MESSAGE);
    brief.summary()
}

fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    let mut count = 0;
    for word in text.split_whitespace() {
        let space = (count > 0).then_some(' ');
        for c in space.into_iter().chain(word.chars()).filter(|c| !c.is_control()) {
            if count == most {
                line.push('…');
                return line;
            }
            line.push(if c == '"' { '\'' } else { c });
            count += 1;
        }
    }
    line
}

/// `20 s`, or `250 ms` below a second; rounded up, so that nobody comes back a moment early.
pub(super) struct RoundedUp(pub(super) Duration);

impl fmt::Display for RoundedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos >= 1_000_000_000 {
            write!(f, "{} s", nanos.div_ceil(1_000_000_000))
        } else {
            write!(f, "{} ms", nanos.div_ceil(1_000_000))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_rounded_up() {
        let shown = |nanos| RoundedUp(Duration::from_nanos(nanos)).to_string();
        assert_eq!(shown(30_000_000_000), "30 s");
        assert_eq!(shown(29_000_000_001), "30 s");
        assert_eq!(shown(1_000_000_000), "1 s");
        assert_eq!(shown(249_000_001), "250 ms");
        assert_eq!(shown(1), "1 ms");
        assert_eq!(shown(0), "0 ms");
    }

    #[test]
    fn somebody_elses_text_is_short_on_one_line_and_inside_its_quotes() {
        let message = format!("no\n\n\t\"room\"\u{7}\u{1b}[0m {}", "x".repeat(1_000));
        let failure = UpstreamFailure::status(529, "s".repeat(1_000), message)
            .with_retry_after(Duration::from_secs(7));
        let brief = brief(&failure);
        assert!(brief.contains("no 'room'[0m xxx"), "{brief}");
        assert!(brief.ends_with("x… (server asked for 7s)"), "{brief}");
        assert!(brief.chars().count() < 250, "{brief}");
        assert!(!brief.contains(|c: char| c.is_control() || c == '"'));
    }

    #[test]
    fn text_that_fits_is_left_as_it_is() {
        assert_eq!(one_line("slow down", 9), "slow down");
        assert_eq!(one_line("slow down", 8), "slow dow…");
        assert_eq!(one_line("", 8), "");
    }
}
