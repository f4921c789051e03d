//! The limits a case begins with.

use std::fmt;
use std::time::Duration;

use admit::{Amount, Limits, WindowConfig};
use proptest::prelude::*;

/// The accounts of a case, by position.
pub(crate) const GATES: [usize; 2] = [0, 1];
pub(crate) const BUCKETS: [usize; 2] = [2, 3];
pub(crate) const WINDOW: usize = 4;
pub(crate) const OWN: usize = 5;
/// Made by a router when a demand names them, and forgotten: two gates and a bucket.
pub(crate) const LANES: [usize; 3] = [6, 7, 8];
pub(crate) const ACCOUNTS: usize = 9;
/// Nobody names it; it is told of like an account.
pub(crate) const MEMORY: usize = 9;

pub(crate) const NAMES: [&str; ACCOUNTS + 1] = [
    "left gate",
    "right gate",
    "small bucket",
    "large bucket",
    "window",
    "own",
    "lane a",
    "lane b",
    "lane c",
    "memory",
];

/// What one job wants of one account, by position.
pub(crate) type Part = (usize, Amount);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gate,
    Bucket,
    Window,
    Own,
}

pub(crate) const fn kind(account: usize) -> Kind {
    match account {
        2 | 3 | 8 => Kind::Bucket,
        WINDOW => Kind::Window,
        OWN => Kind::Own,
        _ => Kind::Gate,
    }
}

/// Whether amounts come back when the work ends.
pub(crate) const fn comes_back(account: usize) -> bool {
    matches!(kind(account), Kind::Gate | Kind::Own)
}

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) gates: [u32; 2],
    pub(crate) buckets: [(u32, u64); 2],
    pub(crate) window: Window,
    pub(crate) own: u32,
    pub(crate) lane_places: u32,
    pub(crate) lane_limits: (u32, u64),
    /// A memory gate, and its first reading in tenths of a percent.
    pub(crate) memory: Option<u64>,
    pub(crate) max_waiting: usize,
    /// Somebody listens to the events.
    pub(crate) is_watched: bool,
    /// Who holds what is kept.
    pub(crate) is_tracked: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) max: u32,
    pub(crate) per_ms: u64,
    pub(crate) most_throttle: u32,
    pub(crate) to_open: u32,
    pub(crate) cooldown_ms: u64,
    pub(crate) hold_ms: u64,
}

impl Window {
    pub(crate) fn config(self) -> WindowConfig {
        let cooldown = Duration::from_millis(self.cooldown_ms);
        WindowConfig {
            max: self.max,
            per: Duration::from_millis(self.per_ms),
            max_throttle: f64::from(self.most_throttle),
            successes_per_decrease: 1,
            failures_to_open: self.to_open,
            initial_cooldown: cooldown,
            max_cooldown: cooldown * 4,
            probe_timeout: Some(cooldown * 2),
            max_hold: Duration::from_millis(self.hold_ms),
        }
    }
}

pub(crate) const fn limits((requests, tokens): (u32, u64)) -> Limits {
    Limits::per_minute(requests, tokens)
}

/// A failing case is read: one line of its limits.
impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gates, buckets, window, own, lane_places, lane_limits, memory, .. } = self;
        write!(f, "gates of {} and {}, ", gates[0], gates[1])?;
        for (requests, tokens) in buckets {
            write!(f, "bucket {requests}/{tokens}, ")?;
        }
        let Window { max, per_ms, most_throttle, to_open, cooldown_ms, hold_ms } = window;
        write!(f, "window {max} in {per_ms} ms (throttle up to {most_throttle}, ")?;
        write!(
            f,
            "opens after {to_open} for {cooldown_ms} ms, held for {hold_ms} ms at most), own gate of {own}, "
        )?;
        write!(f, "lanes of {lane_places} and {}/{}", lane_limits.0, lane_limits.1)?;
        if let Some(tenths) = memory {
            write!(f, ", memory at {:.1} %", *tenths as f64 / 10.0)?;
        }
        if self.max_waiting < usize::MAX {
            write!(f, ", at most {} wait", self.max_waiting)?;
        }
        if !self.is_watched {
            write!(f, ", nobody listens")?;
        }
        if self.is_tracked {
            write!(f, ", holders are kept")?;
        }
        Ok(())
    }
}

fn window() -> impl Strategy<Value = Window> {
    let hold = prop_oneof![Just(0), 1..=2_000_u64];
    (2..=4_u32, 1..=9_000_u64, 0..=2_u32, 1..=3_u32, 100..=20_000_u64, hold).prop_map(
        |(max, per_ms, most_throttle, to_open, cooldown_ms, hold_ms)| Window {
            max,
            per_ms,
            most_throttle,
            to_open,
            cooldown_ms,
            hold_ms,
        },
    )
}

pub(crate) fn setup() -> impl Strategy<Value = Setup> {
    let bucket = || (1..=6_u32, 3..=20_u64);
    (
        [1..=5_u32, 2..=4],
        [bucket(), bucket()],
        window(),
        1..=3_u32,
        (1..=2_u32, bucket()),
        prop_oneof![2 => Just(None), 1 => (700..=960_u64).prop_map(Some)],
        prop_oneof![4 => Just(usize::MAX), 1 => 0..=6_usize],
        (prop::bool::weighted(0.6), prop::bool::weighted(0.2)),
    )
        .prop_map(|(gates, buckets, window, own, lanes, memory, max_waiting, watches)| {
            let (lane_places, lane_limits) = lanes;
            let (is_watched, is_tracked) = watches;
            Setup {
                gates,
                buckets,
                window,
                own,
                lane_places,
                lane_limits,
                memory,
                max_waiting,
                is_watched,
                is_tracked,
            }
        })
}
