//! Attacks on the runner: each test is named for what would go wrong.

mod bills;
mod extremes;
mod guarded;
mod guards;
mod panics;
mod runtimes;
mod storm;
mod threads;
mod time;
mod verbs;
mod words;

use std::time::Duration;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
