//! The short ways in and out, past the admission's state: passages of the
//! [`Door`](crate::account::Door).
//!
//! A demand passes that is made of permits, and of one account that is brief at the most. Nobody who
//! waits names any of its accounts, so there is nobody to overtake and no reservation; an
//! announcement not heard yet sends it the long way, where it is. Whatever says no here has changed
//! nothing, and the long way asks anew.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::time::Instant;

use super::face::Shared;
use super::taken::{Standing, Taken};
use crate::account::{Ask, Turn};
use crate::demand::{Demand, Entries, Entry};
use crate::error::end_panic;

/// What passed the door.
pub(super) struct Passed {
    /// The instant it was taken at.
    pub(super) at: Instant,
    /// How many grants own the admission now.
    pub(super) grants: usize,
}

impl Shared {
    /// The shortest way in: permits only, and no valve. Answers how many grants own the admission
    /// then; `owns` says that this one is to.
    ///
    /// Gates have no use for a time: such a grant is as old as the admission. Nothing but a number
    /// comes back, so that nothing just written is copied.
    #[inline]
    pub(super) fn pass_in(&self, demand: &Demand, owns: bool) -> Option<usize> {
        let list = demand.list();
        if !list.is_counted() || self.valve.is_some() {
            return None;
        }
        let mut passage = self.inbox.door.pass()?;
        if !self.may_come_in(list) {
            return None;
        }
        take_permits(list);
        passage.came_in();
        Some(if owns { self.count_owner() } else { 0 })
    }

    /// The other short way in, for who needs the time: with a brief account, or past memory.
    #[inline]
    pub(super) fn pass_in_timed(&self, demand: &Demand, owns: bool) -> Option<Passed> {
        let list = demand.list();
        let is_timed = list.brief.is_some() || self.valve.is_some();
        if !list.may_pass || !is_timed || !self.inbox.door.is_open() {
            return None;
        }
        let now = self.look_at_memory().unwrap_or_else(Instant::now);
        let mut passage = self.inbox.door.pass()?;
        if !self.may_come_in(list) {
            return None;
        }
        // It is asked by its turn, and nobody waits: the line does not drain.
        let valve = self.valve.as_ref().filter(|_| !list.entries.is_empty());
        if valve.is_some_and(|valve| !valve.willing(Turn::default(), now)) {
            return None;
        }
        // Last of all that may say no: nothing is ever to be undone here.
        let at = match list.brief {
            None => now,
            Some(at) => take_brief(list.entries.get(at as usize)?, now)?,
        };
        take_permits(list);
        if let Some(valve) = valve {
            valve.released(at);
        }
        passage.came_in();
        Some(Passed { at, grants: if owns { self.count_owner() } else { 0 } })
    }

    /// Whether a demand is no stranger here, and its permits are there.
    #[inline]
    fn may_come_in(&self, list: &Entries) -> bool {
        let fits = |entry: &Entry| match entry.permits() {
            Some(permits) => permits.has_in_passage(entry.amount()),
            None => entry.link().may_be_taken_in_passage(),
        };
        !self.inbox.is_pending()
            && list.is_attached_to(self.inbox.admission())
            && list.entries.iter().all(fits)
    }

    /// The short way out: a release of what was taken in a passage, or might have been, when nobody
    /// waits for what comes back. Answers whether it was one.
    #[inline]
    pub(super) fn pass_out(&self, demand: &Demand, taken: &mut Taken, owner_goes: bool) -> bool {
        let list = demand.list();
        if !list.may_pass || !taken.is_whole() {
            return false;
        }
        let Some(mut passage) = self.inbox.door.pass() else { return false };
        let is_held = |entry: &Entry| match entry.permits() {
            Some(permits) => permits.holds_in_passage(entry.amount()),
            None => true,
        };
        if self.inbox.is_pending() || !list.entries.iter().all(is_held) {
            return false;
        }
        for entry in &list.entries {
            if let Some(permits) = entry.permits() {
                permits.give_in_passage(entry.amount());
            }
        }
        if let Some(valve) = &self.valve
            && !list.entries.is_empty()
        {
            // A turn earned is a draining line's, and nobody waits.
            valve.completed(taken.instant());
        }
        passage.went_out();
        self.discount_owner(owner_goes);
        taken.standing = Standing::Released;
        true
    }
}

/// Takes permits that were found there in this very passage.
#[inline]
fn take_permits(list: &Entries) {
    for entry in &list.entries {
        if let Some(permits) = entry.permits() {
            permits.take_in_passage(entry.amount());
        }
    }
}

/// Takes of a brief account, in a passage. A panic goes the long way, where it is met again.
#[inline]
fn take_brief(entry: &Entry, now: Instant) -> Option<Instant> {
    let ask = Ask::new(0, entry.amount(), now);
    let answer = catch_unwind(AssertUnwindSafe(|| entry.account().try_take(&ask)));
    answer.map_err(end_panic).ok()?.ok()?
}
