//! A run that is dropped, at every await there is.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use admit::{
    AdmitError, Currency, DbVerb, Decimal, Demand, JobInfo, Money, Prices, ProviderError,
    Requirements, RunError, SpendLedger, Usage,
};
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::support::{Fault, World};

/// Polls a future so many times, letting the runtime go round after each; `true` when it was done
/// before.
async fn poll_times<F: Future>(future: F, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let ready = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if ready {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// What must hold of a log however the run was cut: what was acquired is closed or aborted, in
/// reverse; what was begun is committed or rolled back before it is closed.
fn check_log(world: &World, cut: usize) {
    let lines = world.log.lines();
    let at = |line: &str| lines.iter().position(|found| found == line);
    let text = lines.join(" ");
    let mut last_closed = 0;
    for name in ["c", "b", "a"] {
        let closed = at(&format!("{name}.close"));
        if let Some(begun) = at(&format!("{name}.begin")) {
            let closed = closed.unwrap_or_else(|| panic!("cut at {cut}: {name} open: {text}"));
            let committed = at(&format!("{name}.await")).is_some();
            let rolled_back = at(&format!("{name}.rollback"));
            // One that was cut in its completion is both.
            assert!(committed || rolled_back.is_some(), "cut at {cut}: {text}");
            assert!(rolled_back.is_none_or(|at| begun < at && at < closed), "cut at {cut}: {text}");
        }
        if let Some(closed) = closed {
            assert!(closed > last_closed, "cut at {cut}, closed out of order: {text}");
            last_closed = closed;
        }
    }
    assert!(!text.contains("abort"), "cut at {cut}: nothing had to be aborted: {text}");
}

#[tokio::test(start_paused = true)]
async fn dropped_at_every_await_everything_comes_back() {
    let mut cut = 0;
    let mut cuts_before_work = 0;
    loop {
        let world = World::new();
        let job = async |_| {
            world.log.write("job");
            tokio::task::yield_now().await;
            Ok::<_, String>(())
        };
        let run = world.runner.run(world.everything().transactional(), job);
        let done = poll_times(run, cut).await;
        world.settled().await;
        check_log(&world, cut);
        let worked = world.log.lines().contains(&"job".to_owned());
        let spent = if worked { 1_000 } else { 0 };
        assert_eq!(world.tokens_left(), 60_000 - spent, "cut at {cut}: {}", world.log.text());
        cuts_before_work += usize::from(!worked);
        if done {
            break;
        }
        cut += 1;
    }
    // Three acquires and three begins of two turns each; as many again after the work.
    assert!(cuts_before_work >= 12, "{cuts_before_work} cuts before the work");
    assert!(cut >= 30, "only {cut} awaits were seen");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_while_it_waits_leaves_the_line() {
    let world = World::new();
    let all = world.admission.admit(Demand::new().permits(&world.own, 4)).await.unwrap();
    assert!(
        !poll_times(world.runner.run(world.everything(), async |_| Ok::<_, String>(())), 3).await
    );
    assert_eq!(world.admission.queue_len(), 0);
    drop(all);
    world.settled().await;
    assert_eq!(world.log.text(), "");
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_the_clean_up_of_a_dropped_run() {
    let world = World::new();
    let requirements = world.everything().transactional();
    let job = async |_| {
        sleep(Duration::from_secs(3_600)).await;
        Ok::<_, String>(())
    };
    let run = world.runner.run(requirements, job);
    assert!(tokio::time::timeout(Duration::from_secs(60), run).await.is_err());
    // The task has not run yet: everything is held still, by it.
    assert_eq!(world.out(), 3);
    world.admission.drained().await;
    assert_eq!(world.out(), 0);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_hangs_is_cut_off_at_its_providers_limit() {
    let world = World::new();
    world.databases[1].make(admit::DbVerb::Rollback, Fault::Hangs);
    world.databases[0].make(admit::DbVerb::Close, Fault::Hangs);
    let run = world.runner.run(world.everything().transactional(), async |_| {
        std::future::pending::<Result<(), String>>().await
    });
    assert!(tokio::time::timeout(Duration::from_secs(60), run).await.is_err());
    let before = tokio::time::Instant::now();
    world.settled().await;
    assert_eq!(before.elapsed().as_secs(), 14);
    assert!(
        world
            .log
            .text()
            .ends_with("c.rollback b.rollback b.abort a.rollback c.close b.close a.close a.abort")
    );
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_panics_costs_its_own_session_and_no_other() {
    let world = World::new();
    world.databases[1].make(admit::DbVerb::Close, Fault::Panics);
    world.databases[1].make_abort_panic();
    let run = world
        .runner
        .run(world.everything(), async |_| std::future::pending::<Result<(), String>>().await);
    assert!(tokio::time::timeout(Duration::from_secs(60), run).await.is_err());
    world.settled().await;
    assert!(world.log.text().ends_with("c.close b.close b.abort a.close"), "{}", world.log.text());
}

#[test]
fn a_run_dropped_outside_its_runtime_is_cleaned_up_inside_it() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (world, run) = runtime.block_on(async {
        let world = World::new();
        let requirements = world.everything().transactional();
        let mut run = Box::pin(
            world.runner.run(requirements, |_| std::future::pending::<Result<(), String>>()),
        );
        while world.out() < 3 || !world.log.text().ends_with("c.begin") {
            poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
            tokio::task::yield_now().await;
        }
        (world, run)
    });
    drop(run);
    runtime.block_on(world.settled());
    check_log(&world, 0);
}

#[test]
fn a_run_dropped_after_its_runtime_aborts_on_the_spot() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (world, run) = runtime.block_on(async {
        let world = World::new();
        let requirements = world.everything().transactional();
        let mut run = Box::pin(
            world.runner.run(requirements, |_| std::future::pending::<Result<(), String>>()),
        );
        while !world.log.text().ends_with("c.begin") {
            poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
            tokio::task::yield_now().await;
        }
        (world, run)
    });
    drop(runtime);
    drop(run);
    assert!(world.log.text().ends_with("c.abort b.abort a.abort"), "{}", world.log.text());
    assert_eq!(world.out(), 0);
    assert_eq!(world.permits_in_use(), 0);
}

#[test]
fn a_clean_up_whose_runtime_shuts_down_aborts_what_is_left() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let world = runtime.block_on(async {
        let world = World::new();
        world.databases[1].make(admit::DbVerb::Rollback, Fault::Hangs);
        let run = world.runner.run(world.everything().transactional(), async |_| {
            std::future::pending::<Result<(), String>>().await
        });
        assert!(tokio::time::timeout(Duration::from_secs(60), run).await.is_err());
        sleep(Duration::from_secs(1)).await;
        assert!(world.log.text().ends_with("c.rollback b.rollback"));
        world
    });
    drop(runtime);
    assert!(world.log.text().ends_with("c.abort b.abort a.abort"), "{}", world.log.text());
    assert_eq!(world.out(), 0);
    assert_eq!(world.permits_in_use(), 0);
}

#[test]
fn a_run_polled_outside_a_runtime_says_so_and_takes_nothing() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let world = runtime.block_on(async { World::new() });
    let run = world.runner.run(world.everything(), async |_| Ok::<_, String>(()));
    let mut run = pin!(run);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = run.as_mut().poll(&mut cx);
    assert!(matches!(polled, Poll::Ready(Err(RunError::NoRuntime))), "{polled:?}");
    assert_eq!(world.permits_in_use(), 0);
}

/// What a job reserved in money, when it was dropped before and after its work began.
#[tokio::test(start_paused = true)]
async fn a_dropped_run_costs_what_it_reserved_only_once_it_worked() {
    let ledger = SpendLedger::new();
    let world = World::with(|builder| builder.spend_gate(&ledger));
    let one = Decimal::ONE;
    let model = world.model.clone().with_prices(Prices::per_million(one, one));
    ledger.set_cap("w", Money::new(one, Currency::USD)).unwrap();
    let requirements = || {
        admit::Requirements::new()
            .call(&model, Usage::new(600, 400))
            .database(&world.databases[0])
            .for_job(JobInfo::new("1", "j").in_workflow("w"))
    };
    let forever = |_| std::future::pending::<Result<(), String>>();
    assert!(!poll_times(world.runner.run(requirements(), forever), 2).await);
    world.settled().await;
    assert!(ledger.spent("w").is_zero() && ledger.committed("w").is_zero());

    let run = world.runner.run(requirements(), forever);
    assert!(tokio::time::timeout(Duration::from_secs(60), run).await.is_err());
    assert!(ledger.committed("w").is_zero(), "settled by the drop itself");
    assert_eq!(ledger.spent("w").to_string(), "0.001000 USD");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_resources_clone_left_over_finds_its_databases_closed() {
    let world = World::new();
    let job = async |resources: admit::Resources| Ok::<_, String>(resources);
    let left = world.runner.run(world.everything(), job).await.unwrap();
    world.settled().await;
    assert!(left.is_cancelled());
    let error = left.get(&world.databases[0]).unwrap_err();
    assert_eq!(error.to_string(), "database `a`: the job's handle is closed; it ends with its job");
    assert!(left.record_usage(&world.model, Usage::new(1, 1)).is_err());
    assert!(!left.release_one(&world.http));
    assert_eq!(world.databases[0].out.load(Ordering::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_admission_refuses_the_run_and_settles_those_that_hold() {
    let world = World::new();
    world.admission.stop();
    let ran = world.runner.run(world.everything(), async |_| Ok::<_, String>(())).await;
    assert!(matches!(ran, Err(RunError::Admit(AdmitError::ShutDown))), "{ran:?}");
    world.settled().await;
}

/// What a task writes there would be outside the transaction, and stay, whatever became of the job.
#[tokio::test(start_paused = true)]
async fn a_resources_clone_finds_its_databases_closed_from_the_end_of_the_job_on() {
    for ends in ["done", "failed", "dropped"] {
        let world = World::new();
        // It is closed first, and the others meanwhile wait for it.
        world.databases[2].make(DbVerb::Close, Fault::Hangs);
        let (told, answer) = tokio::sync::oneshot::channel();
        let mut told = Some(told);
        let run = world.runner.run(world.everything().transactional(), |resources| {
            let (told, first) = (told.take().unwrap(), Arc::clone(&world.databases[0]));
            tokio::spawn(async move {
                let within = resources.get(&first).map(drop);
                sleep(Duration::from_secs(3)).await;
                let _ = told.send((within, resources.get(&first).map(drop)));
            });
            async move {
                sleep(Duration::from_secs(1)).await;
                match ends {
                    "done" => Ok(()),
                    "failed" => Err("its own".to_owned()),
                    _ => pending().await,
                }
            }
        });
        let _ = tokio::time::timeout(Duration::from_secs(2), run).await;
        let (within, after) = answer.await.unwrap();
        within.unwrap();
        assert_eq!(world.out(), 3, "{ends}: {}", world.log.text());
        assert!(matches!(after, Err(ProviderError::Closed { .. })), "{ends}: {after:?}");
        world.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resources_clone_finds_its_databases_closed_while_the_others_commit() {
    let world = World::new();
    world.databases[1].make(DbVerb::Commit, Fault::Hangs);
    let (told, answer) = tokio::sync::oneshot::channel();
    let mut told = Some(told);
    let run = world.runner.job(world.everything().transactional()).within(Duration::from_secs(9));
    let run = run.run(|resources| {
        let (told, log) = (told.take().unwrap(), world.log.clone());
        let database = Arc::clone(&world.databases[0]);
        tokio::spawn(async move {
            sleep(Duration::from_secs(1)).await;
            let _ = told.send((resources.get(&database).map(drop), log.text()));
        });
        async { Ok::<_, String>(()) }
    });
    run.await.unwrap_err();
    let (found, text) = answer.await.unwrap();
    assert!(text.ends_with("a.await b.commit"), "{text}");
    assert!(matches!(found, Err(ProviderError::Closed { .. })), "{found:?}");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_as_it_closes_is_not_rolled_back_again() {
    let mut cut = 0;
    loop {
        let world = World::new();
        let job = async |_| Err::<(), _>("its own".to_owned());
        let run = world.runner.run(world.everything().transactional(), job);
        let mut run = Box::pin(run);
        let mut is_done = false;
        for _ in 0..cut {
            is_done = poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
            if is_done {
                break;
            }
        }
        let rolled_back = world.log.text().contains("a.rollback c.close");
        drop(run);
        world.settled().await;
        let text = world.log.text();
        for name in ["a", "b", "c"].iter().filter(|_| rolled_back) {
            assert_eq!(text.matches(&format!("{name}.rollback")).count(), 1, "{cut}: {text}");
        }
        check_log(&world, cut);
        if is_done {
            break;
        }
        cut += 1;
    }
    assert!(cut >= 24, "only {cut} awaits were seen");
}

#[tokio::test(start_paused = true)]
async fn a_run_without_sessions_has_everything_back_as_it_is_dropped() {
    let world = World::new();
    let requirements =
        Requirements::new().call(&world.model, Usage::new(600, 400)).permit(&world.own);
    let run = world.runner.run(requirements, |_| pending::<Result<(), String>>());
    assert!(!poll_times(run, 3).await);
    assert_eq!(world.permits_in_use(), 0);
    world.settled().await;
}
