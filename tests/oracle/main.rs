//! The monitor against the plain walk, on real accounts.
//!
//! Every account is built twice from one description: one set serves the monitor, its twin a walk
//! that asks everybody in order of arrival. The same happens to both at the same instants of a
//! paused clock; then who was granted, in which order and at which instants, who was refused, who
//! timed out, the line and every level must be the same.
//!
//! The long mode: `ADMIT_ORACLE_STEPS=20000000 cargo test --release --test oracle`. Another part of
//! the random histories: `ADMIT_ORACLE_SEED=1000000`, the seed of the first case. A failing case is
//! told with its seed and with as few of its steps as still fail.

mod compare;
mod plain;
mod seen;
mod steps;
mod switch;
mod twin;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use admit::testing::Draw;

use crate::seen::Seen;
use crate::steps::{Setup, Step};

/// Random steps in an ordinary run.
const STEPS: u64 = 120_000;
/// Steps a case: long enough for lines to grow, and for circuits to open and close.
const STEPS_A_CASE: u64 = 1_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn run(setup: &Setup, steps: &[Step]) -> Result<Seen, String> {
    let case = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime of one thread")
            // One poll here collects more jobs than a task's budget allows.
            .block_on(tokio::task::unconstrained(world::run(setup, steps)))
    };
    catch_unwind(AssertUnwindSafe(case)).unwrap_or_else(|panic| {
        let text = panic.downcast::<String>().map_or_else(|_| String::new(), |text| *text);
        Err(format!("it panicked: {text}"))
    })
}

/// As few of the steps as still fail.
fn shrink(setup: &Setup, mut steps: Vec<Step>) -> Vec<Step> {
    let mut size = steps.len().div_ceil(2);
    loop {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            if run(setup, &fewer).is_err() {
                steps = fewer;
            } else {
                at += size;
            }
        }
        if size == 1 && steps.len() == before {
            return steps;
        }
        size = (size / 2).max(1);
    }
}

#[test]
fn the_monitor_grants_what_a_walk_over_everybody_would() {
    let cases = number("ADMIT_ORACLE_STEPS", STEPS).div_ceil(STEPS_A_CASE);
    let first = number("ADMIT_ORACLE_SEED", 1);
    let mut seen = Seen::default();
    for seed in first..first + cases {
        let mut draw = Draw::new(seed);
        let setup = steps::setup(&mut draw);
        let steps: Vec<_> = (0..STEPS_A_CASE).map(|_| steps::step(&setup, &mut draw)).collect();
        match run(&setup, &steps) {
            Ok(other) => seen.add(other),
            Err(_) => {
                let steps = shrink(&setup, steps);
                let error = run(&setup, &steps).unwrap_err();
                let told: Vec<_> = steps.iter().map(|step| format!("  {step:?}")).collect();
                panic!("seed {seed}: {error}\n{setup:?}\n{}", told.join("\n"));
            }
        }
    }
    println!("{} steps: {seen:?}", cases * STEPS_A_CASE);
    seen.check(cases);
}
