//! Many threads at once.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex as StdMutex};
use std::task::Poll;

use admit::{
    Account, Accounts, Admission, BoxError, Decimal, HttpGate, JobInfo, JobRunner, ModelSpec,
    Money, Prices, Replenishment, Requirements, Resources, SpendLedger, UpstreamFailure, Usage,
};
use tokio::runtime::{Builder, Handle};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::guarded::Guarded;
use crate::listener::Listener;
use crate::support::World;

/// Many runs on many threads, each cut at another poll, with tasks that record beside them.
#[test]
fn runs_dropped_on_many_threads_while_tasks_record_leave_nothing_out() {
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let admission = Admission::builder().start().unwrap();
        let ledger = SpendLedger::new();
        let runner = JobRunner::builder(&admission)
            .accounts(Arc::new(Accounts::new()))
            .http(&HttpGate::new(8).unwrap())
            .spend_gate(&ledger)
            .build()
            .unwrap();
        let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
        let model = ModelSpec::concurrent("m", 6).with_prices(prices);
        let database = Arc::new(Guarded::new("few", 3));
        // What each task recorded, if it came in time.
        let tasks = Arc::new(StdMutex::new(Vec::new()));
        let mut runs = tokio::task::JoinSet::new();
        for cut in 0..300_usize {
            let (runner, model) = (runner.clone(), model.clone());
            let (database, tasks) = (Arc::clone(&database), Arc::clone(&tasks));
            runs.spawn(async move {
                let requirements = Requirements::new()
                    .call(&model, Usage::new(1_000, 0))
                    .database(&database)
                    .transactional()
                    .for_job(JobInfo::new(cut.to_string(), "j").in_workflow("w"));
                let job = async |resources: Resources| {
                    for _ in 0..2 {
                        let (resources, model) = (resources.clone(), model.clone());
                        let task = tokio::spawn(async move {
                            yield_now().await;
                            let cost = resources.record_usage(&model, Usage::new(10, 0));
                            resources.release_one(resources.demand().entries()[0].account());
                            cost.ok().flatten()
                        });
                        tasks.lock().unwrap().push(task);
                    }
                    drop(resources.get(&database).map_err(BoxError::from)?);
                    yield_now().await;
                    Ok::<_, BoxError>(())
                };
                let mut run = pin!(runner.run(requirements, job));
                for _ in 0..cut % 12 {
                    if poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await {
                        break;
                    }
                    yield_now().await;
                }
            });
        }
        while let Some(ran) = runs.join_next().await {
            ran.unwrap();
        }
        admission.drained().await;
        assert_eq!(database.in_use(), 0);
        assert!(ledger.committed("w").is_zero());
        // What was recorded is spent, to the last digit, beside what nobody recorded.
        let tasks = std::mem::take(&mut *tasks.lock().unwrap());
        let recorded = futures::future::join_all(tasks).await;
        let recorded: admit::Cost = recorded.into_iter().filter_map(|cost| cost.unwrap()).collect();
        let reserved = Money::usd("0.001".parse().unwrap());
        let rest = ledger.spent("w").in_currency(reserved.currency).amount
            - recorded.in_currency(reserved.currency).amount;
        assert!((rest / reserved.amount).fract().is_zero(), "{rest}");
        admission.check();
    });
}

/// The bucket must end at the sum, whichever task of the job's reaches it last.
#[test]
fn tasks_that_record_at_one_moment_leave_the_bucket_at_their_sum() {
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new();
        for round in 0..200 {
            let model = ModelSpec::new(format!("m{round}"), 1_000);
            let bucket = world.accounts.bucket(&model).unwrap();
            let start = Instant::now();
            let job = async |resources: Resources| {
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..8 {
                    let (resources, model) = (resources.clone(), model.clone());
                    tasks.spawn(async move { resources.record_usage(&model, Usage::new(10, 0)) });
                }
                while let Some(recorded) = tasks.join_next().await {
                    recorded.unwrap().map_err(|error| error.to_string())?;
                }
                Ok::<_, String>(bucket.in_use(Instant::now()))
            };
            let requirements = Requirements::new().call(&model, Usage::new(500, 0));
            let in_use = world.runner.run(requirements, job).await.unwrap();
            // A thousand a minute come back meanwhile.
            let back = start.elapsed().as_millis() as u64 / 60 + 1;
            assert!((80_u64.saturating_sub(back)..=80).contains(&in_use), "{in_use} of 80");
        }
        world.settled().await;
    });
}

/// The same of two threads that meet before each record, while a third keeps the grant busy. The clock
/// stands: they are in a runtime in which nothing waits.
#[tokio::test(start_paused = true)]
async fn threads_that_meet_and_record_leave_the_bucket_at_their_sum() {
    const ROUNDS: u64 = 20_000;
    let world = World::new();
    let model = ModelSpec::new("m", 2 * ROUNDS);
    let bucket = world.accounts.bucket(&model).unwrap();
    let busy = Listener::new("busy", Replenishment::Time, &world.log);
    let runtime = Handle::current();
    let job = async |resources: Resources| {
        let (meet, is_over) = (Barrier::new(2), AtomicBool::new(false));
        let record = || {
            let _inside = runtime.enter();
            let is_off = |round: &u64| {
                meet.wait();
                resources.record_usage(&model, Usage::new(1, 0)).unwrap();
                meet.wait();
                bucket.in_use(Instant::now()) != round * 2
            };
            (1..=ROUNDS).filter(is_off).count()
        };
        let report = || {
            let _inside = runtime.enter();
            let failure = UpstreamFailure::status(500, "busy", "");
            while !is_over.load(Ordering::Acquire) {
                resources.report_failure(&busy, &failure);
            }
        };
        let off = std::thread::scope(|threads| {
            threads.spawn(report);
            let off = [threads.spawn(record), threads.spawn(record)];
            let off = off.map(|thread| thread.join());
            is_over.store(true, Ordering::Release);
            off.map(Result::unwrap)
        });
        Ok::<_, String>(off)
    };
    let requirements = Requirements::new().call(&model, Usage::new(500, 0)).permit(&busy);
    let off = world.runner.run(requirements, job).await.unwrap();
    assert_eq!(off, [0, 0], "of {ROUNDS} rounds");
    world.settled().await;
}
