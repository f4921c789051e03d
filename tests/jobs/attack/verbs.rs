//! Every verb of a provider fails, hangs or panics, beside another one's, under every end of a job.

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use admit::testing::Draw;
use admit::{DbVerb, RunError, TimeoutCause};
use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use super::secs;
use crate::support::{Fault, World};

const VERBS: [DbVerb; 6] = [
    DbVerb::Acquire,
    DbVerb::Begin,
    DbVerb::Commit,
    DbVerb::AwaitCompletion,
    DbVerb::Rollback,
    DbVerb::Close,
];
const FAULTS: [Fault; 3] = [Fault::Fails, Fault::Hangs, Fault::Panics];
const ENDS: [End; 6] =
    [End::Done, End::Fails, End::Panics, End::OutOfTime, End::Cancelled, End::Dropped];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Fails,
    Panics,
    OutOfTime,
    Cancelled,
    /// With its run, at a time drawn at random.
    Dropped,
}

/// Where a fault is: the database, the verb, and what it does.
type Planted = (usize, DbVerb, Fault);

async fn ends_in_order(planted: &[Planted], end: End, abort_panics: bool, draw: &mut Draw) {
    let case = format!("{planted:?}, {end:?}, an abort that panics: {abort_panics}");
    let world = World::new();
    for (database, verb, fault) in planted {
        world.databases[*database].make(*verb, *fault);
        if abort_panics {
            world.databases[*database].make_abort_panic();
        }
    }
    let token = CancellationToken::new();
    let job = async |_| {
        world.log.write("job");
        match end {
            End::Done => Ok(()),
            End::Fails => Err("its own".to_owned()),
            End::Panics => panic!("its own"),
            End::OutOfTime => pending().await,
            End::Cancelled => {
                token.cancel();
                pending().await
            }
            End::Dropped => {
                tokio::time::sleep(secs(5)).await;
                Ok(())
            }
        }
    };
    let run = world.runner.job(world.everything().transactional());
    let run = run.cancelled_by(token.clone()).within(secs(60)).run(job);
    let limit = match end {
        End::Dropped => Duration::from_millis(draw.between(0..=90_000)),
        // A run's time, its grace, and seven seconds for each rollback and close.
        _ => secs(60 + 600),
    };
    let ended = tokio::time::timeout(limit, AssertUnwindSafe(run).catch_unwind()).await;
    world.settled().await;
    let text = world.log.text();
    let is_planted = |verbs: &[DbVerb]| planted.iter().any(|(_, verb, _)| verbs.contains(verb));
    let in_time = match ended {
        Ok(ended) => ended,
        Err(_) => return assert_eq!(end, End::Dropped, "{case} hangs: {text}"),
    };
    // A commit that was told to hang or to fail has not happened, and so nothing after it.
    let in_vain = planted
        .iter()
        .filter(|(_, verb, _)| matches!(verb, DbVerb::Commit | DbVerb::AwaitCompletion));
    let most_durable = in_vain.map(|(database, ..)| *database).min().unwrap_or(3);
    match in_time {
        Ok(Ok(())) => {
            assert!(matches!(end, End::Done | End::Dropped), "{case}: {text}");
            assert!(!is_planted(&VERBS[..4]), "{case}: {text}");
        }
        Ok(Err(
            RunError::Commit { durable, .. }
            | RunError::TimedOut { cause: Some(TimeoutCause::Committing { durable }), .. },
        )) => {
            assert!(is_planted(&[DbVerb::Commit, DbVerb::AwaitCompletion]), "{case}: {text}");
            let names: Vec<_> = durable.iter().map(|name| &**name).collect();
            assert_eq!(names, ["a", "b", "c"][..most_durable], "{case}: {text}");
        }
        Ok(Err(RunError::Job(error))) => {
            assert_eq!((end, &*error), (End::Fails, "its own"), "{case}: {text}");
        }
        Ok(Err(_)) => {
            let by_itself = matches!(end, End::OutOfTime | End::Cancelled);
            assert!(by_itself || is_planted(&VERBS[..2]), "{case}: {text}");
        }
        Err(_) => {
            let of_theirs = planted
                .iter()
                .any(|(_, verb, fault)| *fault == Fault::Panics && VERBS[..4].contains(verb));
            assert!(end == End::Panics || of_theirs, "{case}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_verb_that_fails_hangs_or_panics_keeps_nothing_of_any_job() {
    let mut draw = Draw::new(11);
    let at = |database| {
        VERBS.into_iter().flat_map(move |verb| FAULTS.map(|fault| (database, verb, fault)))
    };
    let all: Vec<Planted> = (0..3).flat_map(at).collect();
    for first in &all {
        for end in ENDS {
            let second = all[draw.between(0..=all.len() as u64 - 1) as usize];
            ends_in_order(&[*first], end, draw.one_in(2), &mut draw).await;
            ends_in_order(&[*first, second], end, draw.one_in(2), &mut draw).await;
        }
    }
}
