//! One attempt, in order.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bill::Bill;
use super::held::bounded;
use super::job_error::JobError;
use super::meter::Unrecorded;
use super::plan::Plan;
use super::record::JobRecord;
use super::resources::Resources;
use super::run_error::{RunError, RunStage, TimeoutCause};
use super::spend::SpendGate;
use super::stop::{Stop, Stopped};
use super::tenure::Tenure;
use crate::caught::{Payload, caught, contain};
use crate::db::{DbVerb, in_scope};
use crate::error::AdmitError;
use crate::grant::Grant;
use crate::monitor::Admission;
use crate::spanned::{Quiet, Spanned};
use crate::sync::Arc;

/// What every attempt of a run has in common.
pub(super) struct Attempts<'a> {
    pub(super) admission: &'a Admission,
    pub(super) gates: &'a [Arc<dyn SpendGate>],
    pub(super) plan: Arc<Plan>,
    pub(super) stop: Stop,
    pub(super) runtime: Handle,
}

/// Why an attempt did not succeed.
pub(super) enum Fault<E> {
    /// The job's own error: whether there is another attempt is not for this one to say.
    Job(E),
    Run(RunError<E>),
    Panic(Payload),
}

impl<E> From<RunError<E>> for Fault<E> {
    fn from(error: RunError<E>) -> Self {
        Self::Run(error)
    }
}

/// A step's fault. A panic is one, too: it is held back until everything is given back.
fn faulty<T, E>(step: Result<Result<T, RunError<E>>, Payload>) -> Result<T, Fault<E>> {
    step.map_err(Fault::Panic)?.map_err(Fault::Run)
}

/// How the job's future ended.
enum Worked<T, E> {
    Done(T),
    Failed(E),
    Panicked(Payload),
    /// Its token was cancelled, and it was dropped.
    Cancelled,
    /// Its time was over, and it ended by itself.
    Late(Stopped, Option<E>),
    /// It was told, did not end within its grace, and was dropped.
    Overdue(Stopped),
}

/// Tells the job's own tasks of its end, at the latest when it is dropped.
struct Told(CancellationToken);

impl Told {
    fn tell(&self) {
        // Whatever polls such a task is not ours, and its mistake not the job's.
        contain("a waker of a job's own task", || self.0.cancel());
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.tell();
    }
}

impl Attempts<'_> {
    /// Runs the job once.
    ///
    /// Dropped at any await, its [`Tenure`] sees to what it holds: the tenure is made in the same
    /// poll that yields the grant, and a handle enters it in the same poll that yields the handle.
    pub(super) async fn run<T, E, F, Fut>(
        &self,
        job: &mut F,
        record: &mut JobRecord,
    ) -> Result<T, Fault<E>>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: JobError,
    {
        let bill = Bill::ask(self.gates, &self.plan).map_err(RunError::Spend)?;
        let asked_at = Instant::now();
        let admitted = {
            let attempt = record.attempts;
            let wait = Quiet::new(|| tracing::debug_span!("admit.wait", attempt));
            let admitted = pin!(Some(self.admitted()));
            Spanned::new(&wait, admitted).await
        };
        let grant = match admitted {
            Ok(grant) => grant,
            Err(error) => {
                record.waited_in_vain(asked_at.elapsed());
                return Err(error.into());
            }
        };
        record.granted(&grant);
        let mut tenure = Tenure::new(grant, bill, &self.plan, &self.runtime);

        let ready = caught(pin!(self.make_ready(&mut tenure))).await;
        if let Err(fault) = faulty(ready) {
            tenure.undo().await;
            return Err(fault);
        }
        let told = Told(CancellationToken::new());
        let resources = Resources::new(
            Arc::clone(&self.plan),
            Arc::clone(tenure.meter()),
            Arc::clone(tenure.reports()),
            Arc::clone(tenure.held().grant()),
            tenure.held().bound(self.plan.is_read_only),
            told.0.clone(),
            record.attempts,
        );
        let worked = caught(pin!(self.work(&mut tenure, resources, &told, job))).await;
        // What panicked beside the job's own poll: one of its destructors.
        let worked = worked.unwrap_or_else(Worked::Panicked);
        // Before the commit and the clean-up, which wait for the guards these tasks hold.
        drop(told);
        self.finish(tenure, worked, record).await
    }

    async fn admitted<E>(&self) -> Result<Grant, RunError<E>> {
        let mut admit = self.admission.admit(self.plan.demand.clone());
        if let Some(token) = self.stop.token() {
            admit = admit.cancelled_by(token.clone());
        }
        if let Some(left) = self.stop.left() {
            admit = admit.within(left);
        }
        // The evaluator keeps the time, and knows what is missing. Where none runs, or not in time, the
        // run's own clock does.
        let admitted = self.stop.unless_overdue(admit).await;
        let admitted = admitted.map_err(|over| over.error(RunStage::Admission, None))?;
        admitted.map_err(|error| match (error, self.stop.limit()) {
            (AdmitError::Cancelled, _) => RunError::Cancelled { stage: RunStage::Admission },
            (error @ AdmitError::TimedOut { .. }, Some(limit)) => RunError::TimedOut {
                limit,
                stage: RunStage::Admission,
                cause: Some(TimeoutCause::Admission(error)),
            },
            (error, _) => RunError::Admit(error),
        })
    }

    /// Takes every provider's handle, and opens the transactions.
    async fn make_ready<E>(&self, tenure: &mut Tenure) -> Result<(), RunError<E>> {
        let stage = RunStage::Databases;
        let at = |database: &Arc<str>, verb| {
            Some(TimeoutCause::Database { database: Arc::clone(database), verb })
        };
        for provider in &self.plan.providers {
            let acquire = provider.acquire(self.plan.is_read_only);
            let acquire = bounded(&**provider, DbVerb::Acquire, acquire);
            let handle = self.stop.unless(acquire).await;
            let handle =
                handle.map_err(|over| over.error(stage, at(provider.name(), DbVerb::Acquire)))?;
            tenure.held().acquired(provider, handle.map_err(RunError::Provider)?);
        }
        if self.plan.is_transactional {
            let begun = self.stop.unless(tenure.held().begin()).await;
            let begun = begun.map_err(|over| {
                let last = tenure.held().last_begun();
                over.error(stage, last.and_then(|database| at(database, DbVerb::Begin)))
            })?;
            begun.map_err(RunError::Provider)?;
        }
        // What came while nothing had to be waited for.
        self.stop.now().map_or(Ok(()), |over| Err(over.error(stage, None)))
    }

    /// Polls the job's future to its end, or drops it. Its destructor has run when this returns.
    async fn work<T, E, F, Fut>(
        &self,
        tenure: &mut Tenure,
        resources: Resources,
        told: &Told,
        job: &mut F,
    ) -> Worked<T, E>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let bound = resources.bound();
        // Started where the job is called and not before: a task that may do no more in this poll
        // comes here in its next, if there is one.
        let job = pin!(in_scope(bound, async {
            tenure.start();
            job(resources).await
        }));
        let mut job = pin!(caught(job));
        let limit = tokio::select! {
            biased;
            ended = &mut job => return match ended {
                Ok(Ok(done)) => match self.too_late_to_commit() {
                    None => Worked::Done(done),
                    Some(over) => Worked::Late(over, None),
                },
                Ok(Err(error)) => Worked::Failed(error),
                Err(payload) => Worked::Panicked(payload),
            },
            () = self.stop.cancelled() => return Worked::Cancelled,
            limit = self.stop.passed() => limit,
        };
        told.tell();
        let over = Stopped::TimedOut(limit);
        tokio::select! {
            biased;
            ended = &mut job => match ended {
                Ok(Ok(_)) => Worked::Late(over, None),
                Ok(Err(error)) => Worked::Late(over, Some(error)),
                Err(payload) => Worked::Panicked(payload),
            },
            () = self.stop.cancelled() => Worked::Cancelled,
            _ = self.stop.grace_passed() => Worked::Overdue(over),
        }
    }

    /// Whether a commit that began now would be cut off at its first await, and leave open whether it
    /// happened: a job may compute past its time without noticing.
    fn too_late_to_commit(&self) -> Option<Stopped> {
        let has_none = !self.plan.is_transactional || self.plan.providers.is_empty();
        if has_none { None } else { self.stop.overdue() }
    }

    /// Settles the bill; then commits and reports the success, or reports the failure and rolls
    /// back; and ends the tenure.
    async fn finish<T, E: JobError>(
        &self,
        mut tenure: Tenure,
        worked: Worked<T, E>,
        record: &mut JobRecord,
    ) -> Result<T, Fault<E>> {
        let failure = catch_unwind(AssertUnwindSafe(|| match &worked {
            Worked::Failed(error) | Worked::Late(_, Some(error)) => error.upstream(),
            _ => None,
        }));
        let (failure, panic) = match failure {
            Ok(failure) => (failure, None),
            Err(payload) => (None, Some(Payload::of(payload))),
        };
        let unrecorded =
            if failure.is_some() { Unrecorded::Nothing } else { Unrecorded::AsReserved };
        record.spent(&tenure.settle_bill(unrecorded));
        if let Some(failure) = failure {
            record.last_failure = Some(failure.clone());
        }

        if matches!(worked, Worked::Overdue(_)) {
            tenure.abandon().await;
        } else if let Worked::Done(done) = worked {
            let committed = faulty(caught(pin!(self.commit(&mut tenure))).await);
            if committed.is_ok() {
                let reports = Arc::clone(tenure.reports());
                reports.success(tenure.held().grant());
            }
            tenure.end().await;
            return committed.map(|()| done);
        } else {
            // Before the rollbacks: they may take long, and others' calls go on meanwhile.
            if let Some(failure) = failure {
                let reports = Arc::clone(tenure.reports());
                reports.failed(tenure.held().grant(), failure);
            }
            tenure.end().await;
        }
        if let Some(payload) = panic {
            return Err(Fault::Panic(payload));
        }
        let stage = RunStage::Work;
        Err(match worked {
            Worked::Done(_) => unreachable!("returned above"),
            Worked::Failed(error) => Fault::Job(error),
            Worked::Panicked(payload) => Fault::Panic(payload),
            Worked::Cancelled => Stopped::Cancelled.error(stage, None).into(),
            Worked::Late(over, error) => over.error(stage, error.map(TimeoutCause::Failure)).into(),
            Worked::Overdue(over) => over.error(stage, None).into(),
        })
    }

    async fn commit<E>(&self, tenure: &mut Tenure) -> Result<(), RunError<E>> {
        if !self.plan.is_transactional {
            return Ok(());
        }
        let mut durable = Vec::new();
        // A commit under way is not cut off by a cancel: it would leave open whether it happened.
        let committed = self.stop.unless_overdue(tenure.held().commit(&mut durable)).await;
        match committed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(RunError::Commit { source, durable }),
            Err(over) => {
                Err(over.error(RunStage::Commit, Some(TimeoutCause::Committing { durable })))
            }
        }
    }
}
