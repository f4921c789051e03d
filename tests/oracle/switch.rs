//! An account of our own: a gate that can be closed, when nobody fits, and broken, when everybody is
//! refused.

use std::sync::Mutex;

use admit::{Account, AccountLink, Amount, Ask, Category, Charge, Refusal, Replenishment};
use tokio::time::Instant;

/// How a switch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Open,
    /// Nobody fits.
    Closed,
    /// Everybody is refused.
    Broken,
}

pub(crate) struct Switch {
    link: AccountLink,
    capacity: u32,
    state: Mutex<(u32, Position)>,
}

impl Switch {
    pub(crate) fn new(name: &str, capacity: u32) -> Self {
        let link = AccountLink::new(name).expect("a name");
        Self { link, capacity, state: Mutex::new((0, Position::Open)) }
    }

    pub(crate) fn turn(&self, to: Position) {
        let from = std::mem::replace(&mut self.state.lock().unwrap().1, to);
        match (from, to) {
            (_, Position::Broken) => self.link.may_refuse(),
            (Position::Closed | Position::Broken, Position::Open) => self.link.grew(),
            _ => {}
        }
    }

    fn answer(&self, (in_use, position): (u32, Position), ask: &Ask) -> Result<bool, Refusal> {
        if position == Position::Broken {
            return Err(Refusal::new("it is broken"));
        }
        if ask.mine.requests > self.capacity {
            return Err(Refusal::never_fits(ask.mine, self.capacity));
        }
        let wanted = u64::from(in_use) + u64::from(ask.total().requests);
        Ok(position == Position::Open && wanted <= u64::from(self.capacity))
    }
}

impl Account for Switch {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("switch".into())
    }

    fn capacity(&self) -> u64 {
        u64::from(self.capacity)
    }

    fn in_use(&self, _: Instant) -> u64 {
        u64::from(self.state.lock().unwrap().0)
    }

    fn summary(&self, now: Instant) -> String {
        format!("{} of {}", self.in_use(now), self.capacity)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn reads_clock(&self) -> bool {
        false
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.answer(*self.state.lock().unwrap(), ask)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let mut state = self.state.lock().unwrap();
        let fits = self.answer(*state, ask)?;
        if fits {
            state.0 += ask.mine.requests;
        }
        drop(state);
        Ok(fits.then_some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.state.lock().unwrap().0 -= charge.amount.requests;
        charge.amount
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}
