//! What histories met: a test that never reached the limit says nothing of it.

use super::{AccountContract, ContractViolation, Law};
use crate::account::{Account, Replenishment};
use crate::sync::Arc;

/// Fewer histories than this are a repeat of some, not the test.
const ENOUGH: u64 = 20;

/// What an account was heard to say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    /// A yes to an ask for something.
    pub(super) yes: bool,
    /// A no to an ask with nothing reserved ahead.
    pub(super) no: bool,
    /// A no that became a yes at the instant that was named.
    pub(super) came_back: bool,
}

impl Met {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            yes: self.yes || other.yes,
            no: self.no || other.no,
            came_back: self.came_back || other.came_back,
        }
    }
}

impl<A: Account> AccountContract<A> {
    /// Whether the histories, all kept, met what they are for.
    pub(super) fn see_that_it_was_tested(&self, met: Met) -> Result<(), ContractViolation> {
        if self.sequences < ENOUGH {
            return Ok(());
        }
        let account = (self.fresh)();
        let capacity = account.capacity();
        let timed = account.replenishment() == Replenishment::Time;
        let what = if !met.yes {
            format!(
                "no history heard a yes from it: what was asked for is more than it ever grants. \
                 Ask for less with `permits_up_to`, `tokens_up_to` or `amounts` (its capacity is \
                 {capacity})"
            )
        } else if !met.no && !self.never_says_no {
            format!(
                "no history heard a no from it, so nothing is known of its limit: what was asked \
                 for never reached it. Ask for more with `permits_up_to`, `tokens_up_to` or \
                 `amounts`, to somewhat above what it can ever grant (its capacity is {capacity}), \
                 or take more `steps`. If it never says no, say so with `never_says_no`"
            )
        } else if timed && !met.came_back && !self.never_says_no && !self.never_comes_back {
            format!(
                "it is of `Replenishment::Time`, and in no history did time turn a no of its into \
                 a yes, so nothing is known of how it recovers. Set `span` (it is {:?}) to \
                 somewhat longer than what was taken takes to come back; that is also how an \
                 `earliest_fit` that names no instant is found out. If time brings nothing back \
                 that a test could wait for, say so with `never_comes_back`",
                self.span
            )
        } else {
            return Ok(());
        };
        let account = Arc::clone(account.link().name());
        Err(ContractViolation { account, law: Law::Tested, what, seed: self.seed, step: 0 })
    }
}
