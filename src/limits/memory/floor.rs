//! What memory falls back to: the part of a rising reading that is no garbage.

use super::level::Level;

/// The most recent reading that was lower than the one before it.
///
/// A process that allocates reads higher and higher until something is freed; only a fall shows
/// what stayed. A fall of less than 0.2 points is noise: it is neither a floor nor the reading the
/// next one is compared with, so a slow slide adds up to a fall.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    floor: Level,
    before: Level,
}

impl Floor {
    /// The least fall that counts, in the units of [`Level::above`]: 0.2 points.
    const NOISE: u32 = 20_000;

    /// Takes in one reading.
    pub(super) fn observe(&mut self, level: Level) {
        match &mut self.seen {
            None => self.seen = Some(Seen { floor: level, before: level }),
            Some(seen) if level >= seen.before => seen.before = level,
            Some(seen) if seen.before.above(level) >= Self::NOISE => {
                *seen = Seen { floor: level, before: level };
            }
            Some(_) => {}
        }
    }

    /// The floor; `None` before the first reading.
    pub(super) fn level(&self) -> Option<Level> {
        self.seen.map(|seen| seen.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floor after each reading, both in hundredths of a percent.
    fn floors(readings: &[u64]) -> Vec<u64> {
        let mut floor = Floor::default();
        readings
            .iter()
            .map(|&reading| {
                floor.observe(Level::of(reading, 10_000));
                (floor.level().unwrap().ratio() * 10_000.0).round() as u64
            })
            .collect()
    }

    #[test]
    fn the_first_reading_is_the_first_floor_and_a_rise_is_none() {
        assert_eq!(floors(&[8_500, 9_000, 9_600]), [8_500, 8_500, 8_500]);
    }

    #[test]
    fn a_fall_is_the_new_floor_whether_above_or_below_the_old_one() {
        assert_eq!(
            floors(&[8_000, 9_000, 8_300, 9_000, 7_000]),
            [8_000, 8_000, 8_300, 8_300, 7_000]
        );
    }

    #[test]
    fn a_fall_of_less_than_a_fifth_of_a_point_is_noise() {
        assert_eq!(floors(&[8_000, 7_981]), [8_000, 8_000]);
        assert_eq!(floors(&[8_000, 7_980]), [8_000, 7_980]);
    }

    #[test]
    fn noise_does_not_move_what_the_next_reading_is_compared_with() {
        assert_eq!(floors(&[8_000, 7_990, 7_980]), [8_000, 8_000, 7_980]);
        assert_eq!(floors(&[8_000, 7_990, 7_995, 7_985]), [8_000; 4]);
    }

    #[test]
    fn a_rise_however_small_moves_what_the_next_reading_is_compared_with() {
        assert_eq!(floors(&[8_000, 8_010, 7_990]), [8_000, 8_000, 7_990]);
    }

    #[test]
    fn there_is_no_floor_before_a_reading() {
        assert_eq!(Floor::default().level(), None);
    }
}
