//! Where those who stay are to stand, and when the clock makes them worth another look.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::asking::{self, Asking, Never};
use super::core::{Core, Noted};
use super::index::{HeadLook, Place};
use super::line::Key;
use super::outbox::{self, Outbox};
use crate::account::AccountId;
use crate::amount::Amount;
use crate::demand::Demand;
use crate::error::AccountPanic;
use crate::sync::Arc;

/// An account that breaks its word is asked again after this, doubling…
const FIRST_DOUBT: Duration = Duration::from_millis(1);
/// …as often as this: to about a second.
const MOST_DOUBLINGS: u8 = 10;

/// Where a waiter that stays is to stand.
#[derive(Debug)]
pub(super) enum Spot {
    /// At the head of the line.
    Head(HeadLook),
    /// Under the account at this position of its demand, which may say yes at an instant.
    Under(u32, Option<Instant>),
    /// No account refuses it.
    Ready,
    /// Behind an equal demand.
    Behind,
}

impl Core {
    /// Where a newcomer that must wait is to stand.
    pub(super) fn spot(
        &self,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
    ) -> Result<Spot, Never> {
        if self.line.is_empty() {
            // The key is the newcomer's, and known when it is filed.
            return self.head_look(Key::NOBODY, demand, asking, open, short).map(Spot::Head);
        }
        if self.index.has_class(demand) {
            return Ok(Spot::Behind);
        }
        Ok(match self.watch_of(demand, asking, short)? {
            Some((index, at)) => Spot::Under(index, at),
            None => Spot::Ready,
        })
    }

    /// Files a newcomer, which is in the line by now and holds on to what it is short of.
    pub(super) fn file_newcomer(
        &mut self,
        key: Key,
        spot: Spot,
        open: bool,
        now: Instant,
        out: &mut Outbox,
    ) {
        let Some(demand) = self.line.waiter(key).map(|waiter| waiter.demand.clone()) else {
            return;
        };
        let is_new = self.index.join(&mut self.line, key, &demand);
        match spot {
            Spot::Behind => {}
            Spot::Head(look) => self.file(key, Spot::Head(HeadLook { key, ..look }), now, out),
            spot if is_new => self.file(key, spot, now, out),
            _ => {}
        }
        if !open {
            self.index.closed = Some(self.memory_instant(now));
        }
    }

    /// Puts the class of a front that stays into its place.
    pub(super) fn file(&mut self, key: Key, spot: Spot, now: Instant, out: &mut Outbox) {
        let class = self.line.class_of(key);
        match spot {
            Spot::Head(look) => {
                self.index.seat(&self.line, key);
                let suspect = look.suspect;
                self.index.head = Some(look);
                if let Some(suspect) = suspect {
                    self.complain(suspect, out);
                }
            }
            Spot::Under(index, at) => {
                let Some(waiter) = self.line.waiter(key) else { return };
                let entry = &waiter.demand.entries()[index as usize];
                let (account, amount) = (entry.id(), entry.amount());
                self.index.shift(class, key, Place::Filed(account), amount);
                let Some(watch) = self.index.watch_mut(account) else { return };
                let changes = self.changes;
                let breaches = watch.breaches;
                if let Some(at) = at
                    && watch.deadline.is_none_or(|deadline| at < deadline)
                {
                    watch.named_after = changes;
                    let at = if at <= now { now + pause(breaches) } else { at };
                    self.index.set_deadline(account, Some(at));
                }
            }
            Spot::Ready => self.index.shift(class, key, Place::Ready, Amount::NONE),
            Spot::Behind => {}
        }
    }

    /// The account a front is to be filed under: one of those it is short of, preferably one that
    /// only an event can change, else the one whose instant comes last. None when memory alone
    /// stands in its way.
    pub(super) fn watch_of(
        &self,
        demand: &Demand,
        asking: Asking<'_>,
        short: &[u32],
    ) -> Result<Option<(u32, Option<Instant>)>, Never> {
        let mut last: Option<(u32, Instant)> = None;
        for &index in short {
            match asking::earliest(&demand.entries()[index as usize], index, asking)? {
                None => return Ok(Some((index, None))),
                Some(at) if last.is_none_or(|(_, last)| last < at) => last = Some((index, at)),
                Some(_) => {}
            }
        }
        Ok(last.map(|(index, at)| (index, Some(at))))
    }

    /// What is to be remembered of a look at the head.
    pub(super) fn head_look(
        &self,
        key: Key,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
    ) -> Result<HeadLook, Never> {
        let now = asking.now;
        let entries = demand.entries();
        let short_ids: SmallVec<[AccountId; 4]> =
            short.iter().map(|&index| entries[index as usize].id()).collect();
        let mut look =
            HeadLook { key, short: short_ids, at: None, named: None, breaches: 0, suspect: None };
        if !open {
            return Ok(look);
        }
        let mut latest = now;
        let mut broken = None;
        let mut shared = false;
        for &index in short {
            let entry = &entries[index as usize];
            match asking::earliest(entry, index, asking)? {
                None => return Ok(look),
                Some(at) => {
                    latest = latest.max(at);
                    shared |= entry.link().is_shared();
                    broken = broken.or((at <= now).then_some(index));
                }
            }
        }
        let before = self.index.head.as_ref().filter(|head| head.key == key);
        let named = before.and_then(|head| head.named);
        // A limit that tightened meanwhile (a 429) announces nothing and names a later instant: that
        // is no breach. One that goes on naming the very next moment is, and would have us spin.
        let due = named.is_some_and(|(at, stamp)| at <= now && stamp == self.changes);
        if broken.is_none() && due && latest < now + FIRST_DOUBT {
            broken = short.first().copied();
        }
        if broken.is_some() {
            let breaches = before.filter(|_| !shared).map_or(0, |head| head.breaches);
            look.breaches = (breaches + 1).min(MOST_DOUBLINGS);
            look.suspect =
                broken.filter(|_| breaches >= 2).map(|index| entries[index as usize].id());
            latest = latest.max(now + pause(breaches));
        }
        look.at = Some(latest);
        look.named = Some((latest, self.changes));
        Ok(look)
    }

    /// Sets the instant at which the clock alone may change an account's answer.
    ///
    /// Also for an account the head is short of: the head may stop being short there while it still
    /// waits elsewhere, and only the clock would say so.
    pub(super) fn set_deadline(
        &mut self,
        account: AccountId,
        ahead: &Demand,
        now: Instant,
        out: &mut Outbox,
    ) {
        let Some(watch) = self.index.watch(account) else { return };
        let tree = watch.tree;
        let mut asked = 0;
        let (mut shared, mut panicked) = (false, false);
        let soonest = self.index.forest().soonest(tree, &mut |class, amount| {
            asked += 1;
            self.ask_for(account, class, amount, ahead, now, |entry, ask| {
                shared |= entry.link().is_shared();
                // Whose fault it is, is found by asking everybody.
                AccountPanic::catch("earliest_fit", || entry.account().earliest_fit(ask))
                    .unwrap_or_else(|_| {
                        panicked = true;
                        Some(now)
                    })
            })
            .flatten()
        });
        self.counters.count_asked(asked);
        let changes = self.changes;
        let Some(watch) = self.index.watch_mut(account) else { return };
        watch.is_marked = false;
        let was_due = std::mem::take(&mut watch.was_due) && watch.named_after == changes;
        let is_late = soonest.is_some_and(|at| at <= now || (was_due && at < now + FIRST_DOUBT));
        // What another admission takes or gives is no event here, so a shared account is asked
        // again soon, and not suspected.
        let breaches = if shared { 0 } else { watch.breaches };
        let at = soonest.map(|at| if is_late { at.max(now + pause(breaches)) } else { at });
        watch.breaches = if is_late { (breaches + 1).min(MOST_DOUBLINGS) } else { 0 };
        watch.named_after = changes;
        let is_suspect = is_late && breaches >= 2;
        self.index.set_deadline(account, at);
        if panicked {
            self.index.suspect(account);
        }
        if is_suspect {
            self.complain(account, out);
        }
    }

    fn complain(&mut self, account: AccountId, out: &mut Outbox) {
        if !self.note(account, Noted::BrokenWord) {
            return;
        }
        let known = self.records.get(&account).and_then(|record| record.account.upgrade());
        if let Some(known) = known {
            let what = "it says no at the instant it named itself; it is asked less and less often";
            let account = Arc::clone(known.link().name());
            out.lines.push(outbox::Line::BrokenWord { account, what });
            out.accounts.push(known);
        }
    }

    /// When memory is worth asking again, after it stopped somebody.
    pub(super) fn memory_instant(&self, now: Instant) -> Option<Instant> {
        if self.is_open(now) {
            // Whoever refreshed its reading need not come here next: it is asked again, soon.
            return Some(now + FIRST_DOUBT);
        }
        let at = self.valve.as_ref().and_then(|valve| valve.earliest(self.turn, now));
        at.map(|at| at.max(now + FIRST_DOUBT))
    }
}

/// How long an account is left alone that broke its word so often in a row.
fn pause(breaches: u8) -> Duration {
    FIRST_DOUBT * (1 << breaches.min(MOST_DOUBLINGS))
}
