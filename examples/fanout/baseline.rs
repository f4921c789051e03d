//! The same jobs without the crate: one limit after another, holding the earlier ones.
//!
//! A place of one semaphore, then a permit of another, then tokens of a plain bucket. It is what
//! most programs do, and it is fair to it otherwise: the order of arrival is kept, unused tokens
//! come back, a failed job lets go of everything before it tries again. What it cannot help is that
//! jobs wait for a model's tokens with places in their hands that jobs of another model could use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admit::{Cost, FailureKind, ModelSpec, RetryPolicy, UpstreamFailure};
use tokio::sync::{Mutex as Turn, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::jobs::{Work, given_up, used};
use crate::ledger::Outcome;
use crate::plan::Job;
use crate::way::{Gauge, Way};

/// The longest sleep on an empty bucket: what others give back meanwhile announces itself to no one.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// A wait shorter than this is none.
const NO_WAIT: Duration = Duration::from_millis(1);

/// The limits of a run, each on its own.
#[derive(Debug)]
pub(crate) struct OneAtATime {
    http: Pool,
    database: Pool,
    models: Vec<ModelLimit>,
}

/// What a job holds when it has everything.
struct Held {
    place: OwnedSemaphorePermit,
    permit: OwnedSemaphorePermit,
    /// Of the model's own pool, where it has one.
    call: Option<OwnedSemaphorePermit>,
}

/// What limits a model: tokens per minute, or so many calls at once.
#[derive(Debug)]
enum ModelLimit {
    Bucket(PlainBucket),
    Pool(Pool),
}

impl OneAtATime {
    /// Limits of the same size as those of an admission.
    pub(crate) fn new(models: &[ModelSpec], http: u32, database: u32) -> Self {
        Self {
            http: Pool::new("http", http),
            database: Pool::new("db:fanout", database),
            models: models.iter().map(ModelLimit::new).collect(),
        }
    }

    async fn take(&self, work: &Work, job: &Job) -> Held {
        let note = |account: &str, since: Instant| {
            let wait = since.elapsed();
            if wait >= NO_WAIT {
                work.ledger.waited(account, wait);
            }
        };
        let start = Instant::now();
        let place = self.http.take().await;
        note(&self.http.name, start);
        let held_since = Instant::now();
        let permit = self.database.take().await;
        note(&self.database.name, held_since);
        let start = Instant::now();
        let call = match &self.models[job.model] {
            ModelLimit::Bucket(bucket) => {
                bucket.take(job.reserved.total()).await;
                note(&bucket.name, start);
                None
            }
            ModelLimit::Pool(pool) => {
                let call = pool.take().await;
                note(&pool.name, start);
                Some(call)
            }
        };
        work.ledger.held_idle(held_since.elapsed());
        Held { place, permit, call }
    }

    /// Gives back what the job reserved of its model's tokens and has not used.
    fn settle(&self, job: &Job, used: u64) {
        if let ModelLimit::Bucket(bucket) = &self.models[job.model] {
            bucket.settle(job.reserved.total(), used);
        }
    }
}

impl Way for OneAtATime {
    const NAME: &'static str = "one at a time, holding the earlier ones";
    const WAITS: &'static str =
        "(one after another, places and permits held through the later ones)";

    async fn run(&self, work: &Work, job: &Job) -> Outcome {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let taken = self.take(work, job);
            let Some(held) = work.stop.run_until_cancelled(taken).await else {
                return Outcome::Unfinished;
            };
            let running = work.ledger.running();
            let reply = match work.ask(job).await {
                Ok(reply) => reply,
                Err(reason) => {
                    self.settle(job, 0);
                    return Outcome::Failed(reason);
                }
            };
            drop((held.place, held.call));
            if let Some(usage) = used(&reply, job) {
                self.settle(job, usage.total());
            }
            let failure = match reply.answer {
                Ok(answer) => {
                    let kept = work.keep(work.store.pool(), job, &answer, attempt).await;
                    drop(held.permit);
                    return kept.map_or_else(Outcome::Failed, |()| Outcome::Done);
                }
                Err(failure) => failure,
            };
            drop((held.permit, running));
            if !failure.is_retryable() || attempt > work.retries.max_retries {
                return given_up(attempt, &failure);
            }
            let mut dice = Dice::new(work.seed, (&job.path, attempt));
            let pause = pause_after(&work.retries, attempt, &failure, dice.fraction());
            let _pausing = work.ledger.pausing();
            if work.stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return Outcome::Unfinished;
            }
        }
    }

    fn gauges(&self) -> Vec<Gauge> {
        let models = self.models.iter().map(|model| match model {
            ModelLimit::Bucket(bucket) => bucket.gauge(),
            ModelLimit::Pool(pool) => pool.gauge(),
        });
        models.chain([self.http.gauge(), self.database.gauge()]).collect()
    }

    fn spent(&self) -> Option<Cost> {
        None
    }

    /// The jobs watch the token themselves: there is nobody else to tell.
    fn stop(&self) {}

    /// Nothing outlives the jobs.
    async fn drained(&self) {}
}

impl ModelLimit {
    fn new(spec: &ModelSpec) -> Self {
        match spec.max_concurrent {
            None => Self::Bucket(PlainBucket::new(spec)),
            Some(calls) => Self::Pool(Pool::new(&spec.id, calls)),
        }
    }
}

/// How long to stay away after the attempt of that number, as the crate's runner would.
fn pause_after(
    policy: &RetryPolicy,
    attempt: u32,
    failure: &UpstreamFailure,
    draw: f64,
) -> Duration {
    if let Some(asked) = failure.retry_after {
        return asked;
    }
    let range =
        if failure.kind == FailureKind::Overload { &policy.overload } else { &policy.usual };
    let first = *range.start() + (*range.end() - *range.start()).mul_f64(draw);
    (first * attempt.min(policy.max_multiplier)).min(policy.max_wait)
}

/// So many at once.
#[derive(Debug)]
struct Pool {
    name: String,
    size: u32,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Pool {
    fn new(name: &str, size: u32) -> Self {
        Self {
            name: name.to_owned(),
            size,
            permits: Arc::new(Semaphore::new(size as usize)),
            waiting: AtomicUsize::new(0),
        }
    }

    async fn take(&self) -> OwnedSemaphorePermit {
        let _waiting = Waiting::new(&self.waiting);
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.expect("nobody closes the semaphore")
    }

    fn gauge(&self) -> Gauge {
        Gauge {
            name: self.name.clone(),
            in_use: u64::from(self.size) - self.permits.available_permits() as u64,
            capacity: u64::from(self.size),
            waiting: self.waiting.load(Ordering::Relaxed),
            unit: "",
            oldest: None,
            note: None,
        }
    }
}

/// Requests and tokens per minute, for one caller at a time.
#[derive(Debug)]
struct PlainBucket {
    name: String,
    requests_per_minute: f64,
    tokens_per_minute: f64,
    levels: Mutex<Levels>,
    /// Whoever has the turn is the next to go; it is passed on in order of arrival.
    turn: Turn<()>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Levels {
    requests: f64,
    tokens: f64,
    at: Instant,
}

impl Levels {
    /// Adds what has come in since the last time, up to a minute's worth of each.
    fn fill(&mut self, requests_per_minute: f64, tokens_per_minute: f64, now: Instant) {
        let minutes = now.saturating_duration_since(self.at).as_secs_f64() / 60.0;
        let filled = |level: f64, rate: f64| (level + rate * minutes).min(rate);
        self.requests = filled(self.requests, requests_per_minute);
        self.tokens = filled(self.tokens, tokens_per_minute);
        self.at = self.at.max(now);
    }
}

impl PlainBucket {
    fn new(model: &ModelSpec) -> Self {
        let limits = model.limits();
        let (requests, tokens) = (f64::from(limits.requests), limits.tokens as f64);
        Self {
            name: model.id.clone(),
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            levels: Mutex::new(Levels { requests, tokens, at: Instant::now() }),
            turn: Turn::new(()),
            waiting: AtomicUsize::new(0),
        }
    }

    async fn take(&self, tokens: u64) {
        let _waiting = Waiting::new(&self.waiting);
        let _turn = self.turn.lock().await;
        while let Some(wait) = self.try_take(tokens as f64) {
            sleep(wait.min(LOOK_AGAIN)).await;
        }
    }

    /// Takes one request of so many tokens, or answers how long until they are there.
    fn try_take(&self, tokens: f64) -> Option<Duration> {
        self.levels(|levels| {
            let lacks = |level: f64, wanted: f64, rate: f64| (wanted - level) * 60.0 / rate;
            let wait = lacks(levels.requests, 1.0, self.requests_per_minute).max(lacks(
                levels.tokens,
                tokens,
                self.tokens_per_minute,
            ));
            if wait > 0.0 {
                return Some(Duration::from_secs_f64(wait) + NO_WAIT);
            }
            levels.requests -= 1.0;
            levels.tokens -= tokens;
            None
        })
    }

    /// Gives back what was reserved and not used.
    fn settle(&self, reserved: u64, used: u64) {
        self.levels(|levels| {
            let unused = reserved as f64 - used as f64;
            levels.tokens = (levels.tokens + unused).min(self.tokens_per_minute);
        });
    }

    fn levels<R>(&self, change: impl FnOnce(&mut Levels) -> R) -> R {
        let now = Instant::now();
        let filled = |levels: &mut Levels| {
            levels.fill(self.requests_per_minute, self.tokens_per_minute, now);
            change(levels)
        };
        filled(&mut self.levels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn gauge(&self) -> Gauge {
        let left = self.levels(|levels| levels.tokens.max(0.0));
        Gauge {
            name: self.name.clone(),
            in_use: (self.tokens_per_minute - left).round() as u64,
            capacity: self.tokens_per_minute as u64,
            waiting: self.waiting.load(Ordering::Relaxed),
            unit: "",
            oldest: None,
            note: None,
        }
    }
}

/// One more that waits, for as long as this lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(requests_per_minute: u32, tokens_per_minute: u64) -> PlainBucket {
        let model = ModelSpec::new("m", tokens_per_minute);
        PlainBucket::new(&model.with_requests_per_minute(requests_per_minute))
    }

    #[test]
    fn a_pause_grows_up_to_a_bound_unless_the_server_says_when() {
        let policy = crate::jobs::retries(100);
        let failure = UpstreamFailure::status(500, "m", "");
        for (attempt, least, most) in [(1, 500, 750), (3, 1_500, 2_250), (100, 5_000, 7_500)] {
            for (draw, expected) in [(0.0, least), (1.0, most)] {
                let pause = pause_after(&policy, attempt, &failure, draw);
                assert_eq!(pause, Duration::from_millis(expected));
            }
        }
        let asked = Duration::from_secs(7);
        let limited = UpstreamFailure::status(429, "m", "").with_retry_after(asked);
        assert_eq!(pause_after(&policy, 4, &limited, 0.5), asked);
    }

    #[tokio::test(start_paused = true)]
    async fn the_plain_bucket_waits_for_what_is_missing() {
        let bucket = bucket(100, 600);
        let start = Instant::now();
        bucket.take(600).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        bucket.take(50).await;
        let waited = start.elapsed();
        assert!(waited >= Duration::from_secs(5) && waited < Duration::from_millis(5_050));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_used_comes_back_to_whoever_waits() {
        let bucket = Arc::new(bucket(100, 600));
        bucket.take(600).await;
        let start = Instant::now();
        let waiter = tokio::spawn({
            let bucket = Arc::clone(&bucket);
            async move { bucket.take(300).await }
        });
        sleep(Duration::from_secs(1)).await;
        bucket.settle(600, 100);
        waiter.await.unwrap();
        assert!(start.elapsed() <= Duration::from_secs(1) + LOOK_AGAIN, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_run_out_as_tokens_do() {
        let bucket = bucket(2, 1_000_000);
        let start = Instant::now();
        for _ in 0..3 {
            bucket.take(1).await;
        }
        assert!(start.elapsed() >= Duration::from_secs(30), "{:?}", start.elapsed());
    }
}
