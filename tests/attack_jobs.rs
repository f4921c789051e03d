//! Attacks on the job runner: each test is named for what would go wrong.

#[path = "jobs/support.rs"]
#[expect(dead_code, reason = "shared with the tests of jobs, which use all of it")]
mod support;

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::task::Poll;
use std::time::Duration;

use admit::{
    Account, Accounts, Admission, BoxError, CountingGate, DatabaseGate, DbProvider, DbVerb,
    Decimal, Demand, HttpGate, JobError, JobInfo, JobRunner, ModelSpec, Money, Priced, Prices,
    ProviderError, Requirements, Reservation, Resources, RetryPolicy, RunError, RunStage,
    SpendGate, SpendLedger, SpendRefusal, TimeoutCause, UpstreamFailure, Usage,
};
use futures::FutureExt;
use support::{Fault, World};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::{LocalSet, consume_budget, yield_now};
use tokio::time::{Instant, advance, sleep};
use tokio_util::sync::CancellationToken;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A database whose session is a real guard: commit and close wait until it is back.
struct Guarded {
    name: Arc<str>,
    account: Arc<DatabaseGate>,
    limit: Duration,
    drop_panics: bool,
    abort_panics_with: fn(),
}

struct GuardedHandle {
    name: Arc<str>,
    session: Arc<Mutex<()>>,
    panics: bool,
}

impl Drop for GuardedHandle {
    fn drop(&mut self) {
        assert!(!self.panics, "the handle of {} panics when it is dropped", self.name);
    }
}

impl Guarded {
    fn new(name: &str, permits: u32) -> Self {
        Self {
            name: name.into(),
            account: DatabaseGate::new(name, permits).unwrap(),
            limit: secs(5),
            drop_panics: false,
            abort_panics_with: || {},
        }
    }

    fn in_use(&self) -> u64 {
        self.account.in_use(Instant::now())
    }
}

impl DbProvider for Guarded {
    type Handle = GuardedHandle;
    type Session = OwnedMutexGuard<()>;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        &self.account
    }

    fn acquire_timeout(&self) -> Duration {
        self.limit
    }

    async fn acquire(&self, _: bool) -> Result<GuardedHandle, ProviderError> {
        let name = Arc::clone(&self.name);
        Ok(GuardedHandle { name, session: Arc::default(), panics: self.drop_panics })
    }

    fn session(&self, handle: &GuardedHandle) -> Result<OwnedMutexGuard<()>, ProviderError> {
        let session = Arc::clone(&handle.session).try_lock_owned();
        session.map_err(|_| ProviderError::InUse { provider: Arc::clone(&self.name) })
    }

    async fn begin(&self, _: &GuardedHandle) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn commit(&self, handle: &GuardedHandle) -> Result<(), ProviderError> {
        drop(handle.session.lock().await);
        Ok(())
    }

    async fn rollback(&self, handle: &GuardedHandle) -> Result<(), ProviderError> {
        drop(handle.session.lock().await);
        Ok(())
    }

    async fn close(&self, handle: &GuardedHandle) -> Result<(), ProviderError> {
        drop(handle.session.lock().await);
        Ok(())
    }

    fn abort(&self, _: &GuardedHandle) {
        (self.abort_panics_with)();
    }
}

/// A job that is ready at every poll: it spends its task's whole budget each time, and gives up
/// after so many rounds.
async fn busy(resources: Resources) -> Result<(), String> {
    for _ in 0..200_000 {
        consume_budget().await;
        if resources.is_cancelled() {
            return Err("told".into());
        }
    }
    Err("never told".into())
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_waits_is_told_of_its_time_and_dropped_after_the_grace() {
    let world = World::new();
    let run = world.runner.job(Requirements::new()).within(secs(10));
    let (ran, ()) = tokio::join!(tokio::spawn(run.run(busy)), async {
        yield_now().await;
        advance(secs(10)).await;
    });
    let error = ran.unwrap().unwrap_err();
    assert_eq!(error.job_error().map(String::as_str), Some("told"), "{error}");

    let deaf = async |_| {
        for _ in 0..200_000 {
            consume_budget().await;
        }
        Err::<(), _>("never dropped".to_owned())
    };
    let run = world.runner.job(Requirements::new()).within(secs(10));
    let (ran, ()) = tokio::join!(tokio::spawn(run.run(deaf)), async {
        yield_now().await;
        advance(secs(10)).await;
        yield_now().await;
        advance(secs(1)).await;
    });
    let error = ran.unwrap().unwrap_err();
    assert!(matches!(error, RunError::TimedOut { cause: None, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_waits_is_cancelled_by_its_token() {
    let world = World::new();
    let token = CancellationToken::new();
    let run = world.runner.job(world.everything()).cancelled_by(token.clone());
    let (ran, ()) = tokio::join!(tokio::spawn(run.run(busy)), async {
        while !world.log.text().ends_with("c.acquire") {
            yield_now().await;
        }
        for _ in 0..9 {
            yield_now().await;
        }
        token.cancel();
    });
    assert!(matches!(ran.unwrap(), Err(RunError::Cancelled { stage: RunStage::Work })));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_of_the_jobs_lets_go_of_its_guard_before_the_commit_waits_for_it() {
    let world = World::new();
    let database = Arc::new(Guarded::new("guarded", 1));
    let requirements = Requirements::new().database(&database).transactional();
    let job = async |resources: Resources| {
        let guard = resources.get(&database).map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            resources.cancelled().await;
            drop(guard);
        });
        Ok::<_, String>("committed")
    };
    let start = Instant::now();
    let ran = world.runner.job(requirements).within(secs(60)).run(job).await;
    assert_eq!(ran.unwrap(), "committed");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_never_let_go_costs_the_session_and_not_the_permit() {
    let world = World::new();
    let database = Arc::new(Guarded::new("guarded", 1));
    let job = async |resources: Resources| {
        let guard = resources.get(&database).map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            pending::<()>().await;
            drop(guard);
        });
        Ok::<_, String>(())
    };
    let start = Instant::now();
    world.runner.run(Requirements::new().database(&database), job).await.unwrap();
    assert_eq!(start.elapsed(), secs(5));
    let run = world.runner.job(Requirements::new().database(&database).transactional());
    let error = run.within(secs(20)).run(job).await.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { stage: RunStage::Commit, .. }), "{error}");
    world.settled().await;
    assert_eq!(database.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_permit_of_a_database_stays_while_its_connection_is_out() {
    let world = World::new();
    let database = &world.databases[0];
    let job = async |resources: Resources| {
        assert!(!resources.release_one(database.account()));
        assert_eq!(database.account().in_use(Instant::now()), 1);
        assert!(resources.release_one(&world.http) && resources.release_one(&world.own));
        Ok::<_, String>(())
    };
    world.runner.run(world.everything(), job).await.unwrap();
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn handles_whose_drop_panics_keep_neither_a_permit_nor_the_answer() {
    let world = World::new();
    let broken = || Arc::new(Guarded { drop_panics: true, ..Guarded::new("broken", 1) });
    let (one, two) = (broken(), broken());
    let requirements = || Requirements::new().database(&one).database(&two).transactional();
    let done = world.runner.run(requirements(), async |_| Ok::<_, String>("done")).await;
    assert_eq!(done.unwrap(), "done");
    world.settled().await;
    let forever = async |_| pending::<Result<(), String>>().await;
    let run = world.runner.run(requirements(), forever);
    assert!(tokio::time::timeout(secs(1), run).await.is_err());
    world.settled().await;
    assert_eq!((one.in_use(), two.in_use()), (0, 0));
}

/// Its drop panics, and so does that of what it panics with.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("and again");
    }
}

#[test]
fn a_run_that_unwinds_after_its_runtime_aborts_and_does_not_end_the_process() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let world = runtime.block_on(async { World::new() });
    let broken = |name| {
        let abort_panics_with = || panic_any(Bomb);
        Arc::new(Guarded { drop_panics: true, abort_panics_with, ..Guarded::new(name, 1) })
    };
    let databases = [broken("one"), broken("two")];
    let requirements = Requirements::new().database(&databases[0]).database(&databases[1]);
    let mut run = Box::pin(world.runner.run(requirements, |_| pending::<Result<(), String>>()));
    runtime.block_on(async {
        poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await;
    });
    assert_eq!(databases[0].in_use() + databases[1].in_use(), 2);
    drop(runtime);
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _run = run;
        panic!("the host's own");
    }));
    assert_eq!(*unwound.unwrap_err().downcast::<&str>().unwrap(), "the host's own");
    assert_eq!(databases[0].in_use() + databases[1].in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_panics_hides_neither_an_answer_nor_a_panic_nor_an_error() {
    for verb in [DbVerb::Rollback, DbVerb::Close] {
        let world = World::new();
        world.databases[1].make(verb, Fault::Panics);
        let transactional = || world.everything().transactional();
        let done = world.runner.run(transactional(), async |_| Ok::<_, String>("done")).await;
        assert_eq!(done.unwrap(), "done");
        let failed = world.runner.run(transactional(), async |_| Err::<(), _>("own".to_owned()));
        assert_eq!(failed.await.unwrap_err().job_error().unwrap(), "own");
        let job = async |_| -> Result<(), String> { panic!("the job's own") };
        let panicked = AssertUnwindSafe(world.runner.run(transactional(), job)).catch_unwind();
        let payload = panicked.await.unwrap_err();
        assert_eq!(*payload.downcast::<&str>().unwrap(), "the job's own");
        world.settled().await;
        // The others were closed in order and not aborted with it.
        let text = world.log.text();
        assert!(text.contains("b.abort") && !text.contains("a.abort"), "{verb}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_may_be_durable_is_not_worth_another_run() {
    let world = World::new();
    world.databases[1].make(DbVerb::Commit, Fault::Hangs);
    let run = world.runner.job(world.everything().transactional()).within(secs(20));
    let error = run.run(async |_| Ok::<_, String>(())).await.unwrap_err();
    assert!(matches!(
        error,
        RunError::TimedOut { cause: Some(TimeoutCause::Committing { .. }), .. }
    ));
    assert!(!error.is_retryable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_worth_another_run_is_said_of_failures_and_refusals_alike() {
    let world = World::with(|builder| builder.retries(RetryPolicy::none()));
    for (status, expected) in [(429, true), (400, false)] {
        let failure = UpstreamFailure::status(status, "elsewhere", "");
        let ran = world.runner.run(world.everything(), async |_| Err::<(), _>(failure.clone()));
        assert_eq!(ran.await.unwrap_err().is_retryable(), expected, "{status}");
    }
    let usd = |text: &str| Money::usd(text.parse().unwrap());
    for (committed, expected) in [("1", true), ("0", false)] {
        let refusal = SpendRefusal::OverCap {
            workflow: "w".into(),
            spent: usd("0"),
            committed: usd(committed),
            cap: usd("1"),
            reservation: usd(if expected { "1" } else { "2" }),
        };
        assert_eq!(RunError::<String>::Spend(refusal).is_retryable(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_with_the_runs_time_keeps_the_last_failure() {
    let world = World::new();
    let failure = UpstreamFailure::status(500, "elsewhere", "").with_retry_after(secs(10));
    let job = world.runner.job(world.everything()).within(secs(10));
    let finished = job.run_recorded(async |_| Err::<(), _>(failure.clone())).await;
    let error = finished.result.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { stage: RunStage::Retry, .. }), "{error}");
    assert_eq!(error.job_error(), Some(&failure));
    assert_eq!(finished.record.attempts, 1);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_namesake_is_told_from_the_provider_that_was_required() {
    let world = World::new();
    let database = &world.databases[0];
    let job = async |resources: Resources| {
        let anew = database.mapped(|name: Arc<str>| name.len());
        Ok::<_, String>(resources.get(&anew).unwrap_err().to_string())
    };
    let text = world.runner.run(world.everything(), job).await.unwrap();
    assert_eq!(
        text,
        "database `a` is held by this job through another provider; ask with the one it required"
    );
}

#[tokio::test(start_paused = true)]
async fn only_an_acquire_that_takes_too_long_speaks_of_the_pool() {
    for (verb, has_pool) in [(DbVerb::Acquire, true), (DbVerb::Begin, false)] {
        let world = World::new();
        world.databases[0].make(verb, Fault::Hangs);
        let requirements = world.everything().transactional();
        let ran = world.runner.run(requirements, async |_| Ok::<_, String>(())).await;
        let text = ran.unwrap_err().to_string();
        assert_eq!(text.contains("the pool needs room"), has_pool, "{text}");
        assert!(text.contains(&format!("{verb} took longer than 7s")), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_out_of_time_without_databases_does_not_speak_of_any() {
    let world = World::new();
    let run = world.runner.job(Requirements::new()).within(Duration::ZERO);
    let text = run.run(async |_| Ok::<_, String>(())).await.unwrap_err().to_string();
    assert_eq!(text, "not done within 0ns: its time ran out before its work began");
}

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

/// Fails, and panics when it is asked about its upstream.
#[derive(Debug)]
struct Mute;

impl JobError for Mute {
    fn upstream(&self) -> Option<&UpstreamFailure> {
        panic!("do not ask");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_it_is_asked_leaves_nothing_behind() {
    let world = World::new();
    let run = world.runner.run(world.everything().transactional(), async |_| Err::<(), _>(Mute));
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    world.settled().await;
    assert!(world.log.text().ends_with("c.rollback b.rollback a.rollback c.close b.close a.close"));
}

struct Panics;

impl SpendGate for Panics {
    fn admit(&self, _: &JobInfo, _: &[Priced]) -> Result<Reservation, SpendRefusal> {
        panic!("a gate's own mistake");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_panics_takes_back_what_an_earlier_one_had_set_aside() {
    let ledger = SpendLedger::new();
    ledger.set_cap("w", Money::usd(Decimal::ONE)).unwrap();
    let world = World::with(|builder| builder.spend_gate(&ledger).spend_gate(&Arc::new(Panics)));
    let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
    let requirements = Requirements::new()
        .call(&world.model.clone().with_prices(prices), Usage::new(1_000, 0))
        .for_job(JobInfo::new("1", "j").in_workflow("w"));
    let run = world.runner.run(requirements, async |_| Ok::<_, String>(()));
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    assert!(ledger.committed("w").is_zero() && ledger.spent("w").is_zero());
    world.settled().await;
    assert_eq!(world.tokens_left(), 60_000);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_nothing_and_one_of_all_time_both_let_a_ready_provider_through() {
    let world = World::new();
    for limit in [Duration::ZERO, Duration::MAX] {
        let database = Arc::new(Guarded { limit, ..Guarded::new("ready", 1) });
        let requirements = Requirements::new().database(&database).transactional();
        world.runner.run(requirements, async |_| Ok::<_, String>(())).await.unwrap();
        assert_eq!(database.in_use(), 0);
    }
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

#[tokio::test(start_paused = true)]
async fn an_old_attempts_future_is_gone_before_its_handles_and_before_the_next_attempt() {
    struct Says<'a>(&'a World);
    impl Drop for Says<'_> {
        fn drop(&mut self) {
            assert_eq!(&*admit::ambient(&self.0.databases[0]).unwrap(), "a");
            self.0.log.write("gone");
        }
    }
    let world = World::new();
    let attempts = Cell::new(0);
    let run = world.runner.job(Requirements::new().database(&world.databases[0]).transactional());
    let ran = run.within(secs(100)).run(async |_| {
        let _says = Says(&world);
        world.log.write("job");
        attempts.set(attempts.get() + 1);
        if attempts.get() == 2 {
            pending::<()>().await;
        }
        Err::<(), _>(UpstreamFailure::status(500, "elsewhere", ""))
    });
    assert!(matches!(ran.await, Err(RunError::TimedOut { stage: RunStage::Work, .. })));
    assert_eq!(
        world.log.text(),
        "a.acquire a.begin job gone a.rollback a.close a.acquire a.begin job gone a.abort a.close"
    );
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_destructor_of_the_job_that_panics_leaves_nothing_behind() {
    struct Breaks;
    impl Drop for Breaks {
        fn drop(&mut self) {
            panic!("broken");
        }
    }
    for cancel in [true, false] {
        let world = World::new();
        let token = CancellationToken::new();
        let job = world.runner.job(world.everything().transactional());
        let job = job.cancelled_by(token.clone()).within(secs(10));
        let run = job.run(async |_| {
            let _breaks = Breaks;
            pending::<Result<(), String>>().await
        });
        let unwound = AssertUnwindSafe(async {
            let mut run = pin!(run);
            if cancel {
                assert!(tokio::time::timeout(secs(1), run.as_mut()).await.is_err());
                token.cancel();
            }
            run.await.is_ok()
        });
        assert!(unwound.catch_unwind().await.is_err());
        world.settled().await;
        assert!(world.log.text().ends_with("c.close b.close a.close"), "{}", world.log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_destructor_asks_the_admission_finds_everything_back() {
    struct Asks(Admission, Arc<CountingGate>, Arc<AtomicUsize>);
    impl Drop for Asks {
        fn drop(&mut self) {
            let all = Demand::new().permits(&self.1, 4);
            let found = usize::from(self.0.try_admit(all).is_ok());
            self.2.fetch_add(found, Ordering::AcqRel);
        }
    }
    let world = World::new();
    world.databases[0].make(DbVerb::Commit, Fault::Fails);
    let found = Arc::new(AtomicUsize::new(0));
    let asks = || Asks(world.admission.clone(), Arc::clone(&world.own), Arc::clone(&found));
    let run =
        world.runner.run(world.everything().transactional(), async |_| Ok::<_, String>(asks()));
    assert!(run.await.is_err());
    assert_eq!(found.load(Ordering::Acquire), 1);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_the_middle_lets_the_job_end_and_refuses_its_retry() {
    let world = World::new();
    let job = async |_| {
        world.admission.stop();
        Ok::<_, String>("done")
    };
    let ran = world.runner.run(world.everything().transactional(), job).await;
    assert_eq!(ran.unwrap(), "done");
    world.settled().await;

    let world = World::new();
    let ran = world.runner.run(world.everything(), async |_| {
        world.admission.stop();
        Err::<(), _>(UpstreamFailure::status(500, "elsewhere", ""))
    });
    assert!(matches!(ran.await, Err(RunError::Admit(admit::AdmitError::ShutDown))));
    world.settled().await;
}

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

#[tokio::test(start_paused = true)]
async fn a_handle_that_comes_with_the_cancel_is_closed_and_the_grant_rolled_back() {
    for cut in 0..12 {
        let world = World::new();
        let token = CancellationToken::new();
        let run = world.runner.job(world.everything()).cancelled_by(token.clone());
        let mut run = pin!(run.run(async |_| Ok::<_, String>(())));
        for _ in 0..cut {
            if poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await {
                break;
            }
        }
        let acquired = world.out();
        token.cancel();
        if world.log.text().contains("close") {
            continue;
        }
        let error = run.await.unwrap_err();
        assert!(matches!(error, RunError::Cancelled { .. }), "cut at {cut}: {error}");
        let text = world.log.text();
        assert!(text.matches("close").count() as i64 >= acquired, "cut at {cut}: {text}");
        assert_eq!(world.tokens_left(), 60_000, "cut at {cut}: {text}");
        world.settled().await;
    }
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
        let recorded = Arc::new(StdMutex::new(Vec::new()));
        let mut runs = tokio::task::JoinSet::new();
        for cut in 0..300_usize {
            let (runner, model) = (runner.clone(), model.clone());
            let (database, recorded) = (Arc::clone(&database), Arc::clone(&recorded));
            runs.spawn(async move {
                let requirements = Requirements::new()
                    .call(&model, Usage::new(1_000, 0))
                    .database(&database)
                    .transactional()
                    .for_job(JobInfo::new(cut.to_string(), "j").in_workflow("w"));
                let job = async |resources: Resources| {
                    for _ in 0..2 {
                        let (resources, model) = (resources.clone(), model.clone());
                        let recorded = Arc::clone(&recorded);
                        tokio::spawn(async move {
                            yield_now().await;
                            let usage = Usage::new(10, 0);
                            if let Ok(Some(cost)) = resources.record_usage(&model, usage) {
                                recorded.lock().unwrap().push(cost);
                            }
                            resources.release_one(resources.demand().entries()[0].account());
                        });
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
        let recorded: admit::Cost = recorded.lock().unwrap().iter().copied().collect();
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
