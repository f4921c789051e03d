//! What one job does, whichever way it comes by its limits.

use std::time::Duration;

use admit::{FailureKind, ModelSpec, RetryPolicy, UpstreamFailure, Usage};
use sqlx::{Executor, Sqlite};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::client::{Answer, Client, Reply};
use crate::figures::count;
use crate::files::{Content, read};
use crate::ledger::{Ledger, Outcome};
use crate::plan::Job;
use crate::store::{Store, Summary};

/// Everything the jobs of a run work with, but their limits.
#[derive(Debug)]
pub(crate) struct Work {
    /// Whom they ask.
    pub(crate) client: Client,
    /// Where they put the answers.
    pub(crate) store: Store,
    /// Where they are counted.
    pub(crate) ledger: Ledger,
    /// The models there are.
    pub(crate) models: Vec<ModelSpec>,
    /// Bytes of a file that are sent at most.
    pub(crate) max_bytes: u64,
    /// Tokens of an answer.
    pub(crate) max_output: u32,
    /// How often a file is tried again, and after which pause.
    pub(crate) retries: RetryPolicy,
    /// Seed of the pauses.
    pub(crate) seed: u64,
    /// Cancelled by Ctrl-C: nothing new begins.
    pub(crate) stop: CancellationToken,
}

impl Work {
    /// Reads the job's file and asks for a summary.
    ///
    /// # Errors
    ///
    /// When the file has gone, or is no text any more, since it was found.
    pub(crate) async fn ask(&self, job: &Job) -> Result<Reply, String> {
        let (at, most) = (job.at.clone(), self.max_bytes);
        // Read only now, when it is its turn: ten thousand waiting jobs hold no text.
        let content = spawn_blocking(move || read(&at, most)).await;
        let text = match content.map_err(|error| error.to_string())? {
            Ok(Content::Text { text, .. }) => text,
            Ok(Content::Empty | Content::NotText) => return Err("is no text any more".to_owned()),
            Err(error) => return Err(format!("cannot be read any more: {error}")),
        };
        let model = &self.models[job.model].id;
        let reply = self.client.summarise(model, &job.path, &text, self.max_output).await;
        match &reply.answer {
            Ok(answer) => self.ledger.answered(job.model, answer.usage),
            Err(failure) => self.ledger.refused(failure),
        }
        Ok(reply)
    }

    /// Stores the answer.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub(crate) async fn keep<'e, E>(
        &self,
        on: E,
        job: &Job,
        answer: &Answer,
        calls: u32,
    ) -> Result<(), String>
    where
        E: Executor<'e, Database = Sqlite>,
    {
        let summary = Summary {
            path: &job.path,
            model: &self.models[job.model].id,
            text: &answer.text,
            usage: answer.usage,
            attempts: calls,
        };
        let kept = self.store.keep(on, &summary).await;
        kept.map_err(|reason| format!("its summary could not be stored: {reason}"))
    }
}

/// How a file is tried again: up to so many calls, with pauses that are short, for a run of the
/// stand-in is. Real providers want the crate's own default.
pub(crate) fn retries(calls: u32) -> RetryPolicy {
    let pause = Duration::from_millis(500)..=Duration::from_millis(750);
    RetryPolicy {
        max_retries: calls.saturating_sub(1),
        usual: pause.clone(),
        overload: pause,
        max_wait: Duration::from_secs(20),
        ..RetryPolicy::default()
    }
}

/// What a call used, as far as it is known.
///
/// One that was turned away before it cost a token used nothing. A rate limit is not among those:
/// the tokens we believed in were not there, and by keeping the reservation spent our bucket comes
/// down to the provider's. Nor is a fault. What was lost on the way may have cost all it could.
pub(crate) fn used(reply: &Reply, job: &Job) -> Option<Usage> {
    match &reply.answer {
        Ok(answer) => answer.usage,
        Err(failure) => match failure.kind {
            FailureKind::Overload | FailureKind::Rejected => Some(Usage::default()),
            _ if reply.is_lost => Some(job.reserved),
            _ => None,
        },
    }
}

/// The end of a job that failed so at the last of its calls.
pub(crate) fn given_up(calls: u32, failure: &UpstreamFailure) -> Outcome {
    let summary = failure.summary();
    if !failure.is_retryable() {
        return Outcome::Failed(summary);
    }
    Outcome::Failed(format!("given up after {}: {summary}", count(calls as usize, "call")))
}

#[cfg(test)]
mod tests {
    use admit::RateLimitInfo;

    use super::*;

    #[test]
    fn only_what_was_turned_away_cost_nothing_and_what_was_lost_all_it_could() {
        let reserved = Usage::new(100, 50);
        let job = Job { number: 0, at: "a".into(), path: "a".to_owned(), model: 0, reserved };
        let used = |answer, is_lost| {
            let limits = RateLimitInfo::default();
            used(&Reply { answer, limits, is_lost }, &job)
        };
        let answer = |usage| Ok(Answer { text: "A file.".to_owned(), usage });
        assert_eq!(used(answer(Some(Usage::new(90, 10))), false), Some(Usage::new(90, 10)));
        assert_eq!(used(answer(None), false), None);
        for (status, known) in [(529, true), (404, true), (429, false), (500, false)] {
            let failure = UpstreamFailure::status(status, "m", "");
            assert_eq!(used(Err(failure), false), known.then(Usage::default), "{status}");
        }
        let nobody = UpstreamFailure::no_response("m", "");
        assert_eq!(used(Err(nobody.clone()), false), None);
        assert_eq!(used(Err(nobody), true), Some(reserved));
    }

    #[test]
    fn a_job_that_is_given_up_says_after_how_many_calls_unless_one_was_enough() {
        let busy = UpstreamFailure::status(529, "m", "");
        let Outcome::Failed(reason) = given_up(6, &busy) else { panic!("it failed") };
        assert!(reason.starts_with("given up after 6 calls: HTTP 529"), "{reason}");
        let wrong = UpstreamFailure::status(404, "m", "");
        assert_eq!(given_up(1, &wrong), Outcome::Failed(wrong.summary()));
    }
}
