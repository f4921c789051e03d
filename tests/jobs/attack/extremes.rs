//! Numbers without end, and runs within runs.

use std::sync::Arc;

use admit::{
    Decimal, JobInfo, ModelSpec, Money, Prices, Requirements, Resources, RunError, RunStage,
    SpendLedger, Usage,
};
use tokio::task::yield_now;

use super::guarded::Guarded;
use super::secs;
use crate::support::World;

#[tokio::test(start_paused = true)]
async fn a_usage_beyond_all_counting_is_a_debt_and_no_panic() {
    let ledger = SpendLedger::new();
    let world = World::with(|builder| builder.spend_gate(&ledger));
    let prices = Prices::per_million(Decimal::MAX, Decimal::MAX);
    let model = world.model.clone().with_prices(prices);
    let info = || JobInfo::new("1", "j").in_workflow("w");
    let requirements = || Requirements::new().call(&model, Usage::new(1, 0)).for_job(info());
    let most = Usage::new(u64::MAX, u64::MAX).with_cache(u64::MAX, u64::MAX);
    let job = async |resources: Resources| {
        for _ in 0..2 {
            let cost = resources.record_usage(&model, most).unwrap().unwrap();
            assert!(cost.is_saturated());
        }
        Ok::<_, String>(())
    };
    let finished = world.runner.job(requirements()).run_recorded(job).await;
    finished.result.unwrap();
    assert_eq!(ledger.spent("w"), finished.record.cost);
    let next = world.runner.job(requirements()).within(secs(86_400));
    let error = next.run(async |_| Ok::<_, String>(())).await.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { stage: RunStage::Admission, .. }), "{error}");
    ledger.set_cap("w", Money::usd(Decimal::MAX)).unwrap();
    let refused = world.runner.run(requirements(), async |_| Ok::<_, String>(())).await;
    assert!(refused.unwrap_err().is_spend_refusal());
    assert!(ledger.committed("w").is_zero());
    // More than can be asked for is refused by name, and reserves nothing.
    let too_much = Requirements::new().call(&world.model, most).call(&world.model, most);
    let ran = world.runner.run(too_much, async |_| Ok::<_, String>(())).await;
    assert!(ran.unwrap_err().to_string().contains("`gpt-x`"));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_models_in_one_job_are_each_admitted_and_priced() {
    let world = World::new();
    let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
    let models: Vec<_> = (0..1_000)
        .map(|at| ModelSpec::new(format!("m{at}"), 60_000).with_prices(prices.clone()))
        .collect();
    let requirements =
        models.iter().fold(Requirements::new(), |all, model| all.call(model, Usage::new(1_000, 0)));
    let job = async |resources: Resources| {
        for model in &models {
            resources.record_usage(model, Usage::new(500, 0)).unwrap();
        }
        Ok::<_, String>(resources.demand().entries().len())
    };
    let finished = world.runner.job(requirements).run_recorded(job).await;
    assert_eq!(finished.result.unwrap(), 1_001);
    assert_eq!(finished.record.cost.to_string(), "0.500000 USD");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_run_has_its_own_sessions_and_the_outer_job_keeps_its() {
    let world = World::new();
    let (outer, inner) = (&world.databases[0], &world.databases[1]);
    let job = async |_| {
        assert_eq!(&*admit::ambient(outer).unwrap(), "a");
        let nested = async |_| {
            assert_eq!(&*admit::ambient(inner).unwrap(), "b");
            assert!(admit::ambient(outer).is_err());
            yield_now().await;
            Ok::<_, String>(())
        };
        world.runner.run(Requirements::new().database(inner), nested).await.unwrap();
        assert_eq!(&*admit::ambient(outer).unwrap(), "a");
        assert!(admit::ambient(inner).is_err());
        Ok::<_, String>(())
    };
    world.runner.run(Requirements::new().database(outer), job).await.unwrap();
    world.settled().await;
    assert_eq!(world.log.text(), "a.acquire b.acquire b.close a.close");
}

#[tokio::test(start_paused = true)]
async fn two_that_nest_on_a_bound_of_one_wait_no_longer_than_they_were_given() {
    let world = World::new();
    let database = Arc::new(Guarded::new("one", 1));
    let requirements = || Requirements::new().database(&database);
    let job = async |_| {
        let nested = world.runner.job(requirements()).within(secs(3));
        let error = nested.run(async |_| Ok::<_, String>(())).await.unwrap_err();
        assert!(error.to_string().contains("`db:one` is short of"), "{error}");
        Ok::<_, String>(())
    };
    let both =
        tokio::join!(world.runner.run(requirements(), job), world.runner.run(requirements(), job));
    assert!(both.0.is_ok() && both.1.is_ok());
    world.settled().await;
    assert_eq!(database.in_use(), 0);
}

/// A job whose future is some more than so many bytes.
async fn large<const N: usize>() -> Result<(), String> {
    let bytes = [0_u8; N];
    yield_now().await;
    std::hint::black_box(&bytes);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_keeps_room_for_its_job_once_however_deep_they_nest() {
    let world = World::new();
    let own = size_of_val(&world.runner.run(Requirements::new(), |_| large::<16>()));
    let run = size_of_val(&world.runner.run(Requirements::new(), |_| large::<16_000>()));
    assert!(run < own + 17_000, "{own} bytes, and with a job of 16,000 {run}");
    let nested = world.runner.run(Requirements::new(), async |_| {
        let inner = world.runner.run(Requirements::new(), |_| large::<16>());
        inner.await.map_err(|error| error.to_string())
    });
    let nested = size_of_val(&nested);
    assert!(nested < 3 * own, "{own} bytes, and nested {nested}");
}
