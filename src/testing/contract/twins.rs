//! Two accounts that nobody takes of, to tell one that was used and says it is fresh from.

use tokio::time::Instant;

use super::Law;
use super::sequence::Sequence;
use super::subject::{Answer, Checked};
use super::words::of;
use crate::account::{Account, Ask};
use crate::error::AccountPanic;
use crate::sync::Arc;

/// Both were made when the history began, so that whatever they count from there, they count as
/// the account under test does.
pub(super) struct Twins<A> {
    /// Nothing ever happens to this one.
    untouched: Arc<A>,
    /// This one has the author's events: among them are changes of what it is configured to, which
    /// a router does not keep.
    told: Arc<A>,
    has_events: bool,
    /// Whether an event may have been such a change.
    is_changed: bool,
}

impl<A: Account> Twins<A> {
    pub(super) fn new(untouched: Arc<A>, told: Arc<A>) -> Self {
        Self { untouched, told, has_events: false, is_changed: false }
    }

    /// Lets an event happen to a twin. If it panics, it does so in the account under test, too.
    pub(super) fn tell(&mut self, event: &'static str, happen: impl FnOnce(&A)) {
        self.has_events = true;
        let _ = AccountPanic::catch(event, || happen(&self.told));
    }

    /// From here on, what the account is configured to is what the told one is.
    pub(super) fn follow_events(&mut self) {
        self.is_changed = true;
    }

    /// What a router would make, as far as it can be told.
    fn new_one(&self, capacity: u64) -> Option<&A> {
        if self.is_changed { self.told_one(capacity) } else { Some(&self.untouched) }
    }

    /// One with the same events; none where they came out differently, as the capacity shows.
    fn told_one(&self, capacity: u64) -> Option<&A> {
        let is_alike = || AccountPanic::catch("capacity", || self.told.capacity()) == Ok(capacity);
        (!self.has_events || is_alike()).then_some(&*self.told)
    }
}

const OF_EVENTS: &str = " (what an event did counts, unless it changed `capacity` or was announced \
                         with `may_refuse`)";

fn grants<A: Account>(account: &A, ask: &Ask) -> bool {
    AccountPanic::catch("fits", || account.fits(ask)).is_ok_and(|answer| answer.is_ok_and(|it| it))
}

impl<A: Account> Sequence<'_, A> {
    /// An account that said it is fresh may be forgotten: it grants all that a new one would.
    pub(super) fn compare_with_a_new_one(&mut self, when: &str) -> Checked {
        let some = [self.amount(), self.amount()];
        let capacity = self.subject.capacity()?;
        for mine in some.into_iter().chain(self.sizes.ends()) {
            let ask = self.fresh_ask(mine);
            let answer = self.subject.answer(&ask)?;
            let new_one = self.twins.new_one(capacity);
            if answer != Answer::Yes && new_one.is_some_and(|new_one| grants(new_one, &ask)) {
                let is_after_events = self.twins.has_events && !self.twins.is_changed;
                let of_events = if is_after_events { OF_EVENTS } else { "" };
                let what = format!(
                    "`is_fresh` says true, and{when} it says {answer} to {}, which a new one \
                     grants: a router would forget it and grant its limit anew. `is_fresh` must \
                     say false until forgetting it forgives nothing{of_events}",
                    of(&ask)
                );
                return self.subject.breach(Law::Honest, what);
            }
        }
        Ok(())
    }

    /// At the end: an account that says it is fresh, used as a new one is, stands as that does.
    ///
    /// Both are used at one instant only. From then on a new one may well be the slower to recover
    /// (its span began later), never the faster.
    pub(super) async fn use_beside_a_new_one(&mut self) -> Checked {
        for _ in 0..4 {
            if !self.subject.is_fresh()? {
                self.pass_time().await?;
            }
        }
        let capacity = self.subject.capacity()?;
        if !self.subject.is_fresh()? || self.twins.told_one(capacity).is_none() {
            return Ok(());
        }
        for _ in 0..8 {
            let mine = self.amount();
            let mine = if self.draw.one_in(2) { self.at_most(mine) } else { mine };
            let ask = self.fresh_ask(mine);
            if self.stands_beside_a_new_one(&ask)? {
                let told = &self.twins.told;
                let taken = AccountPanic::catch("try_take", || told.try_take(&ask));
                if self.subject.try_take(&ask)?.is_none() || !matches!(taken, Ok(Ok(Some(_)))) {
                    return Ok(());
                }
            }
        }
        for _ in 0..4 {
            let ask = self.ask();
            // The instant at which the new one will be the first to grant it, if it is.
            let wait = AccountPanic::catch("earliest_fit", || self.twins.told.earliest_fit(&ask))
                .ok()
                .flatten()
                .map(|at| at.saturating_duration_since(ask.now))
                .filter(|&wait| wait <= self.longest_wait());
            match wait {
                Some(wait) => self.pass(wait).await?,
                None => self.pass_time().await?,
            }
            self.stands_beside_a_new_one(&ask.at(Instant::now()))?;
        }
        Ok(())
    }

    /// Whether both grant it.
    fn stands_beside_a_new_one(&self, ask: &Ask) -> Checked<bool> {
        let answer = self.subject.answer(ask)?;
        let grants = grants(&*self.twins.told, ask);
        if grants && answer != Answer::Yes {
            let what = format!(
                "`is_fresh` said true, and used from there as a new one is, it says {answer} to \
                 {}, which the new one grants: what slows it down would be forgotten. `is_fresh` \
                 must say false until forgetting it forgives nothing",
                of(ask)
            );
            return self.subject.breach(Law::Honest, what);
        }
        Ok(grants)
    }
}
