//! What ends a run before its time: its token, and its clock.

use std::future::{Future, pending};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::run_error::{RunError, RunStage, TimeoutCause};

/// The longest a timer is armed for: far timers have failed in the field.
const DAY: Duration = Duration::from_secs(86_400);

/// A run's token and clock.
pub(super) struct Stop {
    token: Option<CancellationToken>,
    /// The time a run has, and when it is over; no end where that is past all reckoning.
    time: Option<(Duration, Option<Instant>)>,
}

/// Why a run stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Cancelled,
    TimedOut(Duration),
}

impl Stopped {
    pub(super) fn error<E>(self, stage: RunStage, cause: Option<TimeoutCause<E>>) -> RunError<E> {
        match self {
            Self::Cancelled => RunError::Cancelled { stage },
            Self::TimedOut(limit) => RunError::TimedOut { limit, stage, cause },
        }
    }
}

impl Stop {
    pub(super) fn new(
        token: Option<CancellationToken>,
        limit: Option<Duration>,
        from: Instant,
    ) -> Self {
        Self { token, time: limit.map(|limit| (limit, from.checked_add(limit))) }
    }

    pub(super) const fn token(&self) -> Option<&CancellationToken> {
        self.token.as_ref()
    }

    /// The time the run has.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.time.map(|(limit, _)| limit)
    }

    /// What is left of the run's time.
    pub(super) fn left(&self) -> Option<Duration> {
        let (limit, end) = self.time?;
        Some(end.map_or(limit, |end| end.saturating_duration_since(Instant::now())))
    }

    /// Whether the run is over now.
    pub(super) fn now(&self) -> Option<Stopped> {
        if self.token.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Some(Stopped::Cancelled);
        }
        match self.time {
            Some((limit, Some(end))) if Instant::now() >= end => Some(Stopped::TimedOut(limit)),
            _ => None,
        }
    }

    /// Whether the run's time is over now, and its grace too.
    pub(super) fn overdue(&self) -> Option<Stopped> {
        let (limit, end) = self.time?;
        let end = end?.checked_add(grace(limit))?;
        (Instant::now() >= end).then_some(Stopped::TimedOut(limit))
    }

    /// The future's output, unless the run is over first. What is ready at that moment counts.
    pub(super) async fn unless<F: Future>(&self, future: F) -> Result<F::Output, Stopped> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.cancelled() => Err(Stopped::Cancelled),
            limit = self.passed() => Err(Stopped::TimedOut(limit)),
        }
    }

    /// The future's output, unless the run's time is over, and its grace too.
    pub(super) async fn unless_overdue<F: Future>(&self, future: F) -> Result<F::Output, Stopped> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            limit = self.grace_passed() => Err(Stopped::TimedOut(limit)),
        }
    }

    /// Waits so long, unless the run is over first.
    pub(super) async fn pause(&self, wait: Duration) -> Result<(), Stopped> {
        self.unless(until(Instant::now().checked_add(wait))).await?;
        // One that ends with the run's time leaves none for another attempt.
        self.now().map_or(Ok(()), Err)
    }

    pub(super) async fn cancelled(&self) {
        match &self.token {
            Some(token) => token.cancelled().await,
            None => pending().await,
        }
    }

    /// Until the run's time is over.
    pub(super) async fn passed(&self) -> Duration {
        match self.time {
            Some((limit, end @ Some(_))) => {
                until(end).await;
                limit
            }
            _ => pending().await,
        }
    }

    /// Until the grace after the run's time is over too.
    pub(super) async fn grace_passed(&self) -> Duration {
        match self.time {
            Some((limit, Some(end))) => {
                until(end.checked_add(grace(limit))).await;
                limit
            }
            _ => pending().await,
        }
    }
}

/// How long a job that was told its time is over may take to end: a tenth of the time it had, at
/// least 0.5 s, at most 30 s.
pub(super) fn grace(limit: Duration) -> Duration {
    (limit / 10).clamp(Duration::from_millis(500), Duration::from_secs(30))
}

/// Until then; for ever where that is past all reckoning.
async fn until(end: Option<Instant>) {
    let Some(end) = end else { return pending().await };
    loop {
        let now = Instant::now();
        if now >= end {
            return;
        }
        // A job that is always ready spends the task's whole budget at each poll, and a timer that
        // needs some of it would never ring beside such a job.
        unconstrained(sleep_until(end.min(now + DAY))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_a_tenth_between_half_a_second_and_thirty() {
        for (limit, expected) in [(0, 500), (4_000, 500), (60_000, 6_000), (3_600_000, 30_000)] {
            assert_eq!(grace(Duration::from_millis(limit)), Duration::from_millis(expected));
        }
        assert_eq!(grace(Duration::MAX), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_past_all_reckoning_is_no_limit() {
        let stop = Stop::new(None, Some(Duration::MAX), Instant::now());
        tokio::time::advance(DAY * 1_000).await;
        assert_eq!(stop.now(), None);
        assert_eq!(stop.left(), Some(Duration::MAX));
        let days = stop.unless(tokio::time::sleep(DAY * 3)).await;
        assert!(days.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_when_the_time_is_over_counts() {
        let limit = Duration::from_secs(1);
        let stop = Stop::new(None, Some(limit), Instant::now());
        assert_eq!(stop.unless(tokio::time::sleep(limit)).await, Ok(()));
        assert_eq!(stop.unless(pending::<()>()).await, Err(Stopped::TimedOut(limit)));
        assert_eq!(stop.now(), Some(Stopped::TimedOut(limit)));
        // When it is cancelled, too; and one that is both is cancelled.
        let (token, start) = (CancellationToken::new(), Instant::now());
        token.cancel();
        let stop = Stop::new(Some(token), Some(Duration::ZERO), start);
        assert_eq!(stop.unless(async {}).await, Ok(()));
        assert_eq!(stop.unless(pending::<()>()).await, Err(Stopped::Cancelled));
        assert_eq!(stop.now(), Some(Stopped::Cancelled));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_overdue_from_the_end_of_its_grace_on() {
        let stop = Stop::new(None, Some(Duration::from_secs(10)), Instant::now());
        tokio::time::advance(Duration::from_millis(10_999)).await;
        assert_eq!(stop.overdue(), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(stop.overdue(), Some(Stopped::TimedOut(Duration::from_secs(10))));
        assert_eq!(stop.unless_overdue(pending::<()>()).await.err(), stop.overdue());
        for limit in [None, Some(Duration::MAX)] {
            assert_eq!(Stop::new(None, limit, Instant::now()).overdue(), None);
        }
    }
}
