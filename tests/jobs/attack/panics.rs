//! Panics where they hurt: drops, clean-ups, gates, errors.

use std::error::Error;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use admit::{
    Admission, BoxError, DbVerb, Decimal, Demand, JobError, JobInfo, Money, Priced, Prices,
    ProviderError, Requirements, Reservation, Resources, RunError, SpendGate, SpendLedger,
    SpendRefusal, UpstreamFailure, Usage, requires_new,
};
use futures::FutureExt;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tracing::{Dispatch, Event, Subscriber, span};
use tracing_subscriber::layer::{self, Layer, SubscriberExt as _};

use super::guarded::Guarded;
use super::secs;
use crate::support::{Fault, World};

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

/// Runs what panics, and sees that everything is back when the panic comes.
async fn panics_with_everything_back<T>(world: &World, run: impl Future<Output = T>) {
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    assert_eq!((world.permits_in_use(), world.out()), (0, 0), "{}", world.log.text());
    assert!(!world.log.text().contains("abort"), "{}", world.log.text());
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_panics_in_a_run_goes_on_only_once_everything_is_back() {
    for verb in [DbVerb::Acquire, DbVerb::Begin, DbVerb::Commit, DbVerb::AwaitCompletion] {
        let world = World::new();
        world.databases[1].make(verb, Fault::Panics);
        let job = async |_| Ok::<_, String>(());
        let run = world.runner.run(world.everything().transactional(), job);
        panics_with_everything_back(&world, run).await;
        let before_work = matches!(verb, DbVerb::Acquire | DbVerb::Begin);
        assert_eq!(world.tokens_left(), if before_work { 60_000 } else { 59_000 }, "{verb}");
    }
    let world = World::new();
    let run = world.runner.run(world.everything().transactional(), async |_| Err::<(), _>(Mute));
    panics_with_everything_back(&world, run).await;

    /// A future whose destructor panics.
    struct Breaks;
    impl Future for Breaks {
        type Output = Result<(), String>;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Ready(Ok(()))
        }
    }
    impl Drop for Breaks {
        fn drop(&mut self) {
            panic!("broken");
        }
    }
    let world = World::new();
    let run = world.runner.run(world.everything().transactional(), |_| Breaks);
    panics_with_everything_back(&world, run).await;
    assert!(!world.log.text().contains("commit"), "{}", world.log.text());
}

/// Somebody's error that cannot even be told.
#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("it cannot be told");
    }
}

impl Error for Unspeakable {}

/// Somebody's error that breaks as it is dropped.
#[derive(Debug)]
struct Fragile;

impl fmt::Display for Fragile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fragile")
    }
}

impl Error for Fragile {}

impl Drop for Fragile {
    fn drop(&mut self) {
        panic_any(Bomb);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_clean_up_that_panics_hides_nothing_and_costs_no_other_session() {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    let deaf = tracing_subscriber::registry().with(Deaf(&["line"]));
    for log in [Dispatch::new(subscriber), Dispatch::new(deaf)] {
        let _log = tracing::dispatcher::set_default(&log);
        for error in [|| Unspeakable.into(), || Fragile.into()] {
            let world = World::new();
            let broken = Arc::new(Guarded { ends_with: Some(error), ..Guarded::new("broken", 1) });
            let requirements = || world.everything().database(&broken).transactional();
            let done = world.runner.run(requirements(), async |_| Ok::<_, String>("done")).await;
            assert_eq!(done.unwrap(), "done");
            let failed = world.runner.run(requirements(), async |_| Err::<(), _>("own".to_owned()));
            assert_eq!(failed.await.unwrap_err().job_error().unwrap(), "own");
            world.settled().await;
            assert_eq!(broken.in_use(), 0);
            assert!(!world.log.text().contains("abort"), "{}", world.log.text());
        }
    }
}

/// A task that panics when it is woken.
struct Breaks;

impl Wake for Breaks {
    fn wake(self: Arc<Self>) {
        panic!("a waker's own mistake");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_when_it_is_told_of_the_end_takes_no_answer_with_it() {
    let world = World::new();
    let left = Mutex::new(Vec::new());
    // Leaves a task behind that is to be told.
    let leaves = |resources: Resources| {
        let mut task = Box::pin(async move { resources.cancelled().await });
        let waker = Waker::from(Arc::new(Breaks));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        left.lock().unwrap().push(task);
    };
    let run = world.runner.run(world.everything().transactional(), async |resources| {
        leaves(resources);
        Ok::<_, String>("done")
    });
    assert_eq!(run.await.unwrap(), "done");
    let job = world.runner.job(world.everything().transactional()).within(secs(10));
    let run = job.run(async |resources: Resources| {
        leaves(resources.clone());
        while !resources.is_cancelled() {
            tokio::time::sleep(secs(1)).await;
        }
        Err::<(), _>("told".to_owned())
    });
    let error = run.await.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
    world.settled().await;
}

/// A listener of the log's that panics at lines, or at some of what it is told of spans.
struct Deaf(&'static [&'static str]);

impl Deaf {
    fn hears(&self, what: &str) {
        assert!(!self.0.contains(&what), "nobody listens");
    }
}

impl<S: Subscriber> Layer<S> for Deaf {
    fn on_new_span(&self, _: &span::Attributes<'_>, _: &span::Id, _: layer::Context<'_, S>) {
        self.hears("new");
    }

    fn on_event(&self, _: &Event<'_>, _: layer::Context<'_, S>) {
        self.hears("line");
    }

    fn on_record(&self, _: &span::Id, _: &span::Record<'_>, _: layer::Context<'_, S>) {
        self.hears("record");
    }

    fn on_enter(&self, _: &span::Id, _: layer::Context<'_, S>) {
        self.hears("enter");
    }

    fn on_exit(&self, _: &span::Id, _: layer::Context<'_, S>) {
        self.hears("exit");
    }

    fn on_close(&self, _: span::Id, _: layer::Context<'_, S>) {
        self.hears("close");
    }
}

/// Panics when its job ends.
struct Forgets;

impl SpendGate for Forgets {
    fn admit(&self, _: &JobInfo, _: &[Priced]) -> Result<Reservation, SpendRefusal> {
        Ok(Reservation::new(|_| panic!("a gate's own mistake")))
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_whose_listener_panics_costs_neither_an_answer_nor_a_settlement_nor_a_session() {
    for to in [&["line", "record", "enter", "exit", "close"] as &[_], &["close"], &["exit"]] {
        told(Deaf(to)).await;
    }
    for to in [&["line", "record"] as &[_], &["enter"], &["new"]] {
        told(Deaf(to)).await;
    }
}

async fn told(deaf: Deaf) {
    let ledger = SpendLedger::new();
    let world = World::with(|builder| builder.spend_gate(&Arc::new(Forgets)).spend_gate(&ledger));
    world.databases[1].make(DbVerb::Close, Fault::Fails);
    let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
    let model = world.model.clone().with_prices(prices);
    let requirements = Requirements::new().call(&model, Usage::new(1_000, 0));
    let requirements = world.databases.iter().fold(requirements, Requirements::database);
    let requirements = requirements.for_job(JobInfo::new("1", "j").in_workflow("w"));
    let _deaf = tracing::subscriber::set_default(tracing_subscriber::registry().with(deaf));
    let done = world.runner.run(requirements, async |_| Ok::<_, String>("done")).await;
    assert_eq!(done.unwrap(), "done");
    assert_eq!(ledger.spent("w").to_string(), "0.001000 USD");
    world.settled().await;
    assert!(!world.log.text().contains("a.abort"), "{}", world.log.text());
    // Nor a retry that is spoken of, nor the end that is written into the span; and while a job's own
    // panic unwinds, one of a listener would end the process.
    let run = world.runner.job(Requirements::new());
    let flaky = run.run(async |resources: Resources| match resources.attempt() {
        1 => Err(UpstreamFailure::status(500, "elsewhere", "")),
        attempt => Ok(attempt),
    });
    assert_eq!(flaky.await.unwrap(), 2);
    let panics = async |_| -> Result<(), String> { panic_any("the job's own") };
    let payload = AssertUnwindSafe(world.runner.run(world.everything(), panics)).catch_unwind();
    assert_eq!(payload.await.unwrap_err().downcast_ref(), Some(&"the job's own"));
    world.settled().await;
    // Nor the sessions of a run that is dropped, which a task closes.
    let run = world.runner.run(world.everything(), |_| pending::<Result<(), String>>());
    assert!(tokio::time::timeout(secs(1), run).await.is_err());
    world.settled().await;
    assert!(!world.log.text().contains("a.abort"), "{}", world.log.text());
    assert!(tracing::Span::current().is_none());
    // Somebody waits on an admission that was not started, of which it warns.
    let unstarted = Admission::builder().build().unwrap();
    let all = unstarted.try_admit(Demand::new().permits(&world.own, 4)).unwrap();
    let mut waits = pin!(unstarted.admit(Demand::new().permit(&world.own)));
    assert!(poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending())).await);
    drop(all);
}

#[tokio::test(start_paused = true)]
async fn what_a_job_panicked_with_ends_quietly_where_nobody_gets_it() {
    let world = World::new();
    // Its run is dropped in the middle of the clean-up, by somebody who panics.
    let run = world.runner.run(world.everything().transactional(), |_| async {
        yield_now().await;
        panic_any(Bomb) as Result<(), String>
    });
    let mut run = Box::pin(run);
    while !world.log.text().contains("rollback") {
        let polled = poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_pending())).await;
        assert!(polled);
        yield_now().await;
    }
    let drops = catch_unwind(AssertUnwindSafe(move || {
        let _run = run;
        panic_any("the owner's");
    }));
    assert_eq!(drops.unwrap_err().downcast_ref(), Some(&"the owner's"));
    world.settled().await;
}

/// Somebody's capture that breaks as it is dropped.
struct Brittle;

impl Drop for Brittle {
    fn drop(&mut self) {
        panic_any("the closure's");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_breaks_as_its_jobs_panic_goes_on_does_not_end_the_process() {
    let world = World::new();
    for (panics, expected) in [(true, "the job's"), (false, "the closure's")] {
        let captured = Brittle;
        let run = world.runner.run(world.everything(), move |_| {
            let _captured = &captured;
            async move { if panics { panic_any("the job's") } else { Ok::<_, String>(()) } }
        });
        let payload = AssertUnwindSafe(run).catch_unwind().await.unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&expected));
        world.settled().await;
    }
}

/// By then a second session's work is committed, or has failed with an error of its own.
#[tokio::test(start_paused = true)]
async fn an_end_of_a_second_session_that_panics_or_cannot_be_told_hides_neither_answer_nor_error() {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    let ends: [fn() -> BoxError; 4] =
        [|| Unspeakable.into(), || Fragile.into(), || panic!("at its end"), || panic_any(Bomb)];
    let deaf = tracing_subscriber::registry().with(Deaf(&["line"]));
    for log in [Dispatch::new(subscriber), Dispatch::new(deaf)] {
        let _log = tracing::dispatcher::set_default(&log);
        for ends_with in ends.map(Some) {
            let world = World::new();
            let broken = Arc::new(Guarded { ends_with, ..Guarded::new("one", 1) });
            let (runner, database) = (&world.runner, &broken);
            let run = async |end: fn() -> Result<u8, ProviderError>| {
                let job = async |_| requires_new(database, async || end()).await;
                runner.run(Requirements::new().database(database), job).await
            };
            assert_eq!(run(|| Ok(7)).await.unwrap(), 7);
            let failed = || Err(ProviderError::failed("one", DbVerb::Commit, "its own"));
            let error = run(failed).await.unwrap_err();
            assert!(error.to_string().contains("its own"), "{error}");
            world.settled().await;
            assert_eq!(broken.in_use(), 0);
        }
    }
}

/// What a second session's provider panics with, while the job's own panic goes on, would end the process.
#[tokio::test(start_paused = true)]
async fn a_second_session_whose_abort_and_drop_panic_takes_neither_the_answer_nor_the_process() {
    let world = World::new();
    let abort_panics_with = || panic_any(Bomb);
    let broken =
        Arc::new(Guarded { drop_panics: true, abort_panics_with, ..Guarded::new("one", 1) });
    let (runner, database) = (&world.runner, &broken);
    let run = async |end: fn() -> Result<u8, ProviderError>| {
        let job = async |_| requires_new(database, async || end()).await;
        runner.run(Requirements::new().database(database), job).await
    };
    assert_eq!(run(|| Ok(7)).await.unwrap(), 7);
    let failed = || Err(ProviderError::failed("one", DbVerb::Commit, "its own"));
    assert!(matches!(run(failed).await, Err(RunError::Job(ProviderError::Failed { .. }))));
    let panicked = AssertUnwindSafe(run(|| panic!("its own"))).catch_unwind().await;
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"its own"));
    world.settled().await;
    assert_eq!(broken.in_use(), 0);
}
