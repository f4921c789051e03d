//! The memory gate's numbers at one moment.

use std::fmt;
use std::time::Duration;

/// How pressed memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryZone {
    /// Latched: nobody with entries goes.
    Critical,
    /// Somebody waits on memory: a line goes one at a time.
    Draining,
    /// Nobody is kept waiting by memory.
    Green,
}

impl MemoryZone {
    /// The zone's name: `CRITICAL`, `DRAINING` or `GREEN`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "CRITICAL",
            Self::Draining => "DRAINING",
            Self::Green => "GREEN",
        }
    }
}

impl fmt::Display for MemoryZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the memory gate knows, from its last reading.
///
/// Taking a status reads nothing anew and changes nothing. `Display` is one line naming the
/// numbers, the same that is logged when the latch sets and clears.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryStatus {
    /// What is used, in bytes.
    pub used: u64,
    /// Of what limit, in bytes; zero when there is none, or before the first reading.
    pub limit: u64,
    /// The share in use; 1.0 is the whole limit.
    pub ratio: f64,
    /// The share that stayed in use when the reading last fell.
    pub floor: f64,
    /// How pressed memory is.
    pub zone: MemoryZone,
    /// How many jobs wait on memory, over all admissions.
    pub held: usize,
    /// What a draining line waits from one release to the next when nothing completes.
    pub pacing: Duration,
    /// The factor that growth of the floor puts on the delay, 1 to 72,000.
    ///
    /// `pacing` includes it while jobs are in flight.
    pub growth_penalty: f64,
}

impl fmt::Display for MemoryStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.zone)?;
        match (self.used, self.limit) {
            (0, 0) => f.write_str("nothing read yet")?,
            (used, 0) => write!(f, "{} used, of no limit", Bytes(used))?,
            (used, limit) => {
                let percent = self.ratio * 100.0;
                write!(f, "{percent:.1} % used ({} of {})", Bytes(used), Bytes(limit))?;
            }
        }
        write!(
            f,
            ", floor {:.1} %, {} waiting, pace {} ms, growth penalty {:.1}",
            self.floor * 100.0,
            self.held,
            self.pacing.as_millis(),
            self.growth_penalty,
        )
    }
}

/// A count of bytes, in the largest binary unit that leaves at least one.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0 as f64, "B");
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            if value < 1_024.0 {
                break;
            }
            (value, unit) = (value / 1_024.0, larger);
        }
        if unit == "B" { write!(f, "{} B", self.0) } else { write!(f, "{value:.1} {unit}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_one_line_of_numbers() {
        let status = MemoryStatus {
            used: 492 << 20,
            limit: 512 << 20,
            ratio: 0.961,
            floor: 0.85,
            zone: MemoryZone::Critical,
            held: 3,
            pacing: Duration::from_secs(30),
            growth_penalty: 1.0,
        };
        assert_eq!(
            status.to_string(),
            "CRITICAL: 96.1 % used (492.0 MiB of 512.0 MiB), floor 85.0 %, 3 waiting, pace 30000 ms, \
             growth penalty 1.0"
        );
        let without = |used| {
            let zone = MemoryZone::Green;
            let status = MemoryStatus { used, limit: 0, ratio: 0.0, zone, ..status.clone() };
            status.to_string().split(", floor").next().map(str::to_owned)
        };
        assert_eq!(without(0).as_deref(), Some("GREEN: nothing read yet"));
        assert_eq!(without(492 << 20).as_deref(), Some("GREEN: 492.0 MiB used, of no limit"));
    }

    #[test]
    fn bytes_are_given_in_a_unit_that_fits() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1_023).to_string(), "1023 B");
        assert_eq!(Bytes(1_536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
    }
}
