//! What a job needs, and the one demand it becomes.

use std::fmt;

use super::plan::{Plan, PlannedCall};
use super::run_error::Unplanned;
use super::spend::Priced;
use crate::account::{Account, AsAccount};
use crate::amount::{Amount, JobInfo};
use crate::db::{AnyProvider, DbProvider};
use crate::demand::Demand;
use crate::error::{AccountPanic, AdmitError};
use crate::limits::HttpGate;
use crate::models::{Accounts, ModelSpec, RegistryError, Usage};
use crate::sync::Arc;

/// Everything a job needs, as it would say it: calls of models, HTTP, limits of its own, databases.
///
/// A [`JobRunner`](crate::JobRunner) makes one [`Demand`] of it, in this order: for each model its
/// account (one permit a call of its gate where it declares `max_concurrent`, else one request and
/// the reserved tokens of its bucket); one place in the HTTP gate when anything needs HTTP; the
/// other accounts; a permit of each database. What is named twice is one entry with the sum, and a
/// database named twice is one handle under two permits. No requirements are the empty demand: an
/// orchestrator's, which never waits.
///
/// # Examples
///
/// ```
/// use admit::{CountingProvider, JobInfo, ModelSpec, Requirements, Usage};
///
/// let model = ModelSpec::new("gpt-x", 30_000);
/// let orders = CountingProvider::new("orders", 20)?;
/// let requirements = Requirements::new()
///     .call(&model, Usage::new(1_200, 600)) // at most 600 tokens of output are asked for
///     .database(&orders)
///     .transactional()
///     .for_job(JobInfo::new("17", "summarise").in_workflow("nightly"));
/// # let _ = requirements;
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "requirements do nothing until a runner runs a job with them"]
pub struct Requirements {
    calls: Vec<Call>,
    needs_http: bool,
    accounts: Vec<(Arc<dyn Account>, Amount)>,
    databases: Vec<Database>,
    is_transactional: bool,
    is_read_only: bool,
    job: Arc<JobInfo>,
}

#[derive(Clone)]
struct Call {
    model: Arc<ModelSpec>,
    /// For each time it is named.
    reserved: Vec<Usage>,
}

#[derive(Clone)]
struct Database {
    provider: Arc<dyn AnyProvider>,
    permits: u32,
}

impl Requirements {
    /// No requirements: an orchestrator's.
    pub fn new() -> Self {
        Self::default()
    }

    /// One call of a model, with what is reserved for it: the input, and the output the request will
    /// ask for at most.
    ///
    /// A job that calls a model several times names it as often, in the order of the calls: tokens are
    /// counted together, and a request for each time it is named. What was reserved for a call stays
    /// reserved until a usage of it is [recorded](super::Resources::record_usage). The model's place in
    /// the HTTP pool comes with it. A model is its id: another spec of the same id adds to the first, at
    /// the first's prices.
    pub fn call(mut self, model: &ModelSpec, reserved: Usage) -> Self {
        match self.calls.iter_mut().find(|call| call.model.id == model.id) {
            Some(call) => call.reserved.push(reserved),
            None => {
                let reserved = vec![reserved];
                self.calls.push(Call { model: Arc::new(model.clone()), reserved });
            }
        }
        self
    }

    /// A place in the HTTP pool. A model, and any account that
    /// [needs it](crate::Account::needs_http), brings it anyway; however many do, it is one place.
    pub const fn http(mut self) -> Self {
        self.needs_http = true;
        self
    }

    /// An amount of any other account.
    pub fn add<A: AsAccount + ?Sized>(mut self, account: &A, amount: Amount) -> Self {
        self.accounts.push((account.to_account(), amount));
        self
    }

    /// One request of `n` tokens of a bucket: one that is no model's, for a model is named by its
    /// [`call`](Self::call).
    pub fn tokens<A: AsAccount + ?Sized>(self, account: &A, n: u64) -> Self {
        self.add(account, Amount::tokens(n))
    }

    /// One permit of a gate, or one slot of a window. Of a bucket it is one request of one token: say
    /// [`tokens`](Self::tokens) there.
    pub fn permit<A: AsAccount + ?Sized>(self, account: &A) -> Self {
        self.add(account, Amount::permits(1))
    }

    /// `n` permits of a gate, or `n` slots of a window.
    pub fn permits<A: AsAccount + ?Sized>(self, account: &A, n: u32) -> Self {
        self.add(account, Amount::permits(n))
    }

    /// A permit of a database, and its handle for as long as the job runs.
    ///
    /// A job whose own stack takes a second connection beside it names the database twice, so that
    /// both are counted: two permits, one handle.
    pub fn database<P: DbProvider>(mut self, provider: &Arc<P>) -> Self {
        let provider: Arc<dyn AnyProvider> = Arc::new(Arc::clone(provider));
        match self.databases.iter_mut().find(|known| known.provider.key() == provider.key()) {
            Some(known) => known.permits = known.permits.saturating_add(1),
            None => self.databases.push(Database { provider, permits: 1 }),
        }
        self
    }

    /// The job runs inside a transaction on each of its databases, committed when it succeeds.
    pub const fn transactional(mut self) -> Self {
        self.is_transactional = true;
        self
    }

    /// The job's databases refuse its writes.
    pub const fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Who the job is: in errors, events, and for the caps on its workflow.
    pub fn for_job(mut self, job: impl Into<Arc<JobInfo>>) -> Self {
        self.job = job.into();
        self
    }

    pub(super) fn job(&self) -> Arc<JobInfo> {
        Arc::clone(&self.job)
    }

    /// What a runner works with: the one demand, and what it is made of.
    pub(super) fn plan(self, accounts: &Accounts, http: &Arc<HttpGate>) -> Result<Plan, Unplanned> {
        let mut demand = Demand::new();
        let mut calls = Vec::with_capacity(self.calls.len());
        for Call { model, reserved } in self.calls {
            // The registry reads no prices, and one below zero would make room under a cap.
            model.validate_prices().map_err(|source| {
                let model = model.id.clone();
                RegistryError::Spec { model, source }
            })?;
            let account = accounts.account(&model)?;
            let call = PlannedCall { model, account, reserved };
            let requests = u32::try_from(call.reserved.len()).unwrap_or(u32::MAX);
            let amount = match call.model.max_concurrent {
                Some(_) => Amount::permits(requests),
                None => Amount { requests, units: call.reserved().total() },
            };
            demand = demand.add(&call.account, amount);
            calls.push(call);
        }
        if self.needs_http || !calls.is_empty() || any_needs_http(&self.accounts)? {
            demand = demand.permit(http);
        }
        for (account, amount) in &self.accounts {
            demand = demand.add(account, *amount);
        }
        for Database { provider, permits } in &self.databases {
            demand = demand.permits(&provider.account(), *permits);
        }
        // A job nobody named is nobody in events, too.
        if *self.job != JobInfo::default() {
            demand = demand.for_job(Arc::clone(&self.job));
        }
        Ok(Plan {
            demand,
            priced: calls.iter().map(|call| Priced::of(&call.model, call.reserved())).collect(),
            calls,
            providers: self.databases.into_iter().map(|database| database.provider).collect(),
            is_transactional: self.is_transactional,
            is_read_only: self.is_read_only,
            job: self.job,
        })
    }
}

fn any_needs_http(accounts: &[(Arc<dyn Account>, Amount)]) -> Result<bool, Unplanned> {
    for (account, _) in accounts {
        let needs =
            AccountPanic::catch("needs_http", || account.needs_http()).map_err(|source| {
                AdmitError::AccountFault { account: Arc::clone(account.link().name()), source }
            })?;
        if needs {
            return Ok(true);
        }
    }
    Ok(false)
}

impl fmt::Debug for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<_> = self.calls.iter().map(|call| &*call.model.id).collect();
        let accounts: Vec<_> =
            self.accounts.iter().map(|(account, _)| account.link().name()).collect();
        let databases: Vec<_> =
            self.databases.iter().map(|database| database.provider.name()).collect();
        f.debug_struct("Requirements")
            .field("job", &self.job)
            .field("calls", &calls)
            .field("needs_http", &self.needs_http)
            .field("accounts", &accounts)
            .field("databases", &databases)
            .field("is_transactional", &self.is_transactional)
            .field("is_read_only", &self.is_read_only)
            .finish()
    }
}
