//! The whole monitor as a state machine: random jobs over accounts of every kind, and everything
//! that can happen to them.
//!
//! The model beside it knows who asked, how the limits stand and what lives; a ledger is kept of the
//! events. `tests/model` and `tests/oracle` predict every grant; here nothing is predicted, so more
//! may happen: an account that panics anywhere, a stop, a runtime that is lost under the evaluator
//! and another started, lanes of a router that are forgotten and made anew. After every step nothing
//! is overdrawn and nothing lost, whoever is held goes or is rejected once, equals go in order of
//! arrival, the head is not overtaken; at rest nobody waits who fits; and in the end everybody who
//! waits has gone, and nothing is left.
//!
//! `ADMIT_MACHINE_CASES=100000 cargo test --release --test machine` runs more of it. A case that
//! fails is told with its limits and as few of its steps as still fail.

mod flow;
mod invariants;
mod lawful;
mod ledger;
mod model;
/// The same account as the field cases'.
#[path = "../field/own.rs"]
mod own;
mod seen;
mod setup;
mod transition;
mod world;

use std::cell::Cell;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

use proptest::test_runner::{Config, TestError, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use crate::model::Model;
use crate::transition::Transition;
use crate::world::World;

/// Cases in an ordinary run.
const CASES: u32 = 800;
/// Steps a case, at the most.
const STEPS: usize = 120;

/// The machine, with or without a fault planted in what it tells.
struct Machine<const PLANTED: bool>;

impl<const PLANTED: bool> StateMachineTest for Machine<PLANTED> {
    type SystemUnderTest = World;
    type Reference = Model;

    fn init_test(model: &Model) -> World {
        World::new(&model.setup)
    }

    fn apply(mut world: World, model: &Model, transition: Transition) -> World {
        world.apply(model, &transition).unwrap_or_else(|error| panic!("{error}"));
        world
    }

    fn check_invariants(world: &World, model: &Model) {
        world.check(model).unwrap_or_else(|error| panic!("{error}"));
        assert!(!PLANTED || world.ledger.from_hold < 1, "the planted fault");
    }

    fn teardown(world: World, model: Model) {
        let gone = world.end(&model).and_then(|world| {
            seen::add(&model, &world);
            world.vanish()
        });
        gone.unwrap_or_else(|error| panic!("at the end: {error}"));
    }
}

/// Runs the cases; answers the least of those that fail: why, and its steps.
fn run<const PLANTED: bool>(cases: u32) -> Result<(), (String, Vec<String>)> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let strategy = Model::sequential_strategy(1..=STEPS);
    let run = TestRunner::new(config.clone()).run(&strategy, |(model, transitions, seen)| {
        Machine::<PLANTED>::test_sequential(config.clone(), model, transitions, seen);
        Ok(())
    });
    run.map_err(|error| match error {
        TestError::Fail(reason, (model, transitions, _)) => {
            let steps = transitions.iter().map(|step| format!("{step:?}"));
            (format!("{reason}\n{model:?}"), steps.collect())
        }
        TestError::Abort(reason) => (reason.to_string(), Vec::new()),
    })
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Without the noise of panics that are contained, or are a failure on the way to a smaller one.
fn quietly<R>(act: impl FnOnce() -> R) -> R {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                hook(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = act();
    IS_QUIET.set(false);
    result
}

fn cases() -> u32 {
    let asked = ["ADMIT_MACHINE_CASES", "PROPTEST_CASES"];
    let asked = asked.iter().find_map(|name| std::env::var(name).ok());
    asked.map_or(CASES, |text| text.parse().expect("a number"))
}

#[test]
fn whatever_happens_nothing_is_lost_overdrawn_or_left_waiting() {
    let cases = cases();
    if let Err((why, steps)) = quietly(|| run::<false>(cases)) {
        panic!("{why}\n  {}", steps.join("\n  "));
    }
    seen::check(u64::from(cases));
}

#[test]
fn a_case_that_fails_is_told_in_few_steps_that_can_be_read() {
    const FEW: usize = 8;
    let find = || quietly(|| run::<true>(200)).expect_err("somebody waits, and is granted");
    let (mut why, mut steps) = find();
    // Now and then what is left out one by one ends a step or two above the least.
    for _ in 0..4 {
        if steps.len() > FEW {
            (why, steps) = find();
        }
    }
    assert!(why.contains("the planted fault") && why.contains("gates of"), "{why}");
    assert!(steps.len() <= FEW, "{steps:?}");
    assert!(steps.iter().any(|step| step.contains(" wants ")), "{steps:?}");
}
