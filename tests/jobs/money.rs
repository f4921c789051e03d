//! Money: nothing is spent past a cap, and what a job cost is what it used.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use admit::{
    Currency, DbVerb, Decimal, JobInfo, ModelSpec, Money, Priced, Prices, Requirements,
    Reservation, Resources, RetryPolicy, RunError, SpendGate, SpendLedger, SpendRefusal,
    UpstreamFailure, Usage, UsageError,
};
use tokio::task::JoinSet;

use crate::support::{Fault, World};

fn decimal(text: &str) -> Decimal {
    text.parse().unwrap()
}

fn usd(text: &str) -> Money {
    Money::new(decimal(text), Currency::USD)
}

/// A dollar a million tokens, either way.
fn dollar_model() -> ModelSpec {
    let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
    ModelSpec::new("priced", 10_000_000).with_prices(prices)
}

/// One call of the model, of 1,000 tokens, in the workflow `w`: a tenth of a cent.
fn one_call(model: &ModelSpec) -> Requirements {
    let job = JobInfo::new("1", "j").in_workflow("w");
    Requirements::new().call(model, Usage::new(600, 400)).for_job(job)
}

fn capped(cap: &str) -> (Arc<SpendLedger>, World) {
    let ledger = SpendLedger::new();
    ledger.set_cap("w", usd(cap)).unwrap();
    let world = World::with(|builder| builder.spend_gate(&ledger));
    (ledger, world)
}

#[tokio::test(start_paused = true)]
async fn what_is_recorded_replaces_what_was_reserved_on_bucket_and_ledger() {
    let (ledger, world) = capped("1");
    let model = dollar_model();
    let bucket = world.accounts.bucket(&model).unwrap();
    let job = async |resources: Resources| {
        assert_eq!(ledger.committed("w").to_string(), "0.001000 USD");
        let cost = resources.record_usage(&model, Usage::new(100, 50)).unwrap();
        assert_eq!(cost.unwrap(), usd("0.00015"));
        resources.record_usage(&model, Usage::new(100, 50)).unwrap();
        assert_eq!(bucket.status().available_tokens, 10_000_000 - 300);
        Ok::<_, String>(())
    };
    let finished = world.runner.job(one_call(&model)).run_recorded(job).await;
    finished.result.unwrap();
    assert_eq!(finished.record.cost.to_string(), "0.000300 USD");
    assert_eq!(ledger.spent("w"), finished.record.cost);
    assert!(ledger.committed("w").is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_usage_that_is_said_to_be_of_a_call_replaces_what_was_reserved_for_that_call() {
    let (ledger, world) = capped("1");
    let model = dollar_model();
    let bucket = world.accounts.bucket(&model).unwrap();
    let job = JobInfo::new("1", "j").in_workflow("w");
    let both = Requirements::new()
        .call(&model, Usage::new(9_000, 0))
        .call(&model, Usage::new(100, 0))
        .for_job(job);
    let job = async |resources: Resources| {
        let charged = || 10_000_000 - bucket.status().available_tokens;
        // The short one is back first, and the long one is still reserved.
        resources.record_usage_of(&model, 1, Usage::new(90, 0)).unwrap();
        assert_eq!(charged(), 9_090);
        resources.record_usage_of(&model, 1, Usage::new(5, 0)).unwrap();
        assert_eq!(charged(), 9_095);
        let beyond = resources.record_usage_of(&model, 2, Usage::new(1, 0)).unwrap_err();
        assert_eq!(
            beyond.to_string(),
            "model `priced`: there is no call 2 among the 2 this job named, \
            counted from 0; require a call for each time the model is called"
        );
        // The first that has none.
        resources.record_usage(&model, Usage::new(8_000, 0)).unwrap();
        assert_eq!(charged(), 8_095);
        resources.record_usage(&model, Usage::new(5, 0)).unwrap();
        assert_eq!(charged(), 8_100);
        Ok::<_, UsageError>(())
    };
    world.runner.run(both, job).await.unwrap();
    assert_eq!(ledger.spent("w").to_string(), "0.008100 USD");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_recorded_counts_as_reserved_whatever_the_outcome() {
    let (ledger, world) = capped("1");
    let model = dollar_model();
    world.runner.run(one_call(&model), async |_| Ok::<_, String>(())).await.unwrap();
    assert_eq!(ledger.spent("w").to_string(), "0.001000 USD");
    let _ = world.runner.run(one_call(&model), async |_| Err::<(), _>("no".to_owned())).await;
    assert_eq!(ledger.spent("w").to_string(), "0.002000 USD");
    let forever = async |_| std::future::pending::<Result<(), String>>().await;
    let _ = world.runner.job(one_call(&model)).within(Duration::from_secs(1)).run(forever).await;
    assert_eq!(ledger.spent("w").to_string(), "0.003000 USD");
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_count_twice() {
    let (ledger, world) = capped("0.001");
    let model = dollar_model();
    let attempts = std::cell::Cell::new(0);
    let finished = world.runner.job(one_call(&model)).run_recorded(async |_| {
        attempts.set(attempts.get() + 1);
        if attempts.get() < 3 {
            return Err(UpstreamFailure::status(500, "elsewhere", ""));
        }
        Ok(())
    });
    let finished = finished.await;
    finished.result.unwrap();
    assert_eq!(finished.record.attempts, 3);
    assert_eq!(finished.record.cost.to_string(), "0.001000 USD");
    assert_eq!(ledger.spent("w").to_string(), "0.001000 USD");
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_attempt_recorded_is_spent_and_may_end_the_retries() {
    let (ledger, world) = capped("0.001");
    let model = dollar_model();
    let ran = world.runner.run(one_call(&model), async |resources: Resources| {
        resources.record_usage(&model, Usage::new(1, 0)).unwrap();
        Err::<(), _>(UpstreamFailure::status(500, "elsewhere", ""))
    });
    assert!(matches!(ran.await, Err(RunError::Spend(_))));
    assert_eq!(ledger.spent("w").to_string(), "0.000001 USD");
    assert!(ledger.committed("w").is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_hundred_siblings_at_once_never_pass_the_cap_together() {
    let (ledger, world) = capped("0.025");
    let model = dollar_model();
    let mut siblings = JoinSet::new();
    for _ in 0..100 {
        let (runner, requirements) = (world.runner.clone(), one_call(&model));
        siblings.spawn(async move {
            let job = async |_| {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, String>(())
            };
            runner.run(requirements, job).await
        });
    }
    let (mut done, mut refused) = (0, 0);
    while let Some(ran) = siblings.join_next().await {
        match ran.unwrap() {
            Ok(()) => done += 1,
            Err(error) => {
                assert!(error.is_spend_refusal(), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((done, refused), (25, 75));
    assert_eq!(ledger.spent("w").to_string(), "0.025000 USD");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_comes_before_any_waiting_and_takes_nothing() {
    let (ledger, world) = capped("0.0009");
    let model = dollar_model();
    // The line is long, and the refused job does not join it.
    let bucket = world.accounts.bucket(&model).unwrap();
    let all = admit::Demand::new().tokens(&bucket, 10_000_000);
    let held = world.admission.admit(all).await.unwrap();
    let ran = world.runner.run(one_call(&model), async |_| Ok::<_, String>(())).await;
    let text = ran.unwrap_err().to_string();
    for part in ["`w`", "0.000900 USD", "0.001000 USD", "nothing running"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(ledger.spent("w").is_zero() && ledger.committed("w").is_zero());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_job_without_models_is_not_shown_to_the_gates() {
    let ledger = SpendLedger::new();
    ledger.set_cap("w", usd("0")).unwrap();
    let witness = Arc::new(Witness::default());
    let world = World::with(|builder| builder.spend_gate(&witness).spend_gate(&ledger));
    let job = JobInfo::new("1", "j").in_workflow("w");
    let requirements = Requirements::new().permit(&world.own).for_job(job);
    world.runner.run(requirements, async |_| Ok::<_, String>(())).await.unwrap();
    assert!(witness.seen().is_empty(), "{:?}", witness.seen());
    let refused = world.runner.run(one_call(&dollar_model()), async |_| Ok::<_, String>(())).await;
    assert!(refused.unwrap_err().is_spend_refusal());
}

#[tokio::test(start_paused = true)]
async fn caps_are_set_and_lifted_while_jobs_run() {
    let (ledger, world) = capped("0.001");
    let model = dollar_model();
    let run = async || world.runner.run(one_call(&model), async |_| Ok::<_, String>(())).await;
    run().await.unwrap();
    assert!(run().await.unwrap_err().is_spend_refusal());
    ledger.set_cap("w", usd("0.002")).unwrap();
    run().await.unwrap();
    assert!(run().await.is_err());
    ledger.lift_cap("w", Currency::USD);
    run().await.unwrap();
    // Set under a running job: it is not stopped, and the next is refused.
    let job = async |_| {
        ledger.set_cap("w", usd("0.0005")).unwrap();
        Ok::<_, String>("not stopped")
    };
    assert_eq!(world.runner.run(one_call(&model), job).await.unwrap(), "not stopped");
    assert!(run().await.is_err());
    assert_eq!(ledger.spent("w").to_string(), "0.004000 USD");
}

#[tokio::test(start_paused = true)]
async fn two_currencies_are_reserved_together_or_not_at_all() {
    let (ledger, world) = capped("1");
    let euros = ModelSpec::new("priced-in-euros", 1_000_000)
        .with_prices(Prices::per_million(Decimal::ONE, Decimal::ONE).in_currency(Currency::EUR));
    let both = || one_call(&dollar_model()).call(&euros, Usage::new(1_000, 1_000));
    let run = async || world.runner.run(both(), async |_| Ok::<_, String>(())).await;
    assert!(run().await.unwrap_err().to_string().contains("EUR"));
    assert!(ledger.committed("w").is_zero());
    ledger.set_cap("w", Money::new(decimal("0.002"), Currency::EUR)).unwrap();
    run().await.unwrap();
    assert_eq!(ledger.spent("w").to_string(), "0.001000 USD + 0.002000 EUR");
    assert!(run().await.unwrap_err().is_spend_refusal());
    assert!(ledger.committed("w").is_zero());
}

#[tokio::test(start_paused = true)]
async fn an_unpriced_model_is_refused_under_a_cap_and_free_without() {
    let (ledger, world) = capped("1");
    let run =
        async || world.runner.run(one_call(&world.model), async |_| Ok::<_, String>(())).await;
    let text = run().await.unwrap_err().to_string();
    assert!(text.contains("`gpt-x`"), "{text}");
    ledger.lift_cap("w", Currency::USD);
    run().await.unwrap();
}

/// Admits everything but what it is told not to, and writes down how its reservations end.
#[derive(Default)]
struct Witness {
    refuses: bool,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Witness {
    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl SpendGate for Witness {
    fn admit(&self, job: &JobInfo, priced: &[Priced]) -> Result<Reservation, SpendRefusal> {
        let costs: Vec<_> =
            priced.iter().map(|call| call.cost.map_or("?".to_owned(), |c| c.to_string())).collect();
        self.seen.lock().unwrap().push(format!("{}: {}", job.id, costs.join(", ")));
        if self.refuses {
            return Err(SpendRefusal::Other { gate: "witness".into(), reason: "no".into() });
        }
        let seen = Arc::clone(&self.seen);
        Ok(Reservation::new(move |end| {
            let ended = end.map_or("taken back".to_owned(), |cost| format!("settled: {cost}"));
            seen.lock().unwrap().push(ended);
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_gate_that_refuses_leaves_nothing_with_an_earlier_one() {
    let ledger = SpendLedger::new();
    ledger.set_cap("w", usd("1")).unwrap();
    let first = Arc::new(Witness::default());
    let last = Arc::new(Witness { refuses: true, ..Witness::default() });
    let world =
        World::with(|builder| builder.spend_gate(&first).spend_gate(&ledger).spend_gate(&last));
    let ran = world.runner.run(one_call(&dollar_model()), async |_| Ok::<_, String>(())).await;
    assert!(ran.unwrap_err().is_spend_refusal());
    assert_eq!(first.seen(), ["1: 0.001000 USD", "taken back"]);
    assert_eq!(last.seen(), ["1: 0.001000 USD"]);
    assert!(ledger.committed("w").is_zero());
}

#[tokio::test(start_paused = true)]
async fn every_gate_is_told_what_the_job_cost() {
    let gates = [Arc::new(Witness::default()), Arc::new(Witness::default())];
    let world = World::with(|builder| builder.spend_gate(&gates[0]).spend_gate(&gates[1]));
    let model = dollar_model();
    let job = async |resources: Resources| {
        resources.record_usage(&model, Usage::new(100, 50)).unwrap();
        Ok::<_, String>(())
    };
    world.runner.run(one_call(&model), job).await.unwrap();
    for gate in gates {
        assert_eq!(gate.seen(), ["1: 0.001000 USD", "settled: 0.000150 USD"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_never_worked_takes_its_reservation_back() {
    let witness = Arc::new(Witness::default());
    let world = World::with(|builder| builder.spend_gate(&witness));
    world.databases[0].make(admit::DbVerb::Acquire, crate::support::Fault::Fails);
    let requirements = one_call(&dollar_model()).database(&world.databases[0]);
    assert!(world.runner.run(requirements, async |_| Ok::<_, String>(())).await.is_err());
    assert_eq!(witness.seen(), ["1: 0.001000 USD", "taken back"]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_thousandths_are_one() {
    let (ledger, world) = capped("1");
    let model = dollar_model();
    for _ in 0..1_000 {
        world.runner.run(one_call(&model), async |_| Ok::<_, String>(())).await.unwrap();
    }
    assert_eq!(ledger.spent("w").in_currency(Currency::USD), usd("1"));
    let none = world.runner.job(one_call(&model)).retries(RetryPolicy::none());
    assert!(none.run(async |_| Ok::<_, String>(())).await.unwrap_err().is_spend_refusal());
}

#[tokio::test(start_paused = true)]
async fn what_never_worked_has_its_money_back_before_its_sessions_are_closed() {
    let (ledger, world) = capped("1");
    world.databases[1].make(DbVerb::Acquire, Fault::Fails);
    world.databases[0].make(DbVerb::Close, Fault::Hangs);
    let databases = world.databases[..2].iter();
    let requirements = databases.fold(one_call(&dollar_model()), Requirements::database);
    let run = world.runner.run(requirements, async |_| Ok::<_, String>(()));
    let (ran, committed) = tokio::join!(run, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (ledger.committed("w"), world.log.text())
    });
    assert!(matches!(ran, Err(RunError::Provider(_))));
    assert!(committed.0.is_zero() && committed.1.ends_with("a.close"), "{committed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_spec_of_a_model_adds_to_the_first_at_the_firsts_prices() {
    let (ledger, world) = capped("1");
    let dear = Prices::per_million(Decimal::TEN, Decimal::TEN);
    let dear = dollar_model().with_prices(dear);
    let requirements = one_call(&dollar_model()).call(&dear, Usage::new(1_000, 0));
    let job = async |resources: Resources| {
        assert_eq!(ledger.committed("w").to_string(), "0.002000 USD");
        assert_eq!(resources.record_usage(&dear, Usage::new(500, 0)), Ok(Some(usd("0.0005"))));
        Ok::<_, String>(())
    };
    world.runner.run(requirements, job).await.unwrap();
    assert_eq!(ledger.spent("w").to_string(), "0.001500 USD");
}
