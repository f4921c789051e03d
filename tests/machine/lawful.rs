//! Whether a job may be answered as it was.

use std::time::Duration;

use admit::{AdmitError, CircuitState};
use tokio::time::Instant;

use crate::ledger::ensure;
use crate::model::Model;
use crate::setup::{NAMES, OWN, WINDOW};
use crate::transition::Job;
use crate::world::{Waiting, World};

/// When a job asked, and how long it would wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) within: Option<Duration>,
    pub(crate) at: Instant,
}

impl World {
    /// An answer at the first poll: how everything stands is known.
    pub(crate) fn is_lawful_at_once(
        &mut self,
        model: &Model,
        job: Job,
        error: &AdmitError,
    ) -> Result<(), String> {
        let parts = self.ledger.demand(job);
        let waiting = self.line().into_iter().filter(|&other| other != job).count();
        let is_right = match error {
            AdmitError::Refused { account, .. } => {
                let sick = &**account == NAMES[WINDOW]
                    && self.limits.window.status().circuit != CircuitState::Healthy;
                let never = parts.iter().filter(|part| NAMES[part.0] == &**account);
                sick || model.can_never_fit(&never.copied().collect::<Vec<_>>())
            }
            AdmitError::QueueFull { waiting: told, limit } => {
                *limit == model.setup.max_waiting && waiting >= *limit && *told == waiting
            }
            AdmitError::TimedOut { waited, .. } => waited.is_zero(),
            AdmitError::ShutDown | AdmitError::Closed(_) => !self.is_alive(model) || model.spoilt,
            AdmitError::AccountFault { .. } => self.names_own(job),
            _ => false,
        };
        ensure!(is_right, "job {job} is answered {error:?} at once");
        self.empty_refused += u64::from(self.ledger.demand(job).is_empty());
        self.note_end(error);
        Ok(())
    }

    pub(crate) fn is_lawful(
        &mut self,
        model: &Model,
        job: Job,
        waiting: &Waiting,
        error: &AdmitError,
    ) -> Result<(), String> {
        let parts = self.ledger.demand(job);
        let Asked { within, at } = waiting.asked;
        let is_right = match error {
            AdmitError::Cancelled => waiting.token.is_cancelled(),
            AdmitError::Refused { account, .. } => {
                parts.iter().any(|part| NAMES[part.0] == &**account)
            }
            AdmitError::QueueFull { .. } => true,
            AdmitError::TimedOut { waited, .. } => {
                // Without an evaluator nobody looks; and it is polled when it is polled.
                let whole = within
                    .is_some_and(|within| *waited == within || (model.lost && *waited >= within));
                whole && *waited <= at.elapsed()
            }
            AdmitError::ShutDown => model.lost || !self.is_alive(model),
            AdmitError::AccountFault { account, .. } => {
                model.has_panicked && &**account == NAMES[OWN] && self.names_own(job)
            }
            AdmitError::Closed(_) => model.spoilt,
            _ => false,
        };
        ensure!(is_right, "job {job} is answered {error:?}");
        self.note_end(error);
        Ok(())
    }

    fn names_own(&self, job: Job) -> bool {
        self.ledger.demand(job).iter().any(|part| part.0 == OWN)
    }

    fn note_end(&mut self, error: &AdmitError) {
        self.is_closed |= matches!(error, AdmitError::Closed(_));
    }
}
