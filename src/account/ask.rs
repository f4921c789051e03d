//! The question asked of an account, and what it took for an answer.

use tokio::time::Instant;

use crate::amount::Amount;

/// A question to one account about one demand: would `mine` fit, with `reserved_ahead` set aside?
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Ask {
    /// Who asks: unique in the process, and the same for every ask of one [`Admit`](crate::Admit).
    /// Some of this crate's own accounts have no use for it, and may be asked under zero.
    pub id: u64,
    /// What the asking job wants.
    pub mine: Amount,
    /// What the head of the line wants of the same account, to be left for it.
    pub reserved_ahead: Amount,
    /// The instant of the decision. An account treats one older than its latest as its latest.
    pub now: Instant,
}

impl Ask {
    /// A question with nothing reserved ahead.
    #[must_use]
    #[inline]
    pub const fn new(id: u64, mine: Amount, now: Instant) -> Self {
        Self { id, mine, reserved_ahead: Amount::NONE, now }
    }

    /// The same question with `amount` set aside for the head of the line.
    #[must_use]
    #[inline]
    pub const fn behind(self, amount: Amount) -> Self {
        Self { reserved_ahead: amount, ..self }
    }

    /// The same question at another instant.
    #[must_use]
    pub const fn at(self, now: Instant) -> Self {
        Self { now, ..self }
    }

    /// What must fit for the answer to be yes: mine and the reservation together.
    #[must_use]
    #[inline]
    pub const fn total(&self) -> Amount {
        self.mine.saturating_add(self.reserved_ahead)
    }
}

/// One grant's part on one account: what it holds there, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Charge {
    /// The [`Ask::id`] it was taken under.
    pub id: u64,
    /// What the account holds for it now. After a `reconcile` that is what the reconcile answered.
    pub amount: Amount,
    /// The instant the account filed the take at, as its `try_take` answered.
    pub at: Instant,
}

impl Charge {
    /// The charge that a take of `ask` filed at `at` left behind.
    #[must_use]
    pub const fn new(id: u64, amount: Amount, at: Instant) -> Self {
        Self { id, amount, at }
    }
}

/// How what was taken of an account comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replenishment {
    /// When the work that holds it ends: a permit.
    Release,
    /// With the clock alone, whether or not the work has ended: tokens per minute.
    Time,
}
