//! Random jobs on random limits, against a reference of the walk that only knows integers.
//!
//! After every step the monitor's own invariants hold, its accounts and its line are those of the
//! reference, and so are who was granted, in which order and at which instant. At rest the real
//! accounts are asked once more whether anybody who waits could go.

mod accounts;
mod audit;
mod reference;
mod steps;
/// The same switch as the oracle's.
#[path = "../oracle/switch.rs"]
mod switch;
mod world;

use proptest::prelude::*;
use proptest::test_runner::Config;

/// Rare meetings of steps need some hundred cases to be seen; `PROPTEST_CASES` asks for more.
fn config() -> Config {
    let default = Config::default();
    Config {
        cases: default.cases.max(600),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_monitor_does_what_the_reference_predicts(
        setup in steps::setup(),
        steps in prop::collection::vec(steps::step(), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime of one thread");
        runtime.block_on(world::run(setup, &steps)).map_err(TestCaseError::fail)?;
    }
}
