//! What one job does, whichever way it comes by its limits.

use std::time::Duration;

use admit::{FailureKind, ModelSpec, UpstreamFailure};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::client::{Answer, Client, Reply};
use crate::dice::Dice;
use crate::figures::count;
use crate::files::{Content, read};
use crate::ledger::{Ledger, Outcome};
use crate::plan::Job;
use crate::store::{Store, Summary};

/// The first pause before another try, when the provider does not say how long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// The longest a provider may send a job away.
const LONGEST_ASKED: Duration = Duration::from_secs(600);

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
    /// Calls made for one file.
    pub(crate) attempts: u32,
    /// Seed of the pauses' jitter.
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
    pub(crate) async fn keep(&self, job: &Job, answer: &Answer, attempts: u32) -> Outcome {
        let summary = Summary {
            path: &job.path,
            model: &self.models[job.model].id,
            text: &answer.text,
            usage: answer.usage,
            attempts,
        };
        match self.store.keep(&summary).await {
            Ok(()) => Outcome::Done,
            Err(reason) => Outcome::Failed(format!("its summary could not be stored: {reason}")),
        }
    }

    /// Waits, after the job's `attempt` failed, until it is worth another; the caller holds
    /// nothing meanwhile. Answers the outcome when there is to be none.
    pub(crate) async fn pause(
        &self,
        job: &Job,
        attempt: u32,
        failure: &UpstreamFailure,
    ) -> Option<Outcome> {
        if !failure.is_retryable() {
            return Some(Outcome::Failed(failure.summary()));
        }
        if attempt >= self.attempts {
            let summary = failure.summary();
            let calls = count(attempt as usize, "call");
            return Some(Outcome::Failed(format!("given up after {calls}: {summary}")));
        }
        let pause = pause_after(attempt, failure.retry_after, &mut Dice::new(self.seed, &job.path));
        let _pausing = self.ledger.pausing();
        match self.stop.run_until_cancelled(sleep(pause)).await {
            Some(()) => None,
            None => Some(Outcome::Unfinished),
        }
    }
}

/// Whether a call that failed so was turned away before it cost a token, so that its reservation
/// can go back.
///
/// A rate limit is not among them: the tokens we believed in were not there, and by keeping the
/// reservation spent our bucket comes down to the provider's. Nor is a fault, of which nobody knows
/// what it cost.
pub(crate) const fn is_uncounted(failure: &UpstreamFailure) -> bool {
    matches!(failure.kind, FailureKind::Overload | FailureKind::Rejected)
}

/// How long to stay away after the attempt of that number: as long as the server asks, else twice
/// as long each time, and up to a half more, so that those refused together do not return together.
fn pause_after(attempt: u32, asked: Option<Duration>, dice: &mut Dice) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_PAUSE);
    match asked {
        Some(asked) => asked.min(LONGEST_ASKED) + doubled.min(FIRST_PAUSE).mul_f64(dice.fraction()),
        None => doubled.mul_f64(1.0 + dice.fraction() / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_a_bound() {
        for (attempt, least) in [(1, 500), (2, 1_000), (3, 2_000), (7, 20_000), (100, 20_000)] {
            let least = Duration::from_millis(least);
            for seed in 0..100 {
                let pause = pause_after(attempt, None, &mut Dice::new(seed, ()));
                assert!(least <= pause && pause <= least.mul_f64(1.5), "{attempt}: {pause:?}");
            }
        }
    }

    #[test]
    fn what_the_server_asks_for_is_the_least() {
        let asked = Duration::from_secs(7);
        for seed in 0..100 {
            let pause = pause_after(4, Some(asked), &mut Dice::new(seed, ()));
            assert!(asked <= pause && pause <= asked + FIRST_PAUSE, "{pause:?}");
        }
    }
}
