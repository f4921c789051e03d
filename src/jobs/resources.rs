//! What a job works with while it runs.

use std::fmt;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::meter::{Meter, Recorded, UsageError};
use super::plan::Plan;
use super::reports::Reports;
use crate::account::{AsAccount, Charge};
use crate::amount::JobInfo;
use crate::db::{Bound, DbProvider, ProviderError};
use crate::demand::Demand;
use crate::grant::{Grant, WaitTime};
use crate::models::{ModelSpec, Usage};
use crate::money::Money;
use crate::sync::Arc;
use crate::upstream::UpstreamFailure;

/// What a job was granted, for as long as its attempt runs.
///
/// A clone is the same resources, for the job's own tasks. They do not keep anything: when the
/// attempt ends everything returns, and a clone that is left finds its databases closed, before
/// anything is committed or rolled back.
#[derive(Clone)]
pub struct Resources {
    inner: Arc<Inner>,
}

struct Inner {
    plan: Arc<Plan>,
    meter: Arc<Meter>,
    reports: Arc<Reports>,
    grant: Arc<Grant>,
    bound: Arc<Bound>,
    cancelled: CancellationToken,
    attempt: u32,
}

impl Resources {
    pub(super) fn new(
        plan: Arc<Plan>,
        meter: Arc<Meter>,
        reports: Arc<Reports>,
        grant: Arc<Grant>,
        bound: Arc<Bound>,
        cancelled: CancellationToken,
        attempt: u32,
    ) -> Self {
        Self { inner: Arc::new(Inner { plan, meter, reports, grant, bound, cancelled, attempt }) }
    }

    pub(super) fn bound(&self) -> Arc<Bound> {
        Arc::clone(&self.inner.bound)
    }

    /// The job's session of a database: an owned guard, so that several databases' can be held at
    /// once.
    ///
    /// It must be gone when the job ends. A task of the job's that holds one is told through
    /// [`cancelled`](Self::cancelled) before anything waits for it. A commit then waits as long as
    /// the run has time; what ends the session is cut off after the provider's
    /// [`acquire_timeout`](DbProvider::acquire_timeout).
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ProviderError::NotHeld) when the job did not require the provider,
    /// [`InUse`](ProviderError::InUse) while another guard of it is out,
    /// [`Closed`](ProviderError::Closed) once the job has ended.
    pub fn get<P: DbProvider>(&self, provider: &Arc<P>) -> Result<P::Session, ProviderError> {
        self.inner.bound.session(provider)
    }

    /// Says what a call of a model really used, and answers what that costs; `None` for a model
    /// without prices.
    ///
    /// The model's bucket is corrected at once: what was reserved for the call and not used is back.
    /// Usages of one model add up, each the usage of the next call that was named; a call of which
    /// nothing is recorded counts as reserved. One that was named and not made is recorded as
    /// `Usage::default()`. Where the calls of one model differ in size and end out of order, say of which
    /// each usage is, with [`record_usage_of`](Self::record_usage_of): else more than was reserved may
    /// count until all of them are recorded.
    ///
    /// # Errors
    ///
    /// When the job did not require the model, and after the attempt.
    pub fn record_usage(
        &self,
        model: &ModelSpec,
        usage: Usage,
    ) -> Result<Option<Money>, UsageError> {
        self.record(model, None, usage)
    }

    /// As [`record_usage`](Self::record_usage), of one call in particular: the first that was
    /// [named](super::Requirements::call) of that model is 0.
    ///
    /// Usages of one call add up, too: a call that was made twice used both. Recorded both with their
    /// call and without, a usage without is of the first call that has none.
    ///
    /// # Errors
    ///
    /// When the job did not require the model, or fewer calls of it, and after the attempt.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use admit::{Admission, Accounts, JobRunner, ModelSpec, Requirements, Resources, Usage};
    /// # use std::sync::Arc;
    /// # let admission = Admission::builder().start()?;
    /// # let accounts = Arc::new(Accounts::new());
    /// # let runner = JobRunner::builder(&admission).accounts(accounts).build()?;
    /// let model = ModelSpec::new("gpt-x", 30_000);
    /// let both = Requirements::new()
    ///     .call(&model, Usage::new(8_000, 2_000)) // call 0 reads the whole document
    ///     .call(&model, Usage::new(200, 100)); // call 1 finds it a title
    /// let job = async |resources: Resources| {
    ///     // They run side by side, and the short one is back first.
    ///     resources.record_usage_of(&model, 1, Usage::new(180, 12))?;
    ///     resources.record_usage_of(&model, 0, Usage::new(7_400, 900))?;
    ///     Ok::<_, admit::UsageError>(())
    /// };
    /// runner.run(both, job).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn record_usage_of(
        &self,
        model: &ModelSpec,
        call: usize,
        usage: Usage,
    ) -> Result<Option<Money>, UsageError> {
        self.record(model, Some(call), usage)
    }

    fn record(
        &self,
        model: &ModelSpec,
        call: Option<usize>,
        usage: Usage,
    ) -> Result<Option<Money>, UsageError> {
        let Inner { plan, meter, grant, .. } = &*self.inner;
        let Recorded { model, mut used, cost } = meter.record(plan, model, call, usage)?;
        // A task of the job's may record at the same time: the account must end at the sum of both,
        // whichever of us reaches it last. So whoever has told it looks whether there is more by now.
        loop {
            grant.reconcile(&plan.calls[model].account, plan.charge(model, used));
            let now = meter.used(plan, model);
            if now == used {
                return Ok(cost);
            }
            used = now;
        }
    }

    /// Corrects what the job is charged on one account to what the work really used, in units: for a
    /// bucket, or an account of your own, that is no model's.
    ///
    /// Answers as [`Grant::reconcile`], and `false` for the account of a model the job calls: that one
    /// follows the [recorded usages](Self::record_usage).
    pub fn reconcile<A: AsAccount + ?Sized>(&self, account: &A, actual_units: u64) -> bool {
        let Inner { plan, grant, .. } = &*self.inner;
        let id = account.as_account().link().id();
        let is_models = plan.calls.iter().any(|call| call.account.link().id() == id);
        !is_models && grant.reconcile(account, actual_units)
    }

    /// Returns the permits of one account now, such as the HTTP place before a long local step.
    ///
    /// Answers as [`Grant::release_one`], and `false` for the account of a database: its permit
    /// stands for a connection that is out until the job has ended.
    pub fn release_one<A: AsAccount + ?Sized>(&self, account: &A) -> bool {
        let Inner { plan, grant, .. } = &*self.inner;
        let id = account.as_account().link().id();
        let is_database = plan.providers.iter().any(|known| known.account().link().id() == id);
        !is_database && grant.release_one(account)
    }

    /// Tells one account that the upstream behind it did its part, for a job that may fail all the
    /// same: an answer that is an error of the job's own, such as "not found", is a healthy upstream's.
    /// Whatever the job comes to, that account hears nothing else of this attempt. Answers whether it
    /// heard, as [`Grant::report_success`].
    pub fn report_success<A: AsAccount + ?Sized>(&self, account: &A) -> bool {
        self.inner.reports.of_job(account, || self.inner.grant.report_success(account))
    }

    /// Tells one account that the upstream behind it failed, for a job that goes on: it may have
    /// another to turn to. Whatever the job comes to, that account hears nothing else of this
    /// attempt. Answers whether it heard, as [`Grant::report_failure`].
    pub fn report_failure<A: AsAccount + ?Sized>(
        &self,
        account: &A,
        failure: &UpstreamFailure,
    ) -> bool {
        self.inner.reports.of_job(account, || self.inner.grant.report_failure(account, failure))
    }

    /// Waits until the job should end, because its time is over: what it does within the grace is
    /// its own, after that it is dropped. It is said to tasks of the job's, too, when the job's own
    /// future has ended, before its transactions are committed.
    #[must_use = "it does nothing unless awaited"]
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.inner.cancelled.cancelled()
    }

    /// Whether the job should end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.is_cancelled()
    }

    /// The same as a token, to hand on to what the job calls: whoever cancels it cancels only what
    /// has it.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.inner.cancelled.child_token()
    }

    /// Who the job is.
    #[must_use]
    pub fn job(&self) -> &JobInfo {
        &self.inner.plan.job
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// Everything the job was granted.
    pub fn demand(&self) -> &Demand {
        self.inner.grant.demand()
    }

    /// What one account holds for this attempt. Answers as [`Grant::charge`].
    #[must_use]
    pub fn charge<A: AsAccount + ?Sized>(&self, account: &A) -> Option<Charge> {
        self.inner.grant.charge(account)
    }

    /// How long this attempt waited for its grant.
    #[must_use]
    pub fn admission_wait(&self) -> Duration {
        self.inner.grant.wall_wait()
    }

    /// How long each account kept this attempt; see [`Grant::wait_times`].
    #[must_use]
    pub fn wait_times(&self) -> &[WaitTime] {
        self.inner.grant.wait_times()
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resources")
            .field("job", self.job())
            .field("attempt", &self.inner.attempt)
            .field("demand", self.demand())
            .finish_non_exhaustive()
    }
}
