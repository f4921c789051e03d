//! The face of the engine: the only lock, and what happens around it.

use std::fmt;
use std::ops::DerefMut;

use tokio::time::Instant;

use super::arrive::{Arrival, Asker};
use super::core::{Core, Life, Settings, Settlement};
use super::line::{Key, Limit, Outcome};
use super::outbox::{Outbox, contain};
use super::publisher::Publisher;
use super::settle::Troubles;
use super::taken::{Standing, Taken};
use crate::account::{Inbox, Valve};
use crate::demand::Demand;
use crate::error::AccountPanic;
use crate::sync::{Arc, Mutex, Notify, Ordering, StaticU64};

/// What handles, futures, grants and the evaluator of one admission share.
///
/// Lock order: this core, then an account's own lock, its link, the inbox. A hold goes: hear what
/// was announced, decide, queue the events, let go, then wake, drop and publish.
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) publisher: Publisher,
    pub(super) drained: Notify,
    valve: Option<Arc<dyn Valve>>,
}

impl Shared {
    pub(super) fn new(settings: Settings, event_capacity: usize) -> Self {
        static ADMISSIONS: StaticU64 = StaticU64::new(0);
        let inbox = Arc::new(Inbox::new(ADMISSIONS.fetch_add(1, Ordering::Relaxed) + 1));
        let valve = settings.valve.clone();
        Self {
            core: Mutex::new(Core::new(Arc::clone(&inbox), settings, Instant::now())),
            inbox,
            publisher: Publisher::new(event_capacity),
            drained: Notify::new(),
            valve,
        }
    }

    /// One decision: lock, decide, unlock, and do what was left to do.
    pub(super) fn hold<R>(&self, decide: impl FnOnce(&mut Core, &mut Outbox) -> R) -> R {
        let mut out = Outbox::default();
        let result = {
            let mut core = self.core.lock();
            if self.inbox.is_pending() {
                self.hear(&mut core);
            }
            let result = decide(&mut core, &mut out);
            self.leave(&mut core, &mut out);
            drop(core);
            result
        };
        self.deliver(&mut out);
        result
    }

    fn hear(&self, core: &mut Core) {
        self.inbox.take(|account, marks| core.hear(account, marks));
    }

    /// The end of a hold: says whether anybody waits, queues events, and sees whether the evaluator
    /// has something to do.
    ///
    /// Missed here would be an announcement between a no and the filing of the waiter: `listen`
    /// answers whether one came before the inbox knew that somebody waits.
    fn leave(&self, core: &mut Core, out: &mut Outbox) {
        let waits = !core.line.is_empty();
        if waits != core.is_listening {
            core.is_listening = waits;
            if self.inbox.listen(waits) && waits {
                self.hear(core);
            }
        }
        out.wake_evaluator |= matches!(core.life, Life::Running(_)) && core.needs_evaluator();
        if !out.events.is_empty() {
            self.publisher.enqueue(&mut out.events);
            out.has_events = true;
        }
    }

    fn deliver(&self, out: &mut Outbox) {
        if out.wake_evaluator {
            self.inbox.notify.notify_one();
        }
        out.deliver();
        if out.has_events {
            self.publisher.publish();
        }
        if out.is_drained {
            contain("a waker", || self.drained.notify_waiters());
        }
    }

    /// Lets the valve refresh its reading, outside every lock. Answers the instant that took.
    pub(super) fn look_at_memory(&self) -> Option<Instant> {
        self.valve.as_ref().map(|valve| {
            let now = Instant::now();
            valve.look(now);
            now
        })
    }

    /// The inline path: one lock, and the clock only for those who read it. Where it does not lead
    /// through, answers the id accounts were asked under, zero when none was.
    ///
    /// `early` is the instant memory was looked at, if it was: one reading serves for both.
    #[inline]
    pub(super) fn arrive_inline(
        &self,
        demand: &Demand,
        early: Option<Instant>,
    ) -> Result<Inline, u64> {
        let mut core = self.core.lock();
        if self.inbox.is_pending() {
            return Err(0);
        }
        let now = match early {
            None if !demand.list().timed => core.latest,
            early => tick(&mut core, early),
        };
        let (id, taken) = core.take_inline(demand, now)?;
        Ok(Inline { id, taken, grants: core.grants })
    }

    /// Somebody asks to be admitted, for the first time or with a waker.
    /// With how many grants there are then.
    pub(super) fn arrive(&self, asker: &mut Asker, early: Option<Instant>) -> (Arrival, usize) {
        self.hold(|core, out| {
            let now = if asker.has_waker() || core.needs_clock(&asker.demand) {
                tick(core, early)
            } else {
                core.latest
            };
            let arrival = core.arrive(asker, now, out);
            (arrival, core.grants)
        })
    }

    /// An outcome, if one is there, with how many grants there are then; else the waker is kept for
    /// when it is.
    ///
    /// Answers `Err` when the waker must be replaced, which takes a clone made outside the lock.
    pub(super) fn collect(
        &self,
        key: Key,
        waker: &std::task::Waker,
        fresh: Option<std::task::Waker>,
    ) -> Result<Option<(Outcome, usize)>, NeedsWaker> {
        self.hold(|core, out| {
            if let Some(outcome) = core.collect(key) {
                out.old_wakers.extend(fresh);
                return Ok(Some((outcome, core.grants)));
            }
            let Some(waiter) = core.line.waiter_mut(key) else {
                out.old_wakers.extend(fresh);
                return Ok(None);
            };
            if let Some(fresh) = fresh {
                out.old_wakers.extend(waiter.waker.replace(fresh));
                return Ok(None);
            }
            match &waiter.waker {
                Some(kept) if kept.will_wake(waker) => Ok(None),
                _ => Err(NeedsWaker),
            }
        })
    }

    /// The token of a job was cancelled before it asked.
    pub(super) fn cancelled_unasked(&self, demand: &Demand) {
        self.hold(|core, out| {
            let now = core.latest;
            core.cancelled_unasked(demand, now, out);
        });
    }

    /// What a limit of a demand is called.
    pub(crate) fn name_of(&self, limit: Limit, demand: &Demand) -> Arc<str> {
        match (limit, &self.valve) {
            (Limit::Entry(index), _) => Arc::clone(demand.entries()[index as usize].name()),
            (Limit::Valve, Some(valve)) => Arc::clone(valve.link().name()),
            (Limit::Valve, None) => "memory".into(),
        }
    }

    /// The job behind `key` is gone.
    pub(super) fn withdraw(&self, key: Key) {
        self.hold(|core, out| {
            let now = tick(core, None);
            core.withdraw(key, now, out);
        });
    }

    /// Settles a grant, if it is not settled yet. `is_over` says that the grant itself goes too.
    ///
    /// `taken` is the grant's own lock where it is shared. It goes with the decision: the wakers that
    /// run afterwards may come back to the same grant.
    pub(crate) fn settle(
        &self,
        id: u64,
        demand: &Demand,
        mut taken: impl DerefMut<Target = Taken>,
        how: Settlement,
        is_over: bool,
    ) -> bool {
        if how == Settlement::Release
            && let Some(left_to_do) = self.release_inline(id, demand, &mut taken, is_over)
        {
            drop(taken);
            if let Some(mut out) = left_to_do {
                self.deliver(&mut out);
            }
            return true;
        }
        self.hold(move |core, out| {
            // A release returns permits, which need no clock; time accounts only hear of it, and
            // take an older instant for their own latest.
            let now = if how == Settlement::Rollback { tick(core, None) } else { core.latest };
            core.grants -= usize::from(is_over);
            core.settle(id, demand, &mut taken, how, now, out)
        })
    }

    /// The inline way back: one lock, no clock, nobody to wake. Answers what is left to be done,
    /// which is mostly nothing; `None` when this way does not lead through.
    fn release_inline(
        &self,
        id: u64,
        demand: &Demand,
        taken: &mut Taken,
        is_over: bool,
    ) -> Option<Option<Box<Outbox>>> {
        let mut core = self.core.lock();
        if self.inbox.is_pending() {
            return None;
        }
        let mut troubles = Troubles::new();
        if !core.settle_inline(id, demand, taken, &mut troubles) {
            return None;
        }
        core.grants -= usize::from(is_over);
        if troubles.is_empty() && !core.awaits_drain {
            // Nobody was woken, told or filed, and the line is as it was: there is nothing for
            // `leave` to see to. What an account announced meanwhile is in the inbox, and has woken
            // the evaluator if anybody waits.
            return Some(None);
        }
        let mut out = Box::<Outbox>::default();
        core.mend(demand, troubles, &mut out);
        core.look_if_drained(&mut out);
        self.leave(&mut core, &mut out);
        drop(core);
        Some(Some(out))
    }

    /// A grant that settled before goes.
    pub(crate) fn forget_grant(&self) {
        self.core.lock().grants -= 1;
    }

    /// The last handle is gone.
    pub(super) fn stop_quietly(&self) {
        self.hold(|core, out| {
            let now = core.latest;
            core.stop(now, out);
        });
    }

    /// Stops when there is no handle but grants. `owners` counts both, without the caller.
    pub(super) fn stop_when_only_grants_are_left(&self, owners: impl FnOnce() -> usize) {
        self.hold(|core, out| {
            if owners() <= core.grants {
                let now = core.latest;
                core.stop(now, out);
            }
        });
    }

    /// Gives one release account of a grant back early; `taken` as for [`settle`](Self::settle).
    pub(crate) fn release_one(
        &self,
        id: u64,
        demand: &Demand,
        index: usize,
        mut taken: impl DerefMut<Target = Taken>,
    ) -> bool {
        self.hold(move |core, out| {
            let now = core.latest;
            core.release_one(id, demand, index, &mut taken, now, out)
        })
    }

    /// Corrects a charge of a grant; `taken` as for [`settle`](Self::settle). Answers whether there
    /// was anything to correct.
    ///
    /// Under the lock: what it frees is there for whoever waits on it before any newcomer sees it.
    pub(crate) fn reconcile(
        &self,
        id: u64,
        demand: &Demand,
        index: usize,
        mut taken: impl DerefMut<Target = Taken>,
        actual_units: u64,
    ) -> Result<bool, AccountPanic> {
        self.hold(move |core, _| {
            let entry = &demand.entries()[index];
            let part = taken.part(index, demand);
            let is_open = match taken.standing {
                Standing::Held => true,
                Standing::Released => !entry.comes_back(),
                Standing::RolledBack => false,
            };
            if !is_open || part.is_back {
                return Ok(false);
            }
            let now = tick(core, None);
            let holds = core.reconcile(entry, &part.charge(id), actual_units, now)?;
            taken.part_mut(index, demand).amount = holds;
            Ok(true)
        })
    }

    /// Logs what an account did wrong, outside every lock.
    pub(crate) fn log(&self, line: super::outbox::Line) {
        let mut out = Outbox::default();
        out.lines.push(line);
        out.deliver();
    }
}

/// What the inline path took.
pub(super) struct Inline {
    pub(super) id: u64,
    pub(super) taken: Taken,
    /// How many grants there are now.
    pub(super) grants: usize,
}

/// The waker kept for a waiter is another task's.
#[derive(Debug)]
pub(super) struct NeedsWaker;

/// Reads the clock for a decision: under the lock, and never less than the last.
/// `early` is a reading made just before.
pub(super) fn tick(core: &mut Core, early: Option<Instant>) -> Instant {
    core.latest = core.latest.max(early.unwrap_or_else(Instant::now));
    core.latest
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("id", &self.inbox.admission()).finish_non_exhaustive()
    }
}

/// No handle, no evaluator and no grant is left: the accounts forget this admission.
impl Drop for Shared {
    fn drop(&mut self) {
        let mut out = Outbox::default();
        let core = self.core.get_mut();
        let now = core.latest;
        core.stop(now, &mut out);
        out.deliver();
    }
}
