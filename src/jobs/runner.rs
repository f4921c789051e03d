//! The runner: the whole way from what a job needs to done and settled.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::attempt::{Attempts, Fault};
use super::job::Job;
use super::job_error::JobError;
use super::record::JobRecord;
use super::requirements::Requirements;
use super::resources::Resources;
use super::retry::RetryPolicy;
use super::run_error::{RunError, RunStage, TimeoutCause};
use super::spend::SpendGate;
use super::stop::Stop;
use crate::caught::say;
use crate::error::ConfigError;
use crate::limits::HttpGate;
use crate::models::Accounts;
use crate::monitor::Admission;
use crate::sync::{Arc, Mutex};

/// Runs jobs with everything they require, or lets them wait holding nothing.
///
/// It is no scheduler and has no queue of its own: waiting is the admission's. A run is a future,
/// and whatever way it ends, what it held is back.
///
/// One attempt goes like this: the calls are priced and shown to every [`SpendGate`]; the whole
/// demand is admitted; each database's handle is acquired, and a transaction begun where asked; the
/// job runs; transactions are committed, or rolled back in reverse; the outcome is reported to the
/// limits; the handles are closed, and last the permits return.
///
/// Clones are the same runner.
///
/// # Tracing
///
/// Each run is a span `admit.job` at level info, with the fields `id`, `name` and `workflow` of its
/// job, and at its end, whichever that is, `attempts` and `outcome`. Each wait for its limits is a span `admit.wait`
/// within it, at level debug, with the field `attempt`. Clean-up that failed is logged at warn, a
/// retry at debug; nothing is logged of a run that goes well.
///
/// # Examples
///
/// ```
/// use admit::{Admission, JobRunner, ModelSpec, Requirements, UpstreamFailure, Usage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let admission = Admission::builder().start()?;
/// let runner = JobRunner::builder(&admission).build()?;
///
/// let model = ModelSpec::new("gpt-x", 30_000);
/// let requirements = Requirements::new().call(&model, Usage::new(1_200, 600));
/// let summary = runner
///     .run(requirements, async |resources| {
///         // … call the model …
///         resources.record_usage(&model, Usage::new(1_180, 240)).expect("it is required");
///         Ok::<_, UpstreamFailure>("a summary")
///     })
///     .await?;
/// assert_eq!(summary, "a summary");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JobRunner {
    parts: Arc<Parts>,
}

/// What a runner is made of.
pub(super) struct Parts {
    admission: Admission,
    /// `None`: the registry of the process.
    accounts: Option<Arc<Accounts>>,
    http: Arc<HttpGate>,
    gates: Vec<Arc<dyn SpendGate>>,
    retries: RetryPolicy,
    random: Mutex<fastrand::Rng>,
}

impl JobRunner {
    /// A runner over an admission, to be configured.
    pub fn builder(admission: &Admission) -> JobRunnerBuilder {
        JobRunnerBuilder {
            admission: admission.clone(),
            accounts: None,
            http: None,
            gates: Vec::new(),
            retries: RetryPolicy::default(),
            seed: None,
        }
    }

    /// Runs a job with what it requires. A retry calls `job` again.
    ///
    /// # Errors
    ///
    /// See [`RunError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any await ends the attempt as an error would: transactions are rolled back,
    /// handles closed, permits returned. What must be awaited for that is done by a task on the
    /// runtime the run was first polled on.
    ///
    /// # Panics
    ///
    /// A panic of the job or of its error goes on to whoever polls the run, once everything is back; so
    /// does one of a spend gate, and of a provider that takes a session, begins or commits. Where a time
    /// has to be kept, a runtime without a timer is one more.
    ///
    /// # Examples
    ///
    /// A run that is spawned owns what its job uses. An `async move` closure cannot lend that to
    /// every attempt, so each takes a clone:
    ///
    /// ```
    /// # use admit::{Admission, JobRunner, Requirements};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let admission = Admission::builder().start()?;
    /// # let runner = JobRunner::builder(&admission).build()?;
    /// # let topic = "rivers".to_owned();
    /// let run = runner.run(Requirements::new(), move |_| {
    ///     let topic = topic.clone();
    ///     async move { Ok::<_, String>(topic.len()) }
    /// });
    /// assert_eq!(tokio::spawn(run).await??, 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T, E, F, Fut>(
        &self,
        requirements: Requirements,
        job: F,
    ) -> impl Future<Output = Result<T, RunError<E>>> + use<T, E, F, Fut>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: JobError,
    {
        self.job(requirements).run(job)
    }

    /// A run to be configured further: its time, its token, its retries.
    pub fn job(&self, requirements: Requirements) -> Job {
        Job::new(Arc::clone(&self.parts), requirements)
    }

    /// The admission its jobs wait in.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.parts.admission
    }

    /// The gate of the HTTP places its jobs take.
    #[must_use]
    pub fn http(&self) -> &Arc<HttpGate> {
        &self.parts.http
    }
}

impl fmt::Debug for JobRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRunner")
            .field("http", &self.parts.http)
            .field("spend_gates", &self.parts.gates.len())
            .field("retries", &self.parts.retries)
            .finish_non_exhaustive()
    }
}

/// How a [`JobRunner`] is to be.
#[must_use = "a builder does nothing until it is built"]
pub struct JobRunnerBuilder {
    admission: Admission,
    accounts: Option<Arc<Accounts>>,
    http: Option<Arc<HttpGate>>,
    gates: Vec<Arc<dyn SpendGate>>,
    retries: RetryPolicy,
    seed: Option<u64>,
}

impl JobRunnerBuilder {
    /// Where the accounts of models are kept. Default: [`Accounts::global`], so that two runners
    /// share a model's limit.
    pub fn accounts(mut self, accounts: Arc<Accounts>) -> Self {
        self.accounts = Some(accounts);
        self
    }

    /// The HTTP places. Default: a gate of the runner's own with
    /// [`HttpGate::DEFAULT_CAPACITY`] places; runners that share a pool must be given one gate.
    pub fn http(mut self, http: &Arc<HttpGate>) -> Self {
        self.http = Some(Arc::clone(http));
        self
    }

    /// One more gate that is asked before a job that calls models waits for anything, in the order
    /// they are registered.
    pub fn spend_gate<G: SpendGate>(mut self, gate: &Arc<G>) -> Self {
        self.gates.push(Arc::clone(gate) as Arc<dyn SpendGate>);
        self
    }

    /// How failed jobs are run again. Default: [`RetryPolicy::default`].
    pub fn retries(mut self, retries: RetryPolicy) -> Self {
        self.retries = retries;
        self
    }

    /// The seed of the waits' randomness, for runs that must repeat. Default: a random one.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The runner.
    ///
    /// # Errors
    ///
    /// When the retry policy is none: see [`RetryPolicy::validate`].
    pub fn build(self) -> Result<JobRunner, ConfigError> {
        self.retries.validate()?;
        let http = match self.http {
            Some(http) => http,
            None => HttpGate::new(HttpGate::DEFAULT_CAPACITY)?,
        };
        let random = self.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Ok(JobRunner {
            parts: Arc::new(Parts {
                admission: self.admission,
                accounts: self.accounts,
                http,
                gates: self.gates,
                retries: self.retries,
                random: Mutex::new(random),
            }),
        })
    }
}

impl fmt::Debug for JobRunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRunnerBuilder")
            .field("http", &self.http)
            .field("spend_gates", &self.gates.len())
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

impl Parts {
    /// Attempt after attempt, until one succeeds or another would not help.
    pub(super) async fn run<T, E, F, Fut>(
        &self,
        requirements: Requirements,
        retries: Option<&RetryPolicy>,
        stop: Stop,
        runtime: Handle,
        job: &mut F,
        record: &mut JobRecord,
    ) -> Result<T, RunError<E>>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: JobError,
    {
        let accounts = self.accounts.as_deref().unwrap_or_else(|| Accounts::global());
        let plan = Arc::new(requirements.plan(accounts, &self.http)?);
        let retries = retries.unwrap_or(&self.retries);
        let attempts =
            Attempts { admission: &self.admission, gates: &self.gates, plan, stop, runtime };
        loop {
            record.attempts = record.attempts.saturating_add(1);
            let fault = match attempts.run(job, record).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            let (wait, cause) = self.again(fault, retries, record.attempts)?;
            tokio::select! {
                biased;
                paused = attempts.stop.pause(wait) => if let Err(stopped) = paused {
                    return Err(stopped.error(RunStage::Retry, Some(cause)));
                },
                over = self.admission.over() => return Err(RunError::Admit(over)),
            }
        }
    }

    /// Whether there is another attempt: after which wait, and what is known should the run's time be
    /// over before.
    fn again<E: JobError>(
        &self,
        fault: Fault<E>,
        retries: &RetryPolicy,
        attempt: u32,
    ) -> Result<(Duration, TimeoutCause<E>), RunError<E>> {
        let is_last = attempt > retries.max_retries;
        let draw = || self.random.lock().f64();
        match fault {
            Fault::Panic(payload) => payload.resume(),
            Fault::Run(RunError::Admit(error)) => {
                let wait = retries.wait_out(&error, Instant::now(), draw);
                let Some(wait) = wait.filter(|_| !is_last) else {
                    return Err(RunError::Admit(error));
                };
                say(|| tracing::debug!(%error, ?wait, attempt, "to be run again"));
                Ok((wait, TimeoutCause::Admission(error)))
            }
            Fault::Run(error) => Err(error),
            Fault::Job(error) => {
                let failure = error.upstream().filter(|failure| failure.is_retryable());
                let Some(failure) = failure else {
                    return Err(RunError::Job(error));
                };
                if is_last {
                    return Err(match retries.max_retries {
                        0 => RunError::Job(error),
                        retries => RunError::Exhausted { retries, failure: error },
                    });
                }
                let wait = retries.wait(failure, attempt, draw());
                say(|| tracing::debug!(%failure, ?wait, attempt, "to be run again"));
                Ok((wait, TimeoutCause::Failure(error)))
            }
        }
    }
}
