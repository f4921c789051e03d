//! How what was granted comes back.

use tokio::time::Instant;

use super::core::{Core, Settlement};
use super::line::Limit;
use super::outbox::{self, Outbox};
use super::taken::{Part, Standing, Taken};
use crate::demand::{Demand, Entry};
use crate::error::AccountPanic;
use crate::events::EventKind;
use crate::sync::Arc;

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
        taken.standing = match how {
            Settlement::Release => Standing::Released,
            Settlement::Rollback => Standing::RolledBack,
        };
        for ((entry, part), index) in demand.entries().iter().zip(&mut taken.parts).zip(0..) {
            if !part.is_back && (how == Settlement::Rollback || entry.comes_back()) {
                self.give_back(id, demand, index, part, now, out);
            }
            let charge = part.charge(id);
            let settled = AccountPanic::catch("settled", || {
                entry.account().settled(&charge, part.is_reported, now);
            });
            if let Err(panic) = settled {
                out.lines.push(panic_line(entry, panic));
            }
        }
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

    /// Tells the valve of the end of a job with entries.
    fn count_end(&mut self, demand: &Demand, how: Settlement, now: Instant) {
        let Some(valve) = self.valve.as_ref().filter(|_| !demand.is_empty()) else { return };
        match how {
            Settlement::Rollback => valve.rolled_back(now),
            Settlement::Release => {
                if valve.completed(now) && self.turn.draining {
                    self.turn.earned = true;
                    self.changed();
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
        let is_held = taken.standing == Standing::Held && !taken.parts[index].is_back;
        if !is_held || !demand.entries()[index].comes_back() {
            return false;
        }
        self.give_back(id, demand, index as u32, &mut taken.parts[index], now, out);
        true
    }

    fn give_back(
        &mut self,
        id: u64,
        demand: &Demand,
        index: u32,
        part: &mut Part,
        now: Instant,
        out: &mut Outbox,
    ) {
        let entry = &demand.entries()[index as usize];
        let charge = part.charge(id);
        part.is_back = true;
        let link = entry.account().link();
        match AccountPanic::catch("give", || entry.account().give(&charge, now)) {
            Ok(credited) => {
                if entry.comes_back() && !credited.covers(charge.amount) {
                    out.lines.push(outbox::Line::Clamped {
                        account: Arc::clone(entry.name()),
                        given: charge.amount.units,
                        credited: credited.units,
                    });
                }
            }
            Err(panic) => {
                link.quarantine();
                let (account, message) = (Arc::clone(entry.name()), panic.message);
                out.lines.push(outbox::Line::Quarantined { account, message });
            }
        }
        link.tell_others(self.admission);
        self.changed();
        let units = charge.amount.units;
        let limit = Limit::Entry(index);
        self.tell_units(limit, demand, EventKind::Released, units, None, None, now, out);
    }

    /// A charge was corrected: its account may have room now, or less.
    pub(crate) fn reconciled(&mut self, entry: &Entry) {
        entry.account().link().tell_others(self.admission);
        self.changed();
    }
}

/// What is logged of a panic in a feedback method.
pub(crate) fn panic_line(entry: &Entry, panic: AccountPanic) -> outbox::Line {
    outbox::Line::Panic {
        account: Arc::clone(entry.name()),
        method: panic.method,
        message: panic.message,
    }
}
