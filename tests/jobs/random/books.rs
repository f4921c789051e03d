//! What follows from what the jobs saw.

use std::time::Duration;

use admit::{Account, Cost, DbVerb, RunError, RunStage, SpendLedger, TimeoutCause};
use tokio::time::Instant;

use super::play::{Attempt, Failure, Outcome, money, policy};
use super::{End, PRICES, Scene, Script, currency};
use crate::listener::Listener;
use crate::support::{Fault, Log};

/// The books of a scene.
#[derive(Default)]
pub(super) struct Books {
    /// In millionths, of either currency.
    spent: [u64; 2],
    /// Attempts whose work began: their grants were released, all others rolled back.
    begun: u64,
    time: Heard,
    permit: Heard,
    pub(super) seen: Vec<&'static str>,
    fault: Option<(DbVerb, Fault)>,
}

/// What one account must have heard.
#[derive(Default)]
struct Heard {
    successes: u64,
    failures: u64,
    /// Runs that were dropped when they may have reported a success, or may not have yet.
    maybe: u64,
}

/// Whether another attempt may help, as the statuses say.
fn is_retryable(end: End) -> bool {
    matches!(end, End::Upstream(status, ..) if status != 400)
}

/// What an attempt cost, in millionths of either currency.
fn cost_of(script: &Script, attempt: &Attempt) -> [u64; 2] {
    let mut cost = [0; 2];
    for (model, price) in PRICES.iter().enumerate() {
        let calls = script.calls.iter().filter(|call| call.0 == model);
        let recorded = &attempt.recorded[model];
        let outstanding = calls.zip(&recorded.calls).filter(|(_, is_recorded)| !**is_recorded);
        let outstanding: u64 = outstanding.map(|(call, _)| call.1).sum();
        let tokens = match attempt.ended {
            Some((End::Upstream(..), _)) => recorded.tokens,
            _ => recorded.tokens + outstanding,
        };
        cost[currency(model)] += tokens * price;
    }
    cost
}

fn total(cost: [u64; 2]) -> Cost {
    (0..2).map(|at| money(at, cost[at])).collect()
}

impl Books {
    pub(super) fn of(scene: &Scene) -> Self {
        Self { fault: scene.fault, ..Self::default() }
    }

    /// Closes a job: what it cost, what was reported, and whether it answered what it must.
    pub(super) fn close(&mut self, script: &Script, attempts: &[Attempt], outcome: &Outcome) {
        let mut cost = [0; 2];
        for attempt in attempts {
            let of_attempt = cost_of(script, attempt);
            cost = [cost[0] + of_attempt[0], cost[1] + of_attempt[1]];
            self.heard(attempt);
            self.seen.extend(attempt.was_late.then_some("late usage"));
        }
        self.spent = [self.spent[0] + cost[0], self.spent[1] + cost[1]];
        self.begun += attempts.len() as u64;
        for pair in attempts.windows(2) {
            self.seen.push("again");
            check_wait(&pair[0], &pair[1], attempts.len());
        }
        let last = attempts.last();
        let ended = last.and_then(|last| last.ended).map(|(end, _)| end);
        match outcome {
            None => {
                self.seen.push("dropped");
                if let (Some(last), Some(End::Done)) = (last, ended) {
                    self.time.maybe += u64::from(!last.has_reported);
                    self.permit.maybe += u64::from(!last.has_returned);
                }
            }
            Some(Err(())) => {
                let by_itself = ended == Some(End::Panics);
                self.seen.push(if by_itself { "panicked" } else { "panicked in a database" });
                assert!(by_itself || self.may_have_panicked(script, ended), "{ended:?}");
            }
            Some(Ok(finished)) => {
                assert_eq!(finished.record.cost, total(cost), "{script:?}");
                if let (Ok(()), Some(last)) = (&finished.result, last) {
                    self.time.successes += u64::from(!last.has_reported);
                    self.permit.successes += u64::from(!last.has_returned);
                }
                let (word, worked) = answered(&finished.result, script, attempts.len(), ended);
                self.seen.push(word);
                // The last attempt may have ended before its work began.
                let begun = attempts.len() + usize::from(!worked);
                assert_eq!(finished.record.attempts as usize, begun, "{word}: {script:?}");
            }
        }
    }

    /// Whether it was the database that panicked, where that reaches the run.
    fn may_have_panicked(&self, script: &Script, last: Option<End>) -> bool {
        let Some((verb, Fault::Panics)) = self.fault.filter(|_| script.has_database) else {
            return false;
        };
        match verb {
            DbVerb::Acquire | DbVerb::Begin => last.is_none(),
            DbVerb::Commit | DbVerb::AwaitCompletion => last == Some(End::Done),
            _ => false,
        }
    }

    /// What the accounts heard of an attempt that did not succeed.
    fn heard(&mut self, attempt: &Attempt) {
        self.time.failures += u64::from(attempt.has_reported);
        match attempt.ended {
            Some((End::Upstream(_, "permit", _), _)) => {
                self.permit.failures += u64::from(!attempt.has_returned);
            }
            Some((End::Upstream(..), _)) => self.time.failures += u64::from(!attempt.has_reported),
            _ => {}
        }
    }

    /// After everything has come back.
    pub(super) fn check(&self, ledger: &SpendLedger, log: &Log, accounts: &[&Listener; 2]) {
        assert_eq!(ledger.spent("w"), total(self.spent));
        assert!(ledger.committed("w").is_zero(), "{}", ledger.committed("w"));
        let lines = log.lines();
        let count =
            |start: &str| lines.iter().filter(|line| line.starts_with(start)).count() as u64;
        for (name, heard) in [("time", &self.time), ("permit", &self.permit)] {
            let successes = count(&format!("{name}.success"));
            let most = heard.successes + heard.maybe;
            assert!((heard.successes..=most).contains(&successes), "{name}: {successes} successes");
            assert_eq!(count(&format!("{name}.failure")), heard.failures, "{name}: failures");
        }
        // Each grant settled once on each account: released where the work began, else rolled back.
        assert_eq!(count("time.settled"), self.begun + count("time.give"));
        assert_eq!(count("permit.settled"), count("time.settled"));
        assert_eq!(count("permit.give"), count("permit.settled"));
        let now = Instant::now();
        assert_eq!(accounts.map(|account| account.in_use(now)), [self.begun, 0]);
    }
}

/// A retry comes no earlier than the upstream asked, or than the policy draws.
fn check_wait(failed: &Attempt, next: &Attempt, attempts: usize) {
    let (end, at) = failed.ended.expect("it failed");
    assert!(is_retryable(end), "{end:?} is tried again");
    let End::Upstream(status, _, after) = end else { unreachable!() };
    let drawn = match status {
        529 => Duration::from_millis(500),
        _ => Duration::from_millis(100),
    };
    let waited = next.began - at;
    assert!(waited >= after.unwrap_or(drawn), "{waited:?} of {attempts} attempts after {end:?}");
}

/// The answer in a word, and whether the last attempt's work had begun.
fn answered(
    result: &Result<(), RunError<Failure>>,
    script: &Script,
    attempts: usize,
    ended: Option<End>,
) -> (&'static str, bool) {
    let failed = ended.is_some_and(is_retryable);
    let retries = policy(script.max_retries).max_retries;
    match result {
        Ok(()) => {
            assert_eq!(ended, Some(End::Done));
            ("done", true)
        }
        Err(RunError::Job(Failure::Own)) => {
            assert_eq!(ended, Some(End::Fails));
            ("failed", true)
        }
        Err(RunError::Job(Failure::Upstream(_))) => {
            assert!(matches!(ended, Some(End::Upstream(..))) && (!failed || retries == 0));
            ("failed", true)
        }
        Err(RunError::Exhausted { retries: told, .. }) => {
            assert!(failed && *told == retries && attempts as u32 == retries + 1);
            ("exhausted", true)
        }
        Err(RunError::Spend(_)) => ("spend", false),
        Err(RunError::Provider(_)) => ("provider", false),
        Err(RunError::Commit { .. }) => {
            assert_eq!(ended, Some(End::Done));
            ("commit", true)
        }
        Err(RunError::Cancelled { stage }) => {
            assert!(script.cancelled_at.is_some());
            ("cancelled", stopped(*stage, ended, failed))
        }
        Err(RunError::TimedOut { stage, cause, limit }) => {
            assert_eq!(script.within, Some(*limit));
            if let Some(TimeoutCause::Failure(failure)) = cause {
                let own = matches!(failure, Failure::Own);
                assert!(if own { ended == Some(End::Fails) } else { ended.is_some() });
            }
            ("timed out", stopped(*stage, ended, failed))
        }
        Err(other) => panic!("{other:?} of {script:?}"),
    }
}

/// Whether the last attempt's work had begun when the run was stopped at this stage.
fn stopped(stage: RunStage, ended: Option<End>, failed: bool) -> bool {
    match stage {
        RunStage::Retry => assert!(failed),
        RunStage::Commit => assert_eq!(ended, Some(End::Done)),
        _ => {}
    }
    !matches!(stage, RunStage::Admission | RunStage::Databases)
}
