//! How what was granted comes back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::time::Instant;

use super::core::{Core, Settlement};
use super::line::Limit;
use super::outbox::{self, Outbox};
use super::taken::{Part, Standing, Taken};
use crate::account::Charge;
use crate::amount::Amount;
use crate::demand::{Demand, Entry};
use crate::error::AccountPanic;
use crate::events::EventKind;
use crate::sync::Arc;

/// What went wrong with an entry of a settlement. Mostly nothing does, and nothing is allocated.
pub(crate) type Troubles = Vec<(usize, Trouble)>;

pub(crate) enum Trouble {
    /// Its `give` panicked: it is out of use from here on.
    Give(AccountPanic),
    /// Its `settled` panicked: that is logged.
    Settled(AccountPanic),
    /// It was given more than it held.
    Clamped { given: u64, credited: u64 },
}

impl Core {
    /// Settles a grant, once. Answers whether this was the time.
    ///
    /// A panic in one account does not keep the others from getting back what is theirs.
    pub(crate) fn settle(
        &mut self,
        id: u64,
        demand: &Demand,
        taken: &mut Taken,
        how: Settlement,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        if taken.standing != Standing::Held {
            return false;
        }
        let mut troubles = Troubles::new();
        self.give_all(id, demand, taken, how, now, &mut troubles);
        self.mend(demand, troubles, out);
        for (entry, index) in demand.entries().iter().zip(0..) {
            let part = taken.part(index, demand);
            if comes_back(entry, &part, how) {
                self.changed(entry.id());
                self.tell_back(demand, index, &part, now, out);
            }
        }
        taken.standing = match how {
            Settlement::Release => Standing::Released,
            Settlement::Rollback => Standing::RolledBack,
        };
        self.count_end(demand, how, now);
        self.held -= 1;
        if let Some(holders) = &mut self.holders
            && let Some(holder) = holders.remove(&id)
        {
            out.demands.push(holder.demand);
        }
        self.look_if_drained(out);
        true
    }

    /// The inline way back: a release when nobody is to be told of it and nobody waits for what
    /// comes back. Answers whether it was one.
    #[inline]
    pub(crate) fn settle_inline(
        &mut self,
        id: u64,
        demand: &Demand,
        taken: &mut Taken,
        troubles: &mut Troubles,
    ) -> bool {
        let is_inline = self.is_plain() && self.stands_clear(demand);
        if !is_inline || taken.standing != Standing::Held {
            return false;
        }
        let now = self.latest;
        self.give_all(id, demand, taken, Settlement::Release, now, troubles);
        taken.standing = Standing::Released;
        self.count_end(demand, Settlement::Release, now);
        self.held -= 1;
        self.changes += 1;
        true
    }

    /// Gives back what is to come back, and tells every account that the grant has settled.
    ///
    /// One net is under all of it, and is spread again behind whatever fell into it.
    fn give_all(
        &self,
        id: u64,
        demand: &Demand,
        taken: &Taken,
        how: Settlement,
        now: Instant,
        troubles: &mut Troubles,
    ) {
        let entries = demand.entries();
        let (mut at, mut is_given) = (0, false);
        while at < entries.len() {
            let fallen = catch_unwind(AssertUnwindSafe(|| {
                while at < entries.len() {
                    let entry = &entries[at];
                    let part = taken.part(at, demand);
                    let charge = part.charge(id);
                    let comes_back = comes_back(entry, &part, how);
                    if comes_back && !is_given {
                        let credited = entry.give(&charge, now);
                        if entry.comes_back() && !credited.covers(charge.amount) {
                            let (given, credited) = (charge.amount.units, credited.units);
                            troubles.push((at, Trouble::Clamped { given, credited }));
                        }
                        entry.link().tell_others(self.admission);
                    }
                    is_given = true;
                    entry.settled(&charge, part.is_reported, now);
                    (at, is_given) = (at + 1, false);
                }
            }));
            let Err(payload) = fallen else { break };
            if is_given {
                troubles.push((at, Trouble::Settled(AccountPanic::of("settled", payload))));
                (at, is_given) = (at + 1, false);
            } else {
                troubles.push((at, Trouble::Give(AccountPanic::of("give", payload))));
                is_given = true;
            }
        }
    }

    /// Deals with what went wrong: logs it, and takes an account out of use whose `give` panicked.
    pub(crate) fn mend(&mut self, demand: &Demand, troubles: Troubles, out: &mut Outbox) {
        for (index, trouble) in troubles {
            let entry = &demand.entries()[index];
            let account = Arc::clone(entry.name());
            out.lines.push(match trouble {
                Trouble::Give(panic) => {
                    entry.link().quarantine();
                    outbox::Line::Quarantined { account, message: panic.message }
                }
                Trouble::Settled(panic) => panic_line(entry, panic),
                Trouble::Clamped { given, credited } => {
                    outbox::Line::Clamped { account, given, credited }
                }
            });
        }
    }

    /// Tells the valve of the end of a job with entries.
    fn count_end(&mut self, demand: &Demand, how: Settlement, now: Instant) {
        let Some(valve) = self.valve.as_ref().filter(|_| !demand.is_empty()) else { return };
        match how {
            Settlement::Rollback => valve.rolled_back(now),
            Settlement::Release => {
                if valve.completed(now) && self.turn.draining {
                    self.turn.earned = true;
                    self.changes += 1;
                    self.index.is_wanted = true;
                }
            }
        }
    }

    /// Gives one release account back before the grant ends.
    pub(crate) fn release_one(
        &mut self,
        id: u64,
        demand: &Demand,
        index: usize,
        taken: &mut Taken,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        let entry = &demand.entries()[index];
        let part = taken.part(index, demand);
        let is_held = taken.standing == Standing::Held;
        if !is_held || !comes_back(entry, &part, Settlement::Release) {
            return false;
        }
        taken.part_mut(index, demand).is_back = true;
        let charge = part.charge(id);
        if let Err(panic) = AccountPanic::catch("give", || entry.give(&charge, now)) {
            self.mend(demand, vec![(index, Trouble::Give(panic))], out);
        }
        entry.link().tell_others(self.admission);
        self.changed(entry.id());
        self.tell_back(demand, index, &part, now, out);
        true
    }

    fn tell_back(
        &mut self,
        demand: &Demand,
        index: usize,
        part: &Part,
        now: Instant,
        out: &mut Outbox,
    ) {
        let (limit, units) = (Limit::Entry(index as u32), part.amount.units);
        self.tell_units(limit, demand, EventKind::Released, units, None, None, now, out);
    }

    /// Corrects a charge: its account may have room then, or less. Answers what the charge holds.
    pub(crate) fn reconcile(
        &mut self,
        entry: &Entry,
        charge: &Charge,
        actual_units: u64,
        now: Instant,
    ) -> Result<Amount, AccountPanic> {
        let account = entry.account();
        let holds =
            AccountPanic::catch("reconcile", || account.reconcile(charge, actual_units, now));
        account.link().tell_others(self.admission);
        self.changed(entry.id());
        holds
    }
}

/// Whether a part is given back at this settlement.
const fn comes_back(entry: &Entry, part: &Part, how: Settlement) -> bool {
    !part.is_back && (matches!(how, Settlement::Rollback) || entry.comes_back())
}

/// What is logged of a panic in a feedback method.
pub(crate) fn panic_line(entry: &Entry, panic: AccountPanic) -> outbox::Line {
    outbox::Line::Panic {
        account: Arc::clone(entry.name()),
        method: panic.method,
        message: panic.message,
    }
}
