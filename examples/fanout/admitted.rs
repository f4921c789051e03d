//! The crate's way: each job admits one demand, and waits for it holding nothing.

use std::sync::Arc;

use admit::{
    Account, Accounts, Admission, AdmitError, Category, DatabaseGate, Demand, Grant, HttpGate,
    JobInfo, MemoryGate, ModelSpec, RateLimitInfo, UpstreamFailure,
};
use tokio::time::Instant;

use crate::client::Answer;
use crate::error::Fatal;
use crate::jobs::{Work, is_uncounted};
use crate::ledger::Outcome;
use crate::plan::Job;
use crate::way::{Gauge, Way};

const MEBIBYTE: u64 = 1 << 20;

/// The accounts of a run, and the admission that grants them together.
#[derive(Debug)]
pub(crate) struct AllAtOnce {
    admission: Admission,
    registry: Accounts,
    specs: Vec<ModelSpec>,
    /// Of each model its bucket, or its gate where it is limited to so many calls at once.
    models: Vec<Arc<dyn Account>>,
    http: Arc<HttpGate>,
    database: Arc<DatabaseGate>,
}

impl AllAtOnce {
    /// Sets up the accounts and starts the admission.
    ///
    /// # Errors
    ///
    /// When one of them cannot be had: a name that is empty, a number out of range.
    pub(crate) fn start(
        specs: &[ModelSpec],
        http: u32,
        database: u32,
        memory_gate: bool,
    ) -> Result<Self, Fatal> {
        let refused = |error: &dyn std::fmt::Display| Fatal::Admission(error.to_string());
        let mut builder = Admission::builder();
        if memory_gate {
            builder = builder.memory_gate(MemoryGate::new().map_err(|error| refused(&error))?);
        }
        let registry = Accounts::new();
        let models = specs.iter().map(|spec| registry.account(spec));
        Ok(Self {
            models: models.collect::<Result<_, _>>().map_err(|error| refused(&error))?,
            http: HttpGate::new(http).map_err(|error| refused(&error))?,
            database: DatabaseGate::new("fanout", database).map_err(|error| refused(&error))?,
            admission: builder.start().map_err(|error| refused(&error))?,
            specs: specs.to_vec(),
            registry,
        })
    }

    /// Everything a job needs, at once.
    fn demand(&self, job: &Job) -> Demand {
        let model = &self.models[job.model];
        let demand = match self.specs[job.model].max_concurrent {
            None => Demand::new().tokens(model, job.reservation),
            Some(_) => Demand::new().permit(model),
        };
        demand
            .permit(&self.http)
            .permit(&self.database)
            .for_job(JobInfo::new(job.number.to_string(), job.path.as_str()))
    }

    /// The model worked: its bucket hears so, and gets back what was reserved and not used.
    fn succeeded(&self, grant: &Grant, job: &Job, answer: &Answer) {
        let model = &self.models[job.model];
        grant.report_success(model);
        if let Some(usage) = answer.usage {
            grant.reconcile(model, usage.total());
        }
        // The call is over; what is left to do is the database's.
        grant.release_one(&self.http);
    }

    /// The model refused: its bucket slows down, or holds still for as long as the server asks.
    fn failed(&self, grant: &Grant, job: &Job, failure: &UpstreamFailure) {
        let model = &self.models[job.model];
        grant.report_failure(model, failure);
        if is_uncounted(failure) {
            grant.reconcile(model, 0);
        }
    }

    /// The bucket follows what the provider says its limits are.
    fn correct(&self, job: &Job, info: &RateLimitInfo) {
        let (requests, tokens) = (info.requests_per_minute(), info.tokens_per_minute());
        // Pairs that say nothing are ignored there, and a model that is in the plan has a bucket.
        let _ = self.registry.update_limits(&self.specs[job.model], requests, tokens);
    }
}

impl Way for AllAtOnce {
    const NAME: &'static str = "all at once, holding nothing while waiting";
    const WAITS: &'static str = "(each from the account's first no to the grant; they overlap)";

    async fn run(&self, work: &Work, job: &Job) -> Outcome {
        let demand = self.demand(job);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let grant = match self.admission.admit(demand.clone()).await {
                Ok(grant) => grant,
                Err(AdmitError::ShutDown) => return Outcome::Unfinished,
                Err(error) => return Outcome::Failed(error.to_string()),
            };
            for kept in grant.wait_times() {
                work.ledger.waited(&kept.account, kept.wait);
            }
            let running = work.ledger.running();
            let reply = match work.ask(job).await {
                Ok(reply) => reply,
                Err(reason) => {
                    // Nothing was asked of anybody: the tokens come back too.
                    grant.rollback();
                    return Outcome::Failed(reason);
                }
            };
            self.correct(job, &reply.limits);
            let failure = match reply.answer {
                Ok(answer) => {
                    self.succeeded(&grant, job, &answer);
                    return work.keep(job, &answer, attempt).await;
                }
                Err(failure) => failure,
            };
            self.failed(&grant, job, &failure);
            // Whoever waits to try again holds nothing.
            drop((grant, running));
            if let Some(outcome) = work.pause(job, attempt, &failure).await {
                return outcome;
            }
        }
    }

    fn gauges(&self) -> Vec<Gauge> {
        let snapshot = self.admission.snapshot();
        let now = Instant::now();
        let known = |account: &dyn Account| {
            let known = snapshot.account(account.link().name());
            Gauge {
                name: account.link().name().to_string(),
                in_use: account.in_use(now),
                capacity: account.capacity(),
                unit: "",
                waiting: known.map_or(0, |known| known.waiting),
                oldest: known.and_then(|known| known.oldest_wait),
                note: account.indicator(now),
            }
        };
        let memory = snapshot.accounts.iter().find(|known| known.category == Category::Memory);
        let memory = memory.map(|known| Gauge {
            name: known.name.to_string(),
            in_use: known.in_use / MEBIBYTE,
            capacity: known.capacity / MEBIBYTE,
            unit: " MiB",
            waiting: known.waiting,
            oldest: known.oldest_wait,
            note: known.indicator.clone(),
        });
        let models = self.models.iter().map(|model| known(&**model));
        models.chain([known(&*self.http), known(&*self.database)]).chain(memory).collect()
    }

    fn stop(&self) {
        self.admission.stop();
    }

    async fn drained(&self) {
        self.admission.drained().await;
    }
}
