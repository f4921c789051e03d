//! The account under test, each of its methods called with care and held to what it said.

use std::cell::Cell;

use tokio::time::Instant;

use super::coverage::Met;
use super::words::of;
use super::{ContractViolation, Law};
use crate::account::{Account, Ask, Charge, Replenishment};
use crate::amount::Amount;
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
    met: Cell<Met>,
    pub(super) seed: u64,
    pub(super) step: u32,
}

impl<A: Account> Subject<A> {
    pub(super) fn new(account: Arc<A>, seed: u64) -> Self {
        Self {
            ear: Announcements::of(account.link()),
            nature: (account.replenishment(), account.reads_clock()),
            met: Cell::default(),
            account,
            seed,
            step: 0,
        }
    }

    /// Whether permits come back when the work ends.
    pub(super) fn is_released(&self) -> bool {
        self.nature.0 == Replenishment::Release
    }

    pub(super) fn reads_clock(&self) -> bool {
        self.nature.1
    }

    /// What the history has met so far.
    pub(super) fn met(&self) -> Met {
        self.met.get()
    }

    /// Time made a yes of a no.
    pub(super) fn note_return(&self) {
        self.met.set(Met { came_back: true, ..self.met.get() });
    }

    /// Reads everything there is to read, which must change nothing and say the same of itself.
    pub(super) fn read(&self) -> Checked {
        let now = Instant::now();
        let nature = self.call("replenishment or reads_clock", |account| {
            (account.replenishment(), account.reads_clock())
        })?;
        if nature != self.nature {
            let what = format!(
                "`replenishment` and `reads_clock` said {:?}, and now {nature:?}: they are read \
                 once, so they must always say the same",
                self.nature
            );
            return self.breach(Law::Steady, what);
        }
        self.call("a reading", |account| {
            let _ = (account.category(), account.indicator(now), account.summary(now));
            let _ = account.needs_http();
        })?;
        self.capacity()?;
        self.in_use().map(drop)
    }

    pub(super) fn opinion(&self, ask: Ask) -> Checked<Opinion> {
        let answer = self.answer(&ask)?;
        self.note(&ask, answer);
        let earliest = self.call("earliest_fit", |account| account.earliest_fit(&ask))?;
        // Where the answer is not a no, nobody asks for the instant.
        let opinion = Opinion { ask, answer, earliest: earliest.filter(|_| answer == Answer::No) };
        if opinion.earliest.is_some() && !self.reads_clock() {
            let what = format!(
                "`reads_clock` says false, and `earliest_fit` names an instant for its {opinion} \
                 to {}: let the one say true, or the other say `None`",
                of(&ask)
            );
            return self.breach(Law::Honest, what);
        }
        Ok(opinion)
    }

    pub(super) fn answer(&self, ask: &Ask) -> Checked<Answer> {
        self.call("fits", |account| match account.fits(ask) {
            Ok(true) => Answer::Yes,
            Ok(false) => Answer::No,
            Err(_) => Answer::Refused,
        })
    }

    /// An answer to an ask of the size the author had in mind.
    fn note(&self, ask: &Ask, answer: Answer) {
        let yes = answer == Answer::Yes && !ask.mine.is_none();
        let no = answer == Answer::No && ask.reserved_ahead.is_none();
        self.met.set(self.met.get().and(Met { yes, no, came_back: false }));
    }

    pub(super) fn try_take(&self, ask: &Ask) -> Checked<Option<Charge>> {
        let said = self.answer(ask)?;
        self.note(ask, said);
        let taken = self.call("try_take", |account| account.try_take(ask))?;
        let (did, at) = match taken {
            Ok(Some(at)) => (Answer::Yes, Some(at)),
            Ok(None) => (Answer::No, None),
            Err(_) => (Answer::Refused, None),
        };
        if did != said {
            let what = format!(
                "`fits` says {said} to {}, and `try_take` at once after it {did}: they must be the \
                 same check",
                of(ask)
            );
            return self.breach(Law::Balanced, what);
        }
        if self.nature.1 && at.is_some_and(|at| at < ask.now) {
            let what = format!(
                "`try_take` filed the take of {} at an instant before it was asked: answer \
                 `ask.now`, or your latest if that is later",
                of(ask)
            );
            return self.breach(Law::Balanced, what);
        }
        Ok(at.map(|at| Charge::new(ask.id, ask.mine, at)))
    }

    pub(super) fn give(&self, charge: &Charge) -> Checked {
        self.ear.take();
        let back = self.call("give", |account| account.give(charge, Instant::now()))?;
        let whole = self.nature.0 == Replenishment::Release;
        if !charge.amount.covers(back) || (whole && back != charge.amount) {
            let hint = match whole {
                true => "a permit comes back whole",
                false => "it must answer what it credited, which is no more than the charge",
            };
            let what = format!("`give` of {} answered {back}: {hint}", charge.amount);
            return self.breach(Law::Balanced, what);
        }
        if self.ear.take().grew {
            let what = "`give` announced `grew`: the monitor knows of a give, so announce nothing";
            return self.breach(Law::Announced, what.to_owned());
        }
        Ok(())
    }

    /// Corrects a charge, and answers what it then holds.
    pub(super) fn reconcile(&self, charge: &Charge, actual: u64) -> Checked<Amount> {
        self.ear.take();
        let now = Instant::now();
        let holds = self.call("reconcile", |account| account.reconcile(charge, actual, now))?;
        if self.ear.take().grew {
            let what = "`reconcile` announced `grew`: the monitor knows of it, so announce nothing";
            return self.breach(Law::Announced, what.to_owned());
        }
        Ok(holds)
    }

    pub(super) fn is_fresh(&self) -> Checked<bool> {
        self.call("is_fresh", |account| account.is_fresh(Instant::now()))
    }

    pub(super) fn capacity(&self) -> Checked<u64> {
        self.call("capacity", |account| account.capacity())
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
            let turned =
                || format!("{event} turned its {opinion} to {} into {after}", of(&opinion.ask));
            if (became_yes || came_nearer) && !heard.grew {
                let what = turned()
                    + " without `grew`: after such a change call `link().grew()`, or who waits is \
                       not asked again";
                return self.breach(Law::Announced, what);
            }
            if refuses && !heard.may_refuse {
                let what = turned()
                    + " without `may_refuse`: after such a change call `link().may_refuse()`, or \
                       who waits for what can never come is not told";
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
