//! What the clock does to a history, and what it must not.

use std::time::Duration;

use tokio::time::{Instant, advance};

use super::Law;
use super::sequence::Sequence;
use super::subject::{Answer, Checked, Opinion};
use super::words::of;
use crate::account::{Account, Ask};

/// Further ahead than this, or than the span, nobody waits for a deadline.
const HORIZON: Duration = Duration::from_secs(7 * 86_400);
const NANO: Duration = Duration::from_nanos(1);
/// What an account that does not read the clock must not notice, whatever the span.
const AGES: [Duration; 3] =
    [Duration::from_secs(3_600), Duration::from_secs(86_400), Duration::from_secs(400 * 86_400)];

impl<A: Account> Sequence<'_, A> {
    pub(super) async fn wait_for_a_yes(&mut self) -> Checked {
        let ask = self.ask();
        let opinion = self.subject.opinion(ask)?;
        if opinion.answer != Answer::No {
            return Ok(());
        }
        let Some(at) = opinion.earliest else {
            for _ in 0..3 {
                self.pass_time().await?;
                self.expect_not_yet(
                    &ask,
                    "by the clock alone, though `earliest_fit` named no instant: answer the \
                     instant, or nobody who waits is woken then",
                )?;
            }
            return Ok(());
        };
        let wait = at.saturating_duration_since(ask.now);
        if wait.is_zero() {
            let what = format!(
                "it says no to {}, and `earliest_fit` names an instant that has come: `fits` must \
                 say yes from that instant on",
                of(&ask)
            );
            return self.subject.breach(Law::Punctual, what);
        }
        if wait > self.longest_wait() {
            return Ok(());
        }
        for _ in 0..self.draw.between(0..=3) {
            let left = at.saturating_duration_since(Instant::now());
            let some = self.draw.between(0..=u64::try_from(left.as_nanos()).unwrap_or(0));
            advance(Duration::from_nanos(some).min(left.saturating_sub(NANO))).await;
            self.expect_too_early(&ask, at)?;
            self.subject.read()?;
        }
        let left = at.saturating_duration_since(Instant::now());
        advance(left.saturating_sub(NANO)).await;
        self.expect_too_early(&ask, at)?;
        advance(at.saturating_duration_since(Instant::now())).await;
        let answer = self.subject.answer(&ask.at(at))?;
        if answer != Answer::Yes {
            let what = format!(
                "it says {answer} to {} at the instant that `earliest_fit` named {wait:?} before, \
                 though nothing but time went by: it named one too early, or `fits` asks for more",
                of(&ask)
            );
            return self.subject.breach(Law::Punctual, what);
        }
        self.subject.note_return();
        Ok(())
    }

    /// How far ahead a named instant is waited for.
    pub(super) fn longest_wait(&self) -> Duration {
        HORIZON.max(self.contract.span)
    }

    fn expect_too_early(&self, ask: &Ask, at: Instant) -> Checked {
        let early = at.saturating_duration_since(Instant::now());
        self.expect_not_yet(
            ask,
            &format!(
                "{early:?} before the instant that `earliest_fit` named: it must name the first \
                 at which `fits` says yes"
            ),
        )
    }

    fn expect_not_yet(&self, ask: &Ask, how: &str) -> Checked {
        let ask = ask.at(Instant::now());
        if self.subject.answer(&ask)? == Answer::Yes {
            let what = format!("its no to {} became a yes {how}", of(&ask));
            return self.subject.breach(Law::Punctual, what);
        }
        Ok(())
    }

    pub(super) async fn pass_time(&mut self) -> Checked {
        let most = u64::try_from(self.contract.span.as_nanos()).unwrap_or(u64::MAX);
        // As often a moment as a long while.
        let most = most >> self.draw.between(0..=30);
        let nanos = self.draw.between(0..=most);
        self.pass(Duration::from_nanos(nanos)).await
    }

    /// At the end, for an account that does not read the clock: no span is long enough to matter.
    pub(super) async fn pass_ages(&mut self) -> Checked {
        if !self.subject.reads_clock() {
            for age in AGES {
                self.pass(age).await?;
            }
        }
        Ok(())
    }

    /// Lets time pass, and nothing else happen.
    pub(super) async fn pass(&mut self, time: Duration) -> Checked {
        let was_fresh = self.subject.is_fresh()?;
        if self.subject.reads_clock() {
            advance(time).await;
        } else {
            let (before, in_use) = (self.some_opinions(4)?, self.subject.in_use()?);
            advance(time).await;
            self.expect_no_clock(&before, in_use, time)?;
        }
        if was_fresh && self.draw.one_in(2) {
            self.compare_with_a_new_one(&format!(" {time:?} later"))?;
        }
        Ok(())
    }

    /// An account that does not read the clock answers the same at every instant, passed or to
    /// come: it may be asked with an old one.
    fn expect_no_clock(&self, before: &[Opinion], in_use: u64, time: Duration) -> Checked {
        let hint = "say true, or let no answer depend on the instant";
        let now = Instant::now();
        for opinion in before {
            for (at, when) in [(now, "later"), (opinion.ask.now, "later, asked with the old `now`")]
            {
                let after = self.subject.opinion(opinion.ask.at(at))?;
                if (after.answer, after.earliest) != (opinion.answer, opinion.earliest) {
                    let what = format!(
                        "`reads_clock` says false, and its {opinion} to {} became {after} {time:?} \
                         {when}, though nothing but time went by: {hint}",
                        of(&opinion.ask)
                    );
                    return self.subject.breach(Law::Honest, what);
                }
            }
        }
        let now_in_use = self.subject.in_use()?;
        if now_in_use != in_use {
            let what = format!(
                "`reads_clock` says false, and {in_use} in use became {now_in_use} {time:?} later, \
                 though nothing but time went by: {hint}"
            );
            return self.subject.breach(Law::Honest, what);
        }
        Ok(())
    }
}
