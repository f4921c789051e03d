//! A look at the whole state for a reader: the snapshot.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::asking::{self, Asking};
use super::core::{Core, Holder};
use super::line::Limit;
use super::outbox::Outbox;
use super::teller::read_valve;
use crate::account::{Account, AccountId};
use crate::snapshot::{AccountSnapshot, HeadSnapshot, HolderSnapshot, Snapshot, Unseen};
use crate::sync::Arc;

impl Core {
    /// Everything there is to know, in one hold: no attempt is under way, so none shows.
    pub(crate) fn snapshot(&mut self, now: Instant, out: &mut Outbox) -> Snapshot {
        let known: Vec<_> = self
            .records
            .iter()
            .filter_map(|(&id, record)| Some((id, record.account.upgrade()?)))
            .collect();
        let is_waited_on = |account: &Arc<dyn Account>| account.link().waiting() > 0;
        let waited_on =
            known.iter().filter(|(_, account)| is_waited_on(account)).map(|&(id, _)| id).collect();
        let (first, mut holders) = (self.first_holds(waited_on), self.all_holders(now));
        let mut accounts: Vec<_> = known
            .iter()
            .map(|(id, account)| {
                let link = account.link();
                let reading = self.read_account(&**account, true, now, out);
                AccountSnapshot {
                    name: Arc::clone(link.name()),
                    category: reading.category,
                    capacity: reading.capacity,
                    in_use: reading.in_use,
                    waiting: link.waiting(),
                    oldest_wait: first.get(id).map(|&since| now.saturating_duration_since(since)),
                    indicator: reading.indicator,
                    summary: reading.summary,
                    quarantined: link.is_quarantined(),
                    holders: holders.remove(id).unwrap_or_default(),
                }
            })
            .collect();
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        accounts.splice(0..0, self.valve_snapshot(now));
        // Whoever else owned them may have let go meanwhile: their drop is not ours to run here.
        out.accounts.extend(known.into_iter().map(|(_, account)| account));
        let oldest = self.line.uncollected().next().map(|landing| landing.at);
        Snapshot {
            accounts,
            waiting: self.line.len(),
            head: self.head_snapshot(now),
            held: self.held,
            totals: self.tally.totals,
            waits: self.tally.waits,
            unseen: Unseen {
                count: self.line.uncollected().count(),
                oldest: oldest.map(|at| now.saturating_duration_since(at)),
            },
            events_dropped: 0,
        }
    }

    pub(super) fn head_snapshot(&mut self, now: Instant) -> Option<HeadSnapshot> {
        let waiter = self.line.waiter(self.line.head()?)?;
        let asking = Asking { id: waiter.id, now, head: None };
        let mut short = Vec::new();
        if asking::survey(&waiter.demand, asking, &mut short).is_err() {
            short.clear();
        }
        Some(HeadSnapshot {
            job: waiter.demand.job().cloned(),
            age: now.saturating_duration_since(waiter.arrived),
            shortages: self.shortages(&waiter.demand, asking, self.is_open(now), &short),
        })
    }

    fn valve_snapshot(&self, now: Instant) -> Option<AccountSnapshot> {
        let valve = self.valve.as_ref()?;
        let first = self.line.iter().find_map(|waiter| waiter.held_since(Limit::Valve));
        let reading = read_valve(&**valve, true, now);
        Some(AccountSnapshot {
            name: Arc::clone(valve.link().name()),
            category: reading.category,
            capacity: reading.capacity,
            in_use: reading.in_use,
            waiting: valve.link().waiting(),
            oldest_wait: first.map(|since| now.saturating_duration_since(since)),
            indicator: reading.indicator,
            summary: reading.summary,
            quarantined: false,
            holders: Vec::new(),
        })
    }

    /// Since when the first waiter on each of these accounts has waited on it: in one walk, for
    /// there may be as many accounts as waiters.
    fn first_holds(&mut self, mut of: HashSet<AccountId>) -> HashMap<AccountId, Instant> {
        let mut first = HashMap::new();
        let mut line = self.line.iter();
        while !of.is_empty()
            && let Some(waiter) = line.next()
        {
            self.counters.count_told();
            for hold in &waiter.holds {
                if let Limit::Entry(index) = hold.limit() {
                    let id = waiter.demand.entries()[index as usize].id();
                    if of.remove(&id) {
                        first.insert(id, hold.since(waiter.arrived));
                    }
                }
            }
        }
        first
    }

    /// Who holds what of each account: in one walk, too.
    fn all_holders(&mut self, now: Instant) -> HashMap<AccountId, Vec<HolderSnapshot>> {
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for holder in self.holders.iter().flat_map(HashMap::values) {
            self.counters.count_told();
            for (index, entry) in holder.demand.entries().iter().enumerate() {
                all.entry(entry.id()).or_default().push(holder.told(index, now));
            }
        }
        all.values_mut().for_each(|holders| longest_first(holders));
        all
    }

    pub(super) fn holders_of(&self, id: AccountId, now: Instant) -> Vec<HolderSnapshot> {
        let mut holders: Vec<_> = self
            .holders
            .iter()
            .flat_map(HashMap::values)
            .filter_map(|holder| Some(holder.told(holder.demand.position(id)?, now)))
            .collect();
        longest_first(&mut holders);
        holders
    }

    /// Asserts the numbered invariants of [`core`](super::core) that can be read off the state.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self) {
        self.line.check();
        self.index.check(&self.line);
        let expiring = self.line.iter().filter(|waiter| waiter.expires.is_some()).count();
        assert_eq!(expiring, self.expiries.len(), "6: every limit in time is filed, and no other");
        assert!(
            self.held >= self.line.uncollected().count(),
            "4: what landed is held until it is settled"
        );
        if let Some(holders) = &self.holders {
            assert_eq!(holders.len(), self.held, "4: every grant held is somebody's");
        }
        if self.line.is_empty() {
            assert!(!self.turn.draining, "an empty line does not drain");
            assert_eq!(self.index.deadline(), None, "3: nobody waits for the clock");
        }
        for (id, record) in &self.records {
            let Some(account) = record.account.upgrade() else { continue };
            let here = self
                .line
                .iter()
                .filter(|waiter| {
                    waiter.demand.position(*id).is_some_and(|index| {
                        let limit = Limit::Entry(index as u32);
                        waiter.held_since(limit).is_some()
                    })
                })
                .count();
            let all = account.link().waiting();
            let agrees = if account.link().is_shared() { here <= all } else { here == all };
            assert!(agrees, "5: {} waits: {here} here, {all} counted", account.link().name());
        }
    }
}

impl Holder {
    /// What is told of it and the account at this position of its demand.
    fn told(&self, index: usize, now: Instant) -> HolderSnapshot {
        HolderSnapshot {
            job: self.demand.job().cloned(),
            amount: self.demand.entries()[index].amount(),
            held_for: now.saturating_duration_since(self.since),
        }
    }
}

fn longest_first(holders: &mut [HolderSnapshot]) {
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
}
