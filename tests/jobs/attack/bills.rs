//! What a job is charged: prices that are none, digits without end, accounts named twice, and work
//! that did not begin.

use std::pin::pin;
use std::sync::Arc;

use admit::{
    Account, Amount, Decimal, JobInfo, ModelSpec, Money, Prices, Requirements, Resources, RunError,
    SpendLedger, Usage,
};
use futures::poll;
use tokio::time::Instant;

use super::guarded::Guarded;
use crate::support::World;

fn decimal(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_record_keeps_every_digit_that_the_ledger_keeps() {
    let ledger = SpendLedger::new();
    let world = World::with(|builder| builder.spend_gate(&ledger));
    let model = |id: &str, price| {
        ModelSpec::new(id, 60_000).with_prices(Prices::per_million(price, Decimal::ZERO))
    };
    // Together they have more digits than a decimal has, or are more than it can be.
    for (at, [one, other]) in
        [[decimal("1234567890"), decimal("0.0000000000000000000001")], [Decimal::MAX, Decimal::MAX]]
            .into_iter()
            .enumerate()
    {
        let workflow = format!("w{at}");
        let requirements = Requirements::new()
            .call(&model(&format!("one{at}"), one), Usage::new(1, 0))
            .call(&model(&format!("other{at}"), other), Usage::new(1_000, 0))
            .for_job(JobInfo::new("1", "j").in_workflow(workflow.as_str()));
        let finished = world.runner.job(requirements).run_recorded(async |_| Ok::<_, String>(()));
        let record = finished.await.record;
        assert_eq!(ledger.spent(&workflow), record.cost, "{record:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_price_below_zero_is_refused_and_earns_nothing() {
    let ledger = SpendLedger::new();
    ledger.set_cap("w", Money::usd(Decimal::ONE)).unwrap();
    let world = World::with(|builder| builder.spend_gate(&ledger));
    // Another spec of the model has made its bucket already.
    world.bucket();
    let slip = Prices::per_million(decimal("-2.5"), Decimal::TEN);
    let requirements = Requirements::new()
        .call(&world.model.clone().with_prices(slip), Usage::new(1_000, 0))
        .for_job(JobInfo::new("1", "j").in_workflow("w"));
    let error = world.runner.run(requirements, async |_| Ok::<_, String>(())).await.unwrap_err();
    assert!(matches!(error, RunError::Requirements(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "model `gpt-x` cannot be limited as specified: prices.input is -2.5, but must not be \
         negative"
    );
    assert!(ledger.spent("w").is_zero());
    assert_eq!(world.tokens_left(), 60_000);
}

#[tokio::test(start_paused = true)]
async fn what_a_job_takes_of_its_models_bucket_beside_its_calls_stays_taken() {
    let world = World::new();
    let bucket = world.bucket();
    let requirements = Requirements::new()
        .call(&world.model, Usage::new(600, 400))
        .add(&bucket, Amount { requests: 0, units: 500 });
    let job = async |resources: Resources| {
        assert_eq!(bucket.in_use(Instant::now()), 1_500);
        resources.record_usage(&world.model, Usage::new(100, 50)).unwrap();
        assert_eq!(bucket.in_use(Instant::now()), 650);
        resources.record_usage(&world.model, Usage::new(2_000, 0)).unwrap();
        assert_eq!(bucket.in_use(Instant::now()), 2_650);
        Ok::<_, String>(())
    };
    world.runner.run(requirements, job).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_for_a_call_stays_until_that_call_is_recorded() {
    let world = World::new();
    let bucket = world.bucket();
    let model = world.model.clone().with_prices(Prices::per_million(decimal("1"), decimal("1")));
    let requirements = Requirements::new()
        .call(&model, Usage::new(600, 400))
        .call(&model, Usage::new(300, 200))
        .call(&model, Usage::new(60, 40));
    let job = async |resources: Resources| {
        assert_eq!(bucket.in_use(Instant::now()), 1_600);
        resources.record_usage(&model, Usage::new(250, 50)).unwrap();
        assert_eq!(bucket.in_use(Instant::now()), 300 + 500 + 100);
        // A call that was named and not made.
        resources.record_usage(&model, Usage::default()).unwrap();
        assert_eq!(bucket.in_use(Instant::now()), 300 + 100);
        Ok::<_, String>(())
    };
    let finished = world.runner.job(requirements).run_recorded(job).await;
    finished.result.unwrap();
    assert_eq!(finished.record.cost.to_string(), "0.000400 USD");
}

#[tokio::test(start_paused = true)]
async fn a_call_recorded_in_parts_adds_up_to_what_it_used() {
    let world = World::new();
    let bucket = world.bucket();
    let requirements = Requirements::new().call(&world.model, Usage::new(600, 400));
    let job = async |resources: Resources| {
        for part in 1..=3 {
            resources.record_usage(&world.model, Usage::new(0, 100)).unwrap();
            assert_eq!(bucket.in_use(Instant::now()), 100 * part);
        }
        Ok::<_, String>(())
    };
    world.runner.run(requirements, job).await.unwrap();
}

/// A task may do only so much in one poll; where that is spent just before the job is called, the job is
/// called at the next poll, if there is one.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_just_before_its_job_is_called_costs_nothing() {
    let ledger = SpendLedger::new();
    let world = World::with(|builder| builder.spend_gate(&ledger));
    let database = Arc::new(Guarded { acquire_exhausts: true, ..Guarded::new("own", 1) });
    let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
    let requirements = Requirements::new()
        .call(&world.model.clone().with_prices(prices), Usage::new(1_000, 0))
        .database(&database)
        .for_job(JobInfo::new("1", "j").in_workflow("w"));
    let mut calls = 0;
    let job = |_| {
        calls += 1;
        std::future::pending::<Result<(), String>>()
    };
    {
        let mut run = pin!(world.runner.run(requirements, job));
        assert!(poll!(run.as_mut()).is_pending());
        assert_eq!(database.in_use(), 1);
    }
    world.settled().await;
    assert_eq!((calls, database.in_use()), (0, 0));
    assert_eq!(world.tokens_left(), 60_000);
    assert!(ledger.spent("w").is_zero() && ledger.committed("w").is_zero());
}
