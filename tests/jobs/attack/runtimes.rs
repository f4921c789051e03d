//! Runtimes that go, that lack a part, or are not the run's own.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use admit::{
    Account, Decimal, JobError, JobInfo, Prices, Requirements, Resources, RunError, SpendLedger,
    Usage,
};
use tokio::runtime::{Builder, Handle};
use tokio::task::{LocalSet, yield_now};
use tokio::time::{Instant, sleep};

use super::guarded::Guarded;
use super::secs;
use crate::support::World;

#[tokio::test(start_paused = true)]
async fn the_last_handle_dropped_while_a_clean_up_runs_cuts_nothing_short() {
    let World { admission, runner, databases, log, own, .. } = World::new();
    let requirements = Requirements::new().permit(&own).database(&databases[0]).transactional();
    let run = runner.run(requirements, async |_| pending::<Result<(), String>>().await);
    assert!(tokio::time::timeout(secs(1), run).await.is_err());
    assert_eq!(own.in_use(Instant::now()), 1);
    drop((admission, runner));
    for _ in 0..9 {
        yield_now().await;
    }
    assert_eq!(log.text(), "a.acquire a.begin a.rollback a.close");
    assert_eq!(own.in_use(Instant::now()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_sent_is_run_where_it_is() {
    let world = World::new();
    let here = LocalSet::new();
    let seen = here.run_until(async {
        let seen = Rc::new(Cell::new(0));
        let (runner, requirements) = (world.runner.clone(), world.everything().transactional());
        let counts = Rc::clone(&seen);
        let run = tokio::task::spawn_local(async move {
            let job = async |_| {
                counts.set(counts.get() + 1);
                pending::<Result<(), String>>().await
            };
            runner.run(requirements, job).await
        });
        sleep(secs(1)).await;
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        seen.get()
    });
    assert_eq!(seen.await, 1);
    world.settled().await;
}

/// Its run can be sent, though a reference to it cannot.
#[derive(Debug)]
struct NotShared(#[expect(dead_code, reason = "it is what makes it so")] Cell<u8>);

impl JobError for NotShared {}

#[tokio::test(start_paused = true)]
async fn answers_and_errors_need_not_be_shared_for_a_run_to_be_sent() {
    let world = World::new();
    let failed = world.runner.run(world.everything().transactional(), |_| async {
        Err::<Cell<u8>, _>(NotShared(Cell::new(1)))
    });
    assert!(matches!(tokio::spawn(failed).await.unwrap(), Err(RunError::Job(_))));
    let done = world
        .runner
        .run(world.everything().transactional(), |_| async { Ok::<_, NotShared>(Cell::new(7)) });
    assert_eq!(tokio::spawn(done).await.unwrap().unwrap().get(), 7);
    world.settled().await;
}

#[test]
fn a_runtime_without_a_timer_panics_and_keeps_nothing() {
    let timed = Builder::new_current_thread().enable_all().build().unwrap();
    let world = timed.block_on(async { World::new() });
    let database = Arc::new(Guarded::new("guarded", 1));
    let requirements = Requirements::new().permit(&world.own).database(&database);
    let run = world.runner.run(requirements, async |_| Ok::<_, String>(()));
    let timerless = Builder::new_current_thread().build().unwrap();
    let ran = catch_unwind(AssertUnwindSafe(|| timerless.block_on(run)));
    assert!(ran.is_err());
    assert_eq!((world.own.in_use(Instant::now()), database.in_use()), (0, 0));
    timed.block_on(world.settled());
}

#[test]
fn a_run_whose_runtime_shuts_down_at_any_poll_keeps_nothing() {
    let mut cuts = 0;
    for cut in 0..60 {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (world, mut run) = runtime.block_on(async {
            let world = World::new();
            let job = |_| async {
                yield_now().await;
                Ok::<_, String>(())
            };
            let run = world.runner.run(world.everything().transactional(), job);
            (world, Box::pin(run))
        });
        let done = runtime.block_on(async {
            for _ in 0..cut {
                if poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await {
                    return true;
                }
                yield_now().await;
            }
            false
        });
        drop(runtime);
        drop(run);
        assert_eq!((world.out(), world.permits_in_use()), (0, 0), "cut at {cut}");
        if done {
            break;
        }
        cuts += 1;
    }
    assert!((30..60).contains(&cuts), "{cuts} polls were cut");
}

#[test]
fn a_run_on_a_blocking_thread_and_one_dropped_in_another_runtime_end_as_any() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let world = runtime.block_on(async {
        let world = World::new();
        let (runner, requirements) = (world.runner.clone(), world.everything().transactional());
        let blocking = tokio::task::spawn_blocking(move || {
            let run = runner.run(requirements, |_| async { Ok::<_, String>("done") });
            tokio::runtime::Handle::current().block_on(run)
        });
        assert_eq!(blocking.await.unwrap().unwrap(), "done");
        world
    });
    let mut run = Box::pin(
        world.runner.run(world.everything().transactional(), |_| pending::<Result<(), String>>()),
    );
    runtime.block_on(async {
        while !world.log.text().ends_with("c.begin") {
            poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
            yield_now().await;
        }
    });
    let other = Builder::new_current_thread().build().unwrap();
    other.block_on(async move { drop(run) });
    runtime.block_on(world.settled());
    assert!(world.log.text().ends_with("c.rollback b.rollback a.rollback c.close b.close a.close"));
}

#[tokio::test(start_paused = true)]
async fn resources_left_over_keep_nothing_of_an_admission_that_is_gone() {
    let World { admission, runner, databases, own, model, .. } = World::new();
    let requirements =
        Requirements::new().permit(&own).call(&model, Usage::new(1, 1)).database(&databases[0]);
    let left = runner.run(requirements, async |resources: Resources| Ok::<_, String>(resources));
    let left = left.await.unwrap();
    drop((admission, runner));
    assert_eq!(own.in_use(Instant::now()), 0);
    assert!(!left.release_one(&own) && left.get(&databases[0]).is_err());
    assert!(left.record_usage(&model, Usage::new(9, 9)).is_err());
}

thread_local! {
    /// Goes after the runtime's own of this thread, if it is used before it.
    static LEFT: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>> = const { RefCell::new(None) };
}

#[test]
fn a_run_that_goes_with_its_thread_costs_what_it_reserved_and_returns_its_permits() {
    let ledger = SpendLedger::new();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let world = runtime.block_on(async { World::with(|builder| builder.spend_gate(&ledger)) });
    let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
    let requirements = Requirements::new()
        .call(&world.model.clone().with_prices(prices), Usage::new(600, 400))
        .permit(&world.own)
        .database(&world.databases[0])
        .for_job(JobInfo::new("1", "j").in_workflow("w"));
    let run = world.runner.run(requirements, |_| pending::<Result<(), String>>());
    let (handle, log) = (runtime.handle().clone(), world.log.clone());
    let thread = std::thread::spawn(move || {
        LEFT.with_borrow_mut(|left| assert!(left.is_none()));
        let mut run: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async { drop(run.await) });
        handle.block_on(async {
            for _ in 0..9 {
                poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
            }
            assert_eq!(log.text(), "a.acquire");
        });
        LEFT.set(Some(run));
    });
    thread.join().unwrap();
    runtime.block_on(world.settled());
    assert!(ledger.committed("w").is_zero());
    assert_eq!(ledger.spent("w").to_string(), "0.001000 USD");
}

#[test]
fn a_session_that_is_aborted_where_no_runtime_runs_finds_its_own() {
    static FOUND: AtomicBool = AtomicBool::new(false);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (world, database) = runtime.block_on(async {
        let abort_panics_with = || FOUND.store(Handle::try_current().is_ok(), Ordering::Release);
        (World::new(), Arc::new(Guarded { abort_panics_with, ..Guarded::new("own", 1) }))
    });
    let requirements = Requirements::new().database(&database);
    let mut run = Box::pin(world.runner.run(requirements, |_| pending::<Result<(), String>>()));
    runtime.block_on(async {
        poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
    });
    assert_eq!(database.in_use(), 1);
    drop(runtime);
    drop(run);
    assert!(FOUND.load(Ordering::Acquire));
    assert_eq!(database.in_use(), 0);
}
