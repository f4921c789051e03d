//! Rounds, medians, and the line a figure ends in.
//!
//! Sides are measured in interleaved rounds, each round beginning with another side, and compared
//! round by round: what disturbs the machine for longer than a round disturbs all sides alike and
//! cancels in the ratio. What is told is the median over the rounds.
//!
//! What one thread does without ever sleeping is measured by that thread's processor time, which on
//! an idle machine is the time it took, and on a busy one leaves out what others had of it.
//!
//! With `ADMIT_BENCH_QUICK=1` in the environment every bench runs with small sizes, to see that it
//! runs; its figures then mean nothing.

#![allow(dead_code, reason = "every bench uses its own part of it")]

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    is_quick: bool,
}

impl Plan {
    pub(crate) fn from_env() -> Self {
        let is_quick = std::env::var_os("ADMIT_BENCH_QUICK").is_some_and(|value| value != "0");
        if is_quick {
            println!("quick: the figures of this run mean nothing");
        }
        Self { is_quick }
    }

    /// The first value in a run that counts, the second in a quick one.
    pub(crate) const fn pick<T: Copy>(self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }
}

/// Ends a bench: the value the bound is stated on.
pub(crate) fn figure(name: &str, value: f64) {
    println!("figure {name} {value:.3}");
}

/// A value that explains a figure and has no bound of its own.
pub(crate) fn note(name: &str, value: f64) {
    println!("  note {name} {value:.3}");
}

/// A side to be measured: one call is one round, and answers its value, mostly nanoseconds.
pub(crate) type Side<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// The values of every side, round by round.
pub(crate) fn rounds(count: usize, mut sides: Vec<Side<'_>>) -> Rounds {
    let mut values = vec![Vec::with_capacity(count); sides.len()];
    for round in 0..count {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            values[at].push(sides[at]());
        }
    }
    Rounds { values }
}

/// What [`rounds`] measured.
pub(crate) struct Rounds {
    values: Vec<Vec<f64>>,
}

impl Rounds {
    /// The median of one side.
    pub(crate) fn of(&self, side: usize) -> f64 {
        median(self.values[side].iter().copied())
    }

    /// The median, over the rounds, of one side's value over another's.
    pub(crate) fn ratio(&self, side: usize, other: usize) -> f64 {
        let pairs = self.values[side].iter().zip(&self.values[other]);
        median(pairs.map(|(side, other)| side / other))
    }
}

/// The middle value; of an even number, the mean of the middle two.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) }
}

/// Runs while this thread does, and only there.
pub(crate) struct Stopwatch(Duration);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(of_this_thread())
    }

    /// Nanoseconds since the start, for each of so many.
    pub(crate) fn nanos_each(&self, count: usize) -> f64 {
        of_this_thread().saturating_sub(self.0).as_nanos() as f64 / count as f64
    }
}

/// What the thread has used of a processor so far.
#[cfg(unix)]
pub(crate) fn of_this_thread() -> Duration {
    used(rustix::time::ClockId::ThreadCPUTime)
}

/// What the process has used of the processors so far.
#[cfg(unix)]
pub(crate) fn of_this_process() -> Duration {
    used(rustix::time::ClockId::ProcessCPUTime)
}

#[cfg(unix)]
fn used(clock: rustix::time::ClockId) -> Duration {
    let used = rustix::time::clock_gettime(clock);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// The real time, where there is no other.
#[cfg(not(unix))]
pub(crate) fn of_this_thread() -> Duration {
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    ORIGIN.elapsed()
}

#[cfg(not(unix))]
pub(crate) fn of_this_process() -> Duration {
    of_this_thread()
}

/// Real nanoseconds since an instant, for each of so many.
pub(crate) fn real_nanos_each(since: Instant, count: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / count as f64
}

/// A runtime of one thread: the caller's.
pub(crate) fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// A runtime of one thread whose clock moves only when nothing else can be done.
pub(crate) fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// Nanoseconds a call, over so many calls in a row on this thread.
///
/// Without the cooperative budget: a job on three semaphores spends three units of it, a demand of
/// three accounts one, so with it the peers would pay for more yields.
pub(crate) fn in_a_row(runtime: &Runtime, count: usize, job: impl AsyncFn()) -> f64 {
    runtime.block_on(tokio::task::unconstrained(async {
        let watch = Stopwatch::start();
        for _ in 0..count {
            job().await;
        }
        watch.nanos_each(count)
    }))
}

/// Polls once, for nobody: it must have to wait.
pub(crate) fn park<F: Future + Unpin>(future: &mut F) {
    let mut cx = Context::from_waker(Waker::noop());
    let polled = std::pin::Pin::new(future).poll(&mut cx);
    assert!(matches!(polled, Poll::Pending), "it has to wait");
}

/// Numbers without a pattern, the same in every run (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 1 to `most`.
    pub(crate) const fn up_to(&mut self, most: u64) -> u64 {
        1 + self.next() % most
    }

    /// `0..count` in random order (Fisher and Yates).
    pub(crate) fn order(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for at in (1..count).rev() {
            order.swap(at, (self.next() % (at as u64 + 1)) as usize);
        }
        order
    }
}
