//! One job about to be run: its time, its token, its retries.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;
use tracing::field::Empty;

use super::job_error::JobError;
use super::record::JobRecord;
use super::requirements::Requirements;
use super::resources::Resources;
use super::retry::RetryPolicy;
use super::run_error::RunError;
use super::runner::Parts;
use super::stop::Stop;
use crate::amount::JobInfo;
use crate::caught::{caught, contain, say};
use crate::one_line::OneLine;
use crate::spanned::{Quiet, Spanned};
use crate::sync::Arc;

/// One job about to be run; see [`JobRunner::job`](crate::JobRunner::job).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use admit::{Admission, JobRunner, Requirements};
/// use std::time::Duration;
///
/// let admission = Admission::builder().start()?;
/// let runner = JobRunner::builder(&admission).build()?;
/// let finished = runner
///     .job(Requirements::new())
///     .within(Duration::from_secs(60))
///     .run_recorded(async |_| Ok::<_, String>(42))
///     .await;
/// assert_eq!(finished.result?, 42);
/// assert_eq!(finished.record.attempts, 1);
/// # Ok(())
/// # }
/// ```
#[must_use = "a job does nothing until it is run"]
pub struct Job {
    parts: Arc<Parts>,
    requirements: Requirements,
    limit: Option<Duration>,
    token: Option<CancellationToken>,
    retries: Option<RetryPolicy>,
}

/// A run's result, and how it went.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<T, E> {
    /// What the job answered, or why it did not.
    pub result: Result<T, RunError<E>>,
    /// How it went.
    pub record: JobRecord,
}

impl Job {
    pub(super) const fn new(parts: Arc<Parts>, requirements: Requirements) -> Self {
        Self { parts, requirements, limit: None, token: None, retries: None }
    }

    /// The time the run has, from the call of [`run`](Self::run): for all attempts and the waits
    /// between them. Only the grace and the clean-up come after it.
    ///
    /// At its end the job is told through [`Resources::cancelled`]. After a grace of a tenth of the
    /// time (at least 0.5 s, at most 30 s) its future is dropped, and its sessions are aborted.
    /// Whatever the job answers after it was told, it is rolled back. One that computed past its time
    /// without an await cannot be told: what it answers is done, and its transaction committed, unless
    /// the grace has passed too; then that is rolled back.
    pub const fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Ends the run at once when the token is cancelled, unless it commits already: a job that works
    /// is dropped, and rolled back.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Another policy than the runner's. One that cannot draw a wait draws its least.
    pub fn retries(mut self, retries: RetryPolicy) -> Self {
        self.retries = Some(retries);
        self
    }

    /// Runs it: see [`JobRunner::run`](crate::JobRunner::run).
    ///
    /// # Errors
    ///
    /// See [`RunError`].
    ///
    /// # Cancel safety
    ///
    /// As [`JobRunner::run`](crate::JobRunner::run).
    ///
    /// # Panics
    ///
    /// As [`JobRunner::run`](crate::JobRunner::run).
    pub fn run<T, E, F, Fut>(
        self,
        job: F,
    ) -> impl Future<Output = Result<T, RunError<E>>> + use<T, E, F, Fut>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: JobError,
    {
        let called = self.called();
        async move { called.run(job).await.result }
    }

    /// Runs it, and answers how it went beside the result.
    ///
    /// # Cancel safety
    ///
    /// As [`JobRunner::run`](crate::JobRunner::run).
    ///
    /// # Panics
    ///
    /// As [`JobRunner::run`](crate::JobRunner::run).
    pub fn run_recorded<T, E, F, Fut>(
        self,
        job: F,
    ) -> impl Future<Output = Finished<T, E>> + use<T, E, F, Fut>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: JobError,
    {
        self.called().run(job)
    }

    /// The clock starts at the call, whenever the future is polled.
    fn called(self) -> Called {
        let Self { parts, requirements, limit, token, retries } = self;
        Called { parts, requirements, stop: Stop::new(token, limit, Instant::now()), retries }
    }
}

/// A job whose time has begun.
struct Called {
    parts: Arc<Parts>,
    requirements: Requirements,
    stop: Stop,
    retries: Option<RetryPolicy>,
}

impl Called {
    /// The job's future is made and awaited at the bottom of this, and passed on nowhere: each
    /// `async` it were passed through would keep room for it twice.
    async fn run<T, E, F, Fut>(self, mut job: F) -> Finished<T, E>
    where
        F: FnMut(Resources) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: JobError,
    {
        let Self { parts, requirements, stop, retries } = self;
        let mut record = JobRecord::new(requirements.job());
        let span = Quiet::new(|| span_of(&record.job));
        let mut outcome = Outcome { span: span.span(), record: &mut record, word: "dropped" };
        let ended = match Handle::try_current() {
            Ok(runtime) => {
                let retries = retries.as_ref();
                let run = parts.run(requirements, retries, stop, runtime, &mut job, outcome.record);
                let run = pin!(Some(run));
                caught(pin!(Spanned::new(&span, run))).await
            }
            Err(_) => Ok(Err(RunError::NoRuntime)),
        };
        outcome.word = match &ended {
            Ok(Ok(_)) => "done",
            Ok(Err(error)) => error.word(),
            Err(_) => "panicked",
        };
        drop(outcome);
        let result = match ended {
            Ok(result) => result,
            Err(payload) => {
                // As the panic goes on nothing of the host's may be dropped that panics in turn.
                contain("a destructor of a job's closure", || drop(job));
                payload.resume()
            }
        };
        Finished { result, record }
    }
}

/// What a run came to, for its span: told as it is dropped, since not every run comes to an answer.
struct Outcome<'a> {
    span: &'a Span,
    record: &'a mut JobRecord,
    /// The answer in a word; what is dropped has none.
    word: &'static str,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        say(|| {
            self.span.record("attempts", self.record.attempts);
            self.span.record("outcome", self.word);
        });
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("requirements", &self.requirements)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The span of a run, `admit.job`; what it came to is recorded at its end.
fn span_of(job: &JobInfo) -> Span {
    tracing::info_span!(
        "admit.job",
        id = %OneLine(&job.id),
        name = %OneLine(&job.name),
        workflow = job.workflow.as_deref(),
        attempts = Empty,
        outcome = Empty,
    )
}
