//! An account of our own that knows the clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use admit::{Account, AccountLink, Amount, Ask, Category, Charge, Refusal, Replenishment};
use tokio::time::Instant;

/// One at a time, and the next not before `gap` has passed.
pub(crate) struct Turnstile {
    link: AccountLink,
    gap: Duration,
    stamps: Mutex<Vec<Instant>>,
}

impl Turnstile {
    pub(crate) fn new(name: &str, gap: Duration) -> Self {
        let link = AccountLink::new(name).expect("a name");
        Self { link, gap, stamps: Mutex::default() }
    }

    fn free_at(&self) -> Option<Instant> {
        let stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        stamps.iter().max().map(|&last| last + self.gap)
    }
}

impl Account for Turnstile {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("turnstile".into())
    }

    fn capacity(&self) -> u64 {
        1
    }

    fn in_use(&self, now: Instant) -> u64 {
        u64::from(self.free_at().is_some_and(|at| now < at))
    }

    fn summary(&self, now: Instant) -> String {
        format!("{} of 1", self.in_use(now))
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        if ask.mine.requests > 1 {
            return Err(Refusal::never_fits(ask.mine, "one at a time"));
        }
        let wanted = ask.total().requests;
        Ok(wanted == 0 || (wanted == 1 && self.in_use(ask.now) == 0))
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let fits = self.fits(ask)?;
        if fits && ask.mine.requests > 0 {
            self.stamps.lock().unwrap().push(ask.now);
        }
        Ok(fits.then_some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        if charge.amount.requests > 0 {
            let mut stamps = self.stamps.lock().unwrap();
            let stamp = stamps.iter().position(|&stamp| stamp == charge.at);
            stamps.remove(stamp.expect("what was taken was stamped"));
        }
        charge.amount
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        match ask.total().requests {
            0 => Some(ask.now),
            1 => Some(self.free_at().unwrap_or(ask.now)),
            _ => None,
        }
    }
}
