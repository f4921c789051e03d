//! What to ask an account for of which nothing is known but its capacity.

use crate::amount::Amount;
use crate::testing::Draw;

/// The sizes of one history's asks, where the author named none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    /// What the account said first that it can have in use.
    pub(super) capacity: u64,
    /// Asks for one request of so many tokens, and not for permits. Never both in one history: a
    /// gate refuses a request of tokens, though it grants as many permits.
    pub(super) in_tokens: bool,
}

impl Sizes {
    /// As often a few as up to somewhat more than there can be.
    pub(super) fn draw(self, draw: &mut Draw) -> Amount {
        let most = match draw.one_in(2) {
            true => 4,
            false => self.capacity.saturating_add(self.capacity / 4 + 1),
        };
        match self.in_tokens {
            true => Amount::tokens(draw.between(0..=most.min(u64::MAX - 1))),
            false => Amount::permits(draw.between(0..=most.min(u64::from(u32::MAX / 4))) as u32),
        }
    }

    /// All there can be, in each way it may be counted.
    pub(super) fn ends(self) -> [Amount; 3] {
        let units = self.capacity.min(u64::MAX - 1);
        let permits = self.capacity.min(u64::from(u32::MAX) - 1) as u32;
        [Amount::permits(permits), Amount::tokens(units), Amount { requests: 0, units }]
    }
}
