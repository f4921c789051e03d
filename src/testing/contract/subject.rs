//! The account under test, each of its methods called with care and held to what it said.

use tokio::time::Instant;

use super::{ContractViolation, Law};
use crate::account::{Account, Ask, Charge, Replenishment};
use crate::error::AccountPanic;
use crate::sync::Arc;
use crate::testing::announcements::{Announced, Announcements};

pub(super) type Checked<T = ()> = Result<T, ContractViolation>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    Refused,
}

/// What an account said about an ask, to be compared later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opinion {
    pub(super) ask: Ask,
    pub(super) answer: Answer,
    /// Where the answer is a no: nobody asks for the instant otherwise.
    pub(super) earliest: Option<Instant>,
}

/// The account, an ear for its announcements, and where in which history it is.
pub(super) struct Subject<A> {
    account: Arc<A>,
    pub(super) ear: Announcements,
    nature: (Replenishment, bool),
    pub(super) seed: u64,
    pub(super) step: u32,
}

impl<A: Account> Subject<A> {
    pub(super) fn new(account: Arc<A>, seed: u64) -> Self {
        Self {
            ear: Announcements::of(account.link()),
            nature: (account.replenishment(), account.reads_clock()),
            account,
            seed,
            step: 0,
        }
    }

    /// Whether permits come back when the work ends.
    pub(super) fn is_released(&self) -> bool {
        self.nature.0 == Replenishment::Release
    }

    /// Reads everything there is to read, which must change nothing and say the same of itself.
    pub(super) fn read(&self) -> Checked {
        let now = Instant::now();
        let nature = self.call("replenishment or reads_clock", |account| {
            (account.replenishment(), account.reads_clock())
        })?;
        if nature != self.nature {
            let what = format!(
                "`replenishment` and `reads_clock` said {:?}, and now {nature:?}",
                self.nature
            );
            return self.breach(Law::Steady, what);
        }
        self.call("a reading", |account| {
            let _ = (account.category(), account.capacity(), account.indicator(now));
            let _ = (account.summary(now), account.needs_http(), account.is_fresh(now));
        })?;
        self.in_use().map(drop)
    }

    pub(super) fn opinion(&self, ask: Ask) -> Checked<Opinion> {
        let answer = self.answer(&ask)?;
        let earliest = self.call("earliest_fit", |account| account.earliest_fit(&ask))?;
        // Where the answer is not a no, nobody asks for the instant.
        Ok(Opinion { ask, answer, earliest: earliest.filter(|_| answer == Answer::No) })
    }

    pub(super) fn answer(&self, ask: &Ask) -> Checked<Answer> {
        self.call("fits", |account| match account.fits(ask) {
            Ok(true) => Answer::Yes,
            Ok(false) => Answer::No,
            Err(_) => Answer::Refused,
        })
    }

    pub(super) fn try_take(&self, ask: &Ask) -> Checked<Option<Charge>> {
        let said = self.answer(ask)?;
        let taken = self.call("try_take", |account| account.try_take(ask))?;
        let (did, at) = match taken {
            Ok(Some(at)) => (Answer::Yes, Some(at)),
            Ok(None) => (Answer::No, None),
            Err(_) => (Answer::Refused, None),
        };
        if did != said {
            let what = format!("`fits` says {said:?} to {ask:?}, and `try_take` {did:?}");
            return self.breach(Law::Balanced, what);
        }
        if self.nature.1 && at.is_some_and(|at| at < ask.now) {
            let what = format!("it filed the take of {ask:?} at {at:?}, before it was asked");
            return self.breach(Law::Balanced, what);
        }
        Ok(at.map(|at| Charge::new(ask.id, ask.mine, at)))
    }

    pub(super) fn give(&self, charge: &Charge) -> Checked {
        self.ear.take();
        let back = self.call("give", |account| account.give(charge, Instant::now()))?;
        let whole = self.nature.0 == Replenishment::Release;
        if !charge.amount.covers(back) || (whole && back != charge.amount) {
            let what = format!("of {charge:?} it gave back {back:?}");
            return self.breach(Law::Balanced, what);
        }
        if self.ear.take().grew {
            return self.breach(Law::Announced, "`give` announced `grew`".to_owned());
        }
        Ok(())
    }

    pub(super) fn in_use(&self) -> Checked<u64> {
        self.call("in_use", |account| account.in_use(Instant::now()))
    }

    /// Whether what was announced covers what changed.
    pub(super) fn compare(
        &self,
        event: &'static str,
        before: &[Opinion],
        heard: Announced,
    ) -> Checked {
        for opinion in before {
            let after = self.opinion(opinion.ask)?;
            let was_no = opinion.answer == Answer::No;
            let became_yes = was_no && after.answer == Answer::Yes;
            let came_nearer = was_no
                && after.answer == Answer::No
                && after.earliest.is_some_and(|at| opinion.earliest.is_none_or(|was| at < was));
            let refuses = opinion.answer != Answer::Refused && after.answer == Answer::Refused;
            if (became_yes || came_nearer) && !heard.grew {
                let what = format!("{event} turned {opinion:?} into {after:?} without `grew`");
                return self.breach(Law::Announced, what);
            }
            if refuses && !heard.may_refuse {
                let what =
                    format!("{event} turned {opinion:?} into {after:?} without `may_refuse`");
                return self.breach(Law::Announced, what);
            }
        }
        Ok(())
    }

    pub(super) fn call<R>(&self, method: &'static str, call: impl FnOnce(&A) -> R) -> Checked<R> {
        AccountPanic::catch(method, || call(&self.account))
            .or_else(|panic| self.breach(Law::Steady, panic.to_string()))
    }

    pub(super) fn breach<T>(&self, law: Law, what: String) -> Checked<T> {
        let account = Arc::clone(self.account.link().name());
        Err(ContractViolation { account, law, what, seed: self.seed, step: self.step })
    }
}
