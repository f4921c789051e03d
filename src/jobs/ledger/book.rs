//! The figures of one workflow: plain state, no lock.

use rust_decimal::Decimal;

use crate::jobs::spend::{Priced, SpendRefusal};
use crate::money::{Cost, Currency, Money, Sum};
use crate::sync::Arc;

/// Where one workflow stands in one currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SpendStatus {
    /// What jobs that have ended cost.
    pub spent: Money,
    /// What jobs under way have reserved.
    pub committed: Money,
    /// What may be spent at most; `None` where there is no cap in this currency.
    pub cap: Option<Money>,
}

impl SpendStatus {
    /// What a job can still reserve; `None` without a cap, zero when that is reached or passed.
    #[must_use]
    pub fn remaining(&self) -> Option<Money> {
        let cap = self.cap?;
        let used = Sum::of(self.spent.amount).plus(Sum::of(self.committed.amount));
        let rest = Sum::of(cap.amount).minus(used).max(Sum::ZERO);
        Some(Money::new(rest.to_decimal(), cap.currency))
    }
}

/// The figures of one workflow in one currency.
#[derive(Clone, Copy, Debug)]
struct Entry {
    currency: Currency,
    spent: Sum,
    committed: Sum,
    cap: Option<Decimal>,
}

impl Entry {
    const fn new(currency: Currency) -> Self {
        Self { currency, spent: Sum::ZERO, committed: Sum::ZERO, cap: None }
    }

    fn money(&self, sum: Sum) -> Money {
        Money::new(sum.to_decimal(), self.currency)
    }

    fn cap(&self) -> Option<Money> {
        self.cap.map(|cap| Money::new(cap, self.currency))
    }

    fn status(&self) -> SpendStatus {
        let (spent, committed) = (self.money(self.spent), self.money(self.committed));
        SpendStatus { spent, committed, cap: self.cap() }
    }
}

/// The figures of one workflow.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// One a currency, in the order they were first seen. There are few.
    entries: Vec<Entry>,
}

impl Book {
    /// Takes a job's cost into the commitments, all of it, or refuses and changes nothing.
    pub(super) fn commit(
        &mut self,
        workflow: &Arc<str>,
        priced: &[Priced],
    ) -> Result<Cost, SpendRefusal> {
        let reserved = self.price(workflow, priced)?;
        let mut refused = None;
        for (currency, sum) in reserved.sums() {
            if let Err(refusal) = self.check(workflow, currency, sum) {
                // The one that no waiting helps with goes first: where there is one, none helps.
                if !refusal.is_retryable() {
                    return Err(refusal);
                }
                refused = refused.or(Some(refusal));
            }
        }
        if let Some(refusal) = refused {
            return Err(refusal);
        }
        for (currency, sum) in reserved.sums() {
            let entry = self.entry(currency);
            entry.committed = entry.committed.plus(sum);
        }
        Ok(reserved)
    }

    /// A job has ended: its reservation goes, and what it cost stays.
    pub(super) fn settle(&mut self, reserved: &Cost, actual: Option<&Cost>) {
        for (currency, sum) in reserved.sums() {
            let entry = self.entry(currency);
            entry.committed = entry.committed.minus(sum);
        }
        for (currency, sum) in actual.into_iter().flat_map(Cost::sums) {
            let entry = self.entry(currency);
            entry.spent = entry.spent.plus(sum);
        }
    }

    pub(super) fn set_cap(&mut self, cap: Money) {
        self.entry(cap.currency).cap = Some(cap.amount);
    }

    pub(super) fn lift_cap(&mut self, currency: Currency) -> Option<Money> {
        let entry = self.entries.iter_mut().find(|entry| entry.currency == currency)?;
        let cap = entry.cap();
        entry.cap = None;
        cap
    }

    /// Whether there is a cap in any currency.
    pub(super) fn is_capped(&self) -> bool {
        self.entries.iter().any(|entry| entry.cap.is_some())
    }

    pub(super) fn spent(&self) -> Cost {
        self.sum(|entry| entry.spent)
    }

    pub(super) fn committed(&self) -> Cost {
        self.sum(|entry| entry.committed)
    }

    pub(super) fn status(&self) -> Vec<SpendStatus> {
        self.entries.iter().map(Entry::status).collect()
    }

    /// What a job reserves, where every price is known and, under a cap, capped.
    fn price(&self, workflow: &Arc<str>, priced: &[Priced]) -> Result<Cost, SpendRefusal> {
        let is_capped = self.is_capped();
        let mut reserved = Cost::new();
        for Priced { model, cost, .. } in priced {
            match *cost {
                Some(cost) if !is_capped || self.has_cap(cost.currency) => {
                    reserved.add_sum(cost.currency, Sum::of(cost.amount).max(Sum::ZERO));
                }
                Some(Money { currency, .. }) => {
                    let (workflow, model) = (Arc::clone(workflow), Arc::clone(model));
                    let caps = self.capped().collect();
                    return Err(SpendRefusal::NoCap { workflow, currency, model, caps });
                }
                None if is_capped => {
                    let (workflow, model) = (Arc::clone(workflow), Arc::clone(model));
                    return Err(SpendRefusal::Unpriced { workflow, model });
                }
                None => {}
            }
        }
        Ok(reserved)
    }

    /// Whether a reservation fits under the cap of its currency, where there is one.
    fn check(
        &self,
        workflow: &Arc<str>,
        currency: Currency,
        reservation: Sum,
    ) -> Result<(), SpendRefusal> {
        let Some(entry) = self.entries.iter().find(|entry| entry.currency == currency) else {
            return Ok(());
        };
        let Some(cap) = entry.cap else { return Ok(()) };
        let total = entry.spent.plus(entry.committed).plus(reservation);
        // A price that stopped at the maximum is really more than that.
        if total <= Sum::of(cap) && reservation < Sum::of(Decimal::MAX) {
            return Ok(());
        }
        Err(SpendRefusal::OverCap {
            workflow: Arc::clone(workflow),
            spent: entry.money(entry.spent),
            committed: entry.money(entry.committed),
            cap: Money::new(cap, currency),
            reservation: entry.money(reservation),
        })
    }

    fn capped(&self) -> impl Iterator<Item = Currency> {
        self.entries.iter().filter(|entry| entry.cap.is_some()).map(|entry| entry.currency)
    }

    fn has_cap(&self, currency: Currency) -> bool {
        self.capped().any(|capped| capped == currency)
    }

    fn entry(&mut self, currency: Currency) -> &mut Entry {
        let there = self.entries.iter().position(|entry| entry.currency == currency);
        let at = there.unwrap_or_else(|| {
            self.entries.push(Entry::new(currency));
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }

    fn sum(&self, figure: impl Fn(&Entry) -> Sum) -> Cost {
        let mut cost = Cost::new();
        for entry in &self.entries {
            cost.add_sum(entry.currency, figure(entry));
        }
        cost
    }
}
