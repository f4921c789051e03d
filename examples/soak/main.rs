//! Millions of jobs with everything that goes wrong, and at the end what was left behind.
//!
//! ```text
//! cargo run --release --example soak                  # hours of virtual time, about two minutes
//! cargo run --release --example soak -- --real 600    # ten minutes on the real clock, on threads
//! cargo run --release --example soak -- --help
//! ```
//!
//! Two admissions share gates, buckets, a window and a memory gate; only one of them is listened to,
//! so that both of the monitor's paths are walked. Jobs also name lanes of a router and gates of
//! their own, which live for a few jobs. They are dropped in the line, cancelled, aborted, they
//! panic, fail, roll back and settle late; memory spikes; from time to time a runtime goes away in
//! the middle of everything, and an admission is stopped and another built. At the end nobody may
//! wait, nothing be held, no account live that nobody uses, no task be left, no timer be set, and
//! the process not have grown. Then the exit code is zero.

mod faults;
mod job;
mod leaks;
mod run;
mod tally;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, value_parser};

/// Run jobs with every fault there is, and tell what was left behind.
#[derive(Clone, Debug, Parser)]
#[command(name = "soak", version)]
pub(crate) struct Args {
    /// How many jobs; with --real the most
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub(crate) jobs: Option<u64>,

    /// The seed of everything random
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,

    /// On the real clock and on threads, for so many seconds, instead of virtual time
    ///
    /// The last jobs then have the time they need: a line that memory held drains one by one.
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=604_800))]
    pub(crate) real: Option<u64>,
}

impl Args {
    /// As many as take about two minutes; with a time, as many as fit into it.
    const JOBS: u64 = 12_000_000;

    pub(crate) fn jobs(&self) -> u64 {
        self.jobs.unwrap_or(if self.real.is_some() { u64::MAX } else { Self::JOBS })
    }

    pub(crate) fn real(&self) -> Option<Duration> {
        self.real.map(Duration::from_secs)
    }
}

fn main() -> ExitCode {
    faults::keep_planned_panics_quiet();
    match run::run(&Args::parse()) {
        Ok(leaks) if leaks.is_empty() => {
            println!("nothing was left behind");
            ExitCode::SUCCESS
        }
        Ok(leaks) => {
            for leak in leaks {
                println!("left behind: {leak}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_thousand_jobs_leave_nothing_behind() {
        faults::keep_planned_panics_quiet();
        let args = Args { jobs: Some(6_000), seed: 7, real: None };
        assert_eq!(run::run(&args).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn nor_do_they_on_threads() {
        faults::keep_planned_panics_quiet();
        let args = Args { jobs: Some(3_000), seed: 8, real: Some(1) };
        assert_eq!(run::run(&args).unwrap(), Vec::<String>::new());
    }
}
