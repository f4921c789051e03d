//! Panics where they hurt: drops, clean-ups, gates, errors.

use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use admit::{
    DbVerb, Decimal, JobError, JobInfo, Money, Priced, Prices, Requirements, Reservation,
    SpendGate, SpendLedger, SpendRefusal, UpstreamFailure, Usage,
};
use futures::FutureExt;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

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
