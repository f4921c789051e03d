//! The crate's way: each job says what it requires, and waits for all of it holding nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admit::{
    Account, Accounts, Admission, AdmitError, Category, Cost, DbProvider, Decimal, HttpGate,
    JobError, JobInfo, JobRunner, MemoryGate, ModelSpec, RateLimitInfo, Requirements, Resources,
    RetryPolicy, RunError, SpendRefusal, SqlxProvider, UpstreamFailure, Usage,
};
use sqlx::Sqlite;
use tokio::sync::Mutex as Turn;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Fatal;
use crate::jobs::{Work, given_up, used};
use crate::ledger::{Counted, Outcome};
use crate::plan::Job;
use crate::purse::{Purse, WORKFLOW};
use crate::way::{Gauge, Way};

const MEBIBYTE: u64 = 1 << 20;

/// The accounts of a run, the admission that grants them together, and the runner of its jobs.
#[derive(Debug)]
pub(crate) struct AllAtOnce {
    admission: Admission,
    runner: JobRunner,
    registry: Arc<Accounts>,
    specs: Vec<ModelSpec>,
    /// Of each model its bucket, or its gate where it is limited to so many calls at once.
    models: Vec<Arc<dyn Account>>,
    http: Arc<HttpGate>,
    /// Each job has one connection of the store's pool for as long as it runs.
    database: Arc<SqlxProvider<Sqlite>>,
    purse: Purse,
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Provider(UpstreamFailure),
    /// Its file or its row.
    #[error("{0}")]
    Own(String),
}

impl JobError for Trouble {
    fn upstream(&self) -> Option<&UpstreamFailure> {
        match self {
            Self::Provider(failure) => Some(failure),
            Self::Own(_) => None,
        }
    }
}

/// What the calls made for one file have in common.
#[derive(Debug, Default)]
struct Tries<'a> {
    /// How many there were.
    calls: AtomicU32,
    /// Locked while one is in flight, or its answer is being stored.
    flight: Turn<()>,
    /// While there is to be another.
    pausing: Mutex<Option<Counted<'a>>>,
}

impl<'a> Tries<'a> {
    fn pause(&self, pausing: Option<Counted<'a>>) {
        *self.pausing.lock().unwrap_or_else(PoisonError::into_inner) = pausing;
    }
}

impl AllAtOnce {
    /// Sets up the accounts and starts the admission.
    ///
    /// # Errors
    ///
    /// When one of them cannot be had: a name that is empty, a number out of range.
    pub(crate) fn start(
        work: &Work,
        http: u32,
        database: u32,
        memory_gate: bool,
        cap: Option<Decimal>,
    ) -> Result<Self, Fatal> {
        let refused = |error: &dyn std::fmt::Display| Fatal::Admission(error.to_string());
        let mut builder = Admission::builder();
        if memory_gate {
            builder = builder.memory_gate(MemoryGate::new().map_err(|error| refused(&error))?);
        }
        let admission = builder.start().map_err(|error| refused(&error))?;
        let registry = Arc::new(Accounts::new());
        let models = work.models.iter().map(|spec| registry.account(spec));
        let models = models.collect::<Result<_, _>>().map_err(|error| refused(&error))?;
        let http = HttpGate::new(http).map_err(|error| refused(&error))?;
        let purse = Purse::new(cap).map_err(|error| refused(&error))?;
        let runner = JobRunner::builder(&admission)
            .accounts(Arc::clone(&registry))
            .http(&http)
            .seed(work.seed);
        Ok(Self {
            runner: purse.guard(runner).build().map_err(|error| refused(&error))?,
            database: SqlxProvider::new("fanout", database, work.store.pool().clone())
                .map_err(|error| refused(&error))?,
            specs: work.models.clone(),
            admission,
            registry,
            models,
            http,
            purse,
        })
    }

    /// Runs the job until it is done, or another call would not help.
    async fn carry_out<'a>(
        &self,
        work: &'a Work,
        job: &Job,
        tries: &Tries<'a>,
    ) -> Result<(), RunError<Trouble>> {
        let info = JobInfo::new(job.number.to_string(), job.path.as_str()).in_workflow(WORKFLOW);
        let requirements = Requirements::new()
            .call(&self.specs[job.model], job.reserved)
            .database(&self.database)
            .for_job(info);
        let calls = tries.calls.load(Ordering::Relaxed);
        let max_retries = work.retries.max_retries.saturating_sub(calls);
        let retries = RetryPolicy { max_retries, ..work.retries.clone() };
        let leave = CancellationToken::new();
        let run = self
            .runner
            .job(requirements)
            .retries(retries)
            .cancelled_by(leave.clone())
            .run(|resources| self.summarise(work, job, tries, resources));
        tokio::pin!(run);
        // The token would end a job that works. So Ctrl-C cancels it only where the job waits, for
        // its limits or for another try; a call in flight ends first, and is stored.
        let landed = async {
            work.stop.cancelled().await;
            drop(tries.flight.lock().await);
        };
        tokio::select! {
            biased;
            ended = &mut run => return ended,
            () = landed => leave.cancel(),
        }
        run.await
    }

    /// Asks once, with all limits in hand, and stores the answer.
    async fn summarise<'a>(
        &self,
        work: &'a Work,
        job: &Job,
        tries: &Tries<'a>,
        resources: Resources,
    ) -> Result<(), Trouble> {
        let _flight = tries.flight.lock().await;
        tries.pause(None);
        for kept in resources.wait_times() {
            work.ledger.waited(&kept.account, kept.wait);
        }
        let _running = work.ledger.running();
        let record = |usage| {
            let recorded = resources.record_usage(&self.specs[job.model], usage);
            recorded.expect("the job requires the model");
        };
        let reply = work.ask(job).await.map_err(|reason| {
            // Nothing was asked of anybody: the tokens come back, and nothing is to be paid.
            record(Usage::default());
            Trouble::Own(reason)
        })?;
        let calls = tries.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.correct(job, &reply.limits);
        if let Some(usage) = used(&reply, job) {
            record(usage);
        }
        let answer = reply.answer.map_err(|failure| {
            if failure.is_retryable() && calls <= work.retries.max_retries {
                tries.pause(Some(work.ledger.pausing()));
            }
            Trouble::Provider(failure)
        })?;
        // The call is over; what is left to do is the database's.
        resources.release_one(&self.http);
        let session = resources.get(&self.database);
        let mut session = session.map_err(|error| Trouble::Own(error.to_string()))?;
        work.keep(&mut *session, job, &answer, calls).await.map_err(Trouble::Own)
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
        let tries = Tries::default();
        loop {
            let error = match self.carry_out(work, job, &tries).await {
                Ok(()) => return Outcome::Done,
                Err(error) => error,
            };
            match error {
                RunError::Spend(refusal) if refusal.is_retryable() => {
                    // Others will cost less than they set aside.
                    let changed = self.purse.has_changed();
                    if work.stop.run_until_cancelled(changed).await.is_none() {
                        return Outcome::Unfinished;
                    }
                }
                RunError::Spend(SpendRefusal::OverCap { .. }) => {
                    self.purse.pass_on();
                    return Outcome::Unpaid;
                }
                RunError::Admit(AdmitError::ShutDown) | RunError::Cancelled { .. } => {
                    return Outcome::Unfinished;
                }
                error => {
                    return match error.job_error() {
                        Some(Trouble::Provider(failure)) => {
                            given_up(tries.calls.load(Ordering::Relaxed), failure)
                        }
                        _ => Outcome::Failed(error.to_string()),
                    };
                }
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
        let database = known(&**self.database.account());
        models.chain([known(&*self.http), database]).chain(memory).collect()
    }

    fn spent(&self) -> Option<Cost> {
        Some(self.purse.spent())
    }

    fn stop(&self) {
        self.admission.stop();
    }

    async fn drained(&self) {
        self.admission.drained().await;
    }
}
