//! What a grant holds, entry by entry, and whether it has been settled.

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::account::Charge;
use crate::amount::Amount;

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
    pub(crate) const fn new(amount: Amount, at: Instant) -> Self {
        Self { amount, at, is_back: false, is_reported: false }
    }

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

/// Everything a grant took, in the demand's order.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) parts: SmallVec<[Part; 3]>,
    pub(crate) standing: Standing,
}

impl Taken {
    pub(crate) const fn new(parts: SmallVec<[Part; 3]>) -> Self {
        Self { parts, standing: Standing::Held }
    }
}
