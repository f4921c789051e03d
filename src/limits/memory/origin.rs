//! Instants as single words, so that an atomic can hold one.

use std::time::Duration;

use tokio::time::Instant;

/// A fixed instant from which others are counted, in nanoseconds.
///
/// A word is never zero, so zero is free to say "never"; instants before the origin have words
/// too, because a paused clock may stand before the gate's construction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin(Instant);

/// The word of the origin itself: 146 years either way.
const MIDDLE: u64 = 1 << 62;

impl Origin {
    pub(super) const fn new(origin: Instant) -> Self {
        Self(origin)
    }

    /// The instant's word; words are ordered as instants are.
    pub(super) fn word(self, instant: Instant) -> u64 {
        match instant.checked_duration_since(self.0) {
            Some(after) => MIDDLE + nanos(after),
            None => MIDDLE - nanos(self.0.saturating_duration_since(instant)),
        }
    }

    /// The word's instant; `None` for the word that is none.
    pub(super) fn instant(self, word: u64) -> Option<Instant> {
        match word {
            0 => None,
            _ if word >= MIDDLE => self.0.checked_add(Duration::from_nanos(word - MIDDLE)),
            _ => self.0.checked_sub(Duration::from_nanos(MIDDLE - word)),
        }
    }
}

/// Without the 128-bit arithmetic of `as_nanos`: this is on the path of every admission.
fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos())).min(MIDDLE - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_survives_its_word_on_either_side_of_the_origin() {
        let start = Instant::now();
        let origin = Origin::new(start + Duration::from_secs(10));
        for millis in [0, 1, 9_999, 10_000, 10_001, 1_000_000] {
            let instant = start + Duration::from_millis(millis);
            assert_eq!(origin.instant(origin.word(instant)), Some(instant));
        }
        assert_eq!(origin.instant(0), None);
    }

    #[test]
    fn words_are_ordered_as_instants_are() {
        let start = Instant::now();
        let origin = Origin::new(start + Duration::from_secs(1));
        let words: Vec<_> = [0, 1, 999, 1_000, 1_001, 86_400_000]
            .map(|millis| origin.word(start + Duration::from_millis(millis)))
            .to_vec();
        assert!(words.is_sorted() && words[0] > 0);
    }
}
