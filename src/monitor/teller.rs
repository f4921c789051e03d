//! Makes the events of what was decided.
//!
//! Nothing is built while nobody ever subscribed. A reading that panics leaves its field empty: an
//! event is best effort, admission never hears of a failure to make one.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::core::{Core, Noted};
use super::line::{Limit, Waiter};
use super::outbox::{self, Outbox};
use crate::account::{AccountLink, Valve};
use crate::demand::Demand;
use crate::error::AccountPanic;
use crate::events::{Category, EventKind, LimiterEvent, RejectReason};
use crate::sync::Arc;

/// Whether anybody listens, and how many events there were.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    /// Sticky: once somebody subscribed, events are built.
    is_watched: bool,
    sequence: u64,
}

impl Teller {
    pub(crate) const fn watch(&mut self) {
        self.is_watched = true;
    }

    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }
}

/// What is read of a limit for an event or a snapshot.
pub(super) struct Reading {
    pub(super) category: Category,
    pub(super) capacity: u64,
    pub(super) in_use: u64,
    pub(super) indicator: Option<String>,
    pub(super) summary: String,
}

impl Core {
    /// Reads an account, field by field; one that panics is empty, and logged once.
    pub(super) fn read_account(
        &mut self,
        account: &dyn crate::Account,
        with_summary: bool,
        now: Instant,
        out: &mut Outbox,
    ) -> Reading {
        let mut failed = None;
        let category = read("category", || account.category(), &mut failed);
        let capacity = read("capacity", || account.capacity(), &mut failed);
        let in_use = read("in_use", || account.in_use(now), &mut failed);
        let indicator = read("indicator", || account.indicator(now), &mut failed);
        let summary =
            if with_summary { read("summary", || account.summary(now), &mut failed) } else { None };
        if let Some(panic) = failed {
            self.say_panic(account.link(), panic, out);
        }
        Reading {
            category: category.unwrap_or(Category::Other("".into())),
            capacity: capacity.unwrap_or_default(),
            in_use: in_use.unwrap_or_default(),
            indicator: indicator.flatten(),
            summary: summary.unwrap_or_default(),
        }
    }

    /// Has a panic that fails nobody logged, once an account.
    fn say_panic(&mut self, link: &AccountLink, panic: AccountPanic, out: &mut Outbox) {
        if self.note(link.id(), Noted::Panicked) {
            let (method, message) = (panic.method, panic.message);
            out.lines.push(outbox::Line::Panic {
                account: Arc::clone(link.name()),
                method,
                message,
            });
        }
    }

    /// Tells of one step of one job on one limit, if anybody ever subscribed.
    #[expect(clippy::too_many_arguments, reason = "an event has that many parts")]
    pub(super) fn tell(
        &mut self,
        limit: Limit,
        demand: &Demand,
        kind: EventKind,
        wait: Option<Duration>,
        reason: Option<RejectReason>,
        now: Instant,
        out: &mut Outbox,
    ) {
        let units = match limit {
            Limit::Valve => 0,
            Limit::Entry(index) => demand.entries()[index as usize].amount().units,
        };
        self.tell_units(limit, demand, kind, units, wait, reason, now, out);
    }

    /// The same with an amount of its own: what comes back need not be what was asked.
    #[expect(clippy::too_many_arguments, reason = "an event has that many parts")]
    pub(super) fn tell_units(
        &mut self,
        limit: Limit,
        demand: &Demand,
        kind: EventKind,
        units: u64,
        wait: Option<Duration>,
        reason: Option<RejectReason>,
        now: Instant,
        out: &mut Outbox,
    ) {
        if !self.teller.is_watched {
            return;
        }
        let (account, waiting, reading) = match limit {
            Limit::Valve => {
                let Some(valve) = self.valve.clone() else { return };
                let reading = read_valve(&*valve, false, now);
                (Arc::clone(valve.link().name()), valve.link().waiting(), reading)
            }
            Limit::Entry(index) => {
                let entry = &demand.entries()[index as usize];
                let reading = self.read_account(&**entry.account(), false, now, out);
                (Arc::clone(entry.name()), entry.link().waiting(), reading)
            }
        };
        self.teller.sequence += 1;
        out.events.push(LimiterEvent {
            sequence: self.teller.sequence,
            job: demand.job().cloned(),
            at: SystemTime::now(),
            account,
            category: reading.category,
            capacity: reading.capacity,
            in_use: reading.in_use,
            waiting,
            kind,
            wait,
            reason,
            indicator: reading.indicator,
            amount: units,
        });
    }

    /// Tells that a newcomer leaves without a grant: on what it was short of or refused by, else on
    /// every entry.
    pub(super) fn tell_rejected(
        &mut self,
        demand: &Demand,
        on: &[Limit],
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) {
        if !self.teller.is_watched {
            return;
        }
        for &limit in on {
            self.tell(limit, demand, EventKind::Rejected, None, Some(reason), now, out);
        }
        if on.is_empty() {
            for index in 0..demand.entries().len() {
                let limit = Limit::Entry(index as u32);
                self.tell(limit, demand, EventKind::Rejected, None, Some(reason), now, out);
            }
        }
    }

    /// Tells that a waiter leaves without a grant: on what held it, and on what refused it.
    pub(super) fn tell_left(
        &mut self,
        waiter: &Waiter,
        on: &[Limit],
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) {
        let demand = &waiter.demand;
        if !self.teller.is_watched || waiter.holds.is_empty() {
            self.tell_rejected(demand, on, reason, now, out);
            return;
        }
        for hold in &waiter.holds {
            let wait = Some(now.saturating_duration_since(hold.since(waiter.arrived)));
            self.tell(hold.limit(), demand, EventKind::Rejected, wait, Some(reason), now, out);
        }
        for &limit in on {
            if waiter.held_since(limit).is_none() {
                self.tell(limit, demand, EventKind::Rejected, None, Some(reason), now, out);
            }
        }
    }
}

/// Reads the valve. Its panics are contained where the admission was built.
pub(super) fn read_valve(valve: &dyn Valve, with_summary: bool, now: Instant) -> Reading {
    Reading {
        category: valve.category(),
        capacity: valve.capacity(),
        in_use: valve.in_use(),
        indicator: valve.indicator(now),
        summary: if with_summary { valve.summary(now) } else { String::new() },
    }
}

/// One reading, or nothing and the panic that prevented it.
fn read<T>(
    method: &'static str,
    call: impl FnOnce() -> T,
    failed: &mut Option<AccountPanic>,
) -> Option<T> {
    AccountPanic::catch(method, call).map_err(|panic| *failed = Some(panic)).ok()
}
