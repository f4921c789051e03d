//! What a grant holds, entry by entry, and whether it has been settled.

use tokio::time::Instant;

use crate::account::Charge;
use crate::amount::Amount;
use crate::demand::Demand;

/// What a grant took of one account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// What the account holds for it now, as it last said.
    pub(crate) amount: Amount,
    /// The instant the account filed the take at.
    pub(crate) at: Instant,
    /// Given back before the grant settled.
    pub(crate) is_back: bool,
    /// Something was reported on it.
    pub(crate) is_reported: bool,
}

impl Part {
    #[inline]
    pub(crate) const fn charge(&self, id: u64) -> Charge {
        Charge::new(id, self.amount, self.at)
    }
}

/// How a grant stands. It leaves `Held` once.
///
/// ```text
///          release / drop
///   Held ────────────────▶ Released     reconcile still works on time accounts
///    │
///    └──────────────────▶ RolledBack    nothing works any more
///          rollback
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    Released,
    RolledBack,
}

/// Everything a grant took.
///
/// Mostly that is what its demand says, filed at the instant of the decision, and nothing more need
/// be kept. A list is made when a part first differs: so the common grant allocates nothing.
#[derive(Debug)]
pub(crate) struct Taken {
    at: Instant,
    parts: Option<Box<[Part]>>,
    pub(crate) standing: Standing,
}

impl Taken {
    /// All of a demand, at this instant.
    #[inline]
    pub(crate) const fn at(now: Instant) -> Self {
        Self { at: now, parts: None, standing: Standing::Held }
    }

    /// The instant of the decision.
    #[inline]
    pub(crate) const fn instant(&self) -> Instant {
        self.at
    }

    /// Whether it is held, and just what was demanded.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.parts.is_none() && self.standing == Standing::Held
    }

    #[inline]
    pub(crate) fn part(&self, index: usize, demand: &Demand) -> Part {
        match &self.parts {
            Some(parts) => parts[index],
            None => self.as_demanded(demand.entries()[index].amount()),
        }
    }

    /// What an account still holds for the grant, if it does: until it is back, and after a release
    /// where only the clock brings it back.
    pub(crate) fn holding(&self, index: usize, demand: &Demand) -> Option<Part> {
        let is_held = match self.standing {
            Standing::Held => true,
            Standing::Released => !demand.entries()[index].comes_back(),
            Standing::RolledBack => false,
        };
        Some(self.part(index, demand)).filter(|part| is_held && !part.is_back)
    }

    /// A part to be changed.
    pub(crate) fn part_mut(&mut self, index: usize, demand: &Demand) -> &mut Part {
        if self.parts.is_none() {
            let entries = demand.entries().iter();
            self.parts = Some(entries.map(|entry| self.as_demanded(entry.amount())).collect());
        }
        let parts = self.parts.as_mut().expect("made just now");
        &mut parts[index]
    }

    #[inline]
    const fn as_demanded(&self, amount: Amount) -> Part {
        Part { amount, at: self.at, is_back: false, is_reported: false }
    }
}
