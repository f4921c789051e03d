//! The face of the engine: the only lock, and what happens around it.

use std::fmt;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::arrive::{Arrival, Asker};
use super::core::{Core, Life, Settings, Settlement};
use super::line::{Key, Limit, Outcome};
use super::outbox::Outbox;
use super::publisher::Publisher;
use super::taken::Taken;
use crate::account::{Inbox, Valve};
use crate::demand::Demand;
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering};

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
        static ADMISSIONS: AtomicU64 = AtomicU64::new(0);
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
        let mut core = self.enter();
        let result = decide(&mut core, &mut out);
        self.leave(core, &mut out);
        self.deliver(&mut out);
        result
    }

    fn enter(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        if self.inbox.is_pending() {
            self.hear(&mut core);
        }
        core
    }

    fn hear(&self, core: &mut Core) {
        self.inbox.take(|account, marks| core.hear(account, marks));
    }

    /// The end of a hold: says whether anybody waits, queues events, and sees whether the evaluator
    /// has something to do.
    ///
    /// Missed here would be an announcement between a no and the filing of the waiter: `listen`
    /// answers whether one came before the inbox knew that somebody waits.
    fn leave(&self, mut core: MutexGuard<'_, Core>, out: &mut Outbox) {
        let waits = !core.line.is_empty();
        if waits != core.is_listening {
            core.is_listening = waits;
            if self.inbox.listen(waits) && waits {
                self.hear(&mut core);
            }
        }
        out.wake_evaluator |= matches!(core.life, Life::Running(_)) && core.needs_evaluator();
        if !out.events.is_empty() {
            self.publisher.enqueue(&mut out.events);
            out.has_events = true;
        }
        drop(core);
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
            self.drained.notify_waiters();
        }
    }

    /// Lets the valve refresh its reading, outside every lock.
    pub(super) fn look_at_memory(&self) {
        if let Some(valve) = &self.valve {
            valve.look(Instant::now());
        }
    }

    /// Somebody asks to be admitted, for the first time or with a waker.
    pub(super) fn arrive(&self, asker: &mut Asker) -> Arrival {
        self.hold(|core, out| {
            let wants_to_park = asker.has_waker();
            let now = if wants_to_park || core.needs_clock(&asker.demand) {
                tick(core)
            } else {
                core.latest
            };
            core.arrive(asker, now, out)
        })
    }

    /// An outcome, if one is there; else the waker is kept for when it is.
    ///
    /// Answers `Err` when the waker must be replaced, which takes a clone made outside the lock.
    pub(super) fn collect(
        &self,
        key: Key,
        waker: &std::task::Waker,
        fresh: Option<std::task::Waker>,
    ) -> Result<Option<Outcome>, NeedsWaker> {
        self.hold(|core, out| {
            if let Some(outcome) = core.collect(key) {
                out.old_wakers.extend(fresh);
                return Ok(Some(outcome));
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
            let now = tick(core);
            core.withdraw(key, now, out);
        });
    }

    /// Settles a grant, if it is not settled yet.
    pub(crate) fn settle(
        &self,
        id: u64,
        demand: &Demand,
        taken: &mut Taken,
        how: Settlement,
    ) -> bool {
        self.hold(|core, out| {
            // A release returns permits, which need no clock; time accounts only hear of it, and
            // take an older instant for their own latest.
            let now = if how == Settlement::Rollback { tick(core) } else { core.latest };
            core.settle(id, demand, taken, how, now, out)
        })
    }

    /// Gives one release account of a grant back early.
    pub(crate) fn release_one(
        &self,
        id: u64,
        demand: &Demand,
        index: usize,
        taken: &mut Taken,
    ) -> bool {
        self.hold(|core, out| {
            let now = core.latest;
            core.release_one(id, demand, index, taken, now, out)
        })
    }

    /// A charge of a grant was corrected.
    pub(crate) fn reconciled(&self, demand: &Demand, index: usize) {
        self.hold(|core, _| core.reconciled(&demand.entries()[index]));
    }

    /// Logs what an account did wrong, outside every lock.
    pub(crate) fn log(&self, line: super::outbox::Line) {
        let mut out = Outbox::default();
        out.lines.push(line);
        out.deliver();
    }
}

/// The waker kept for a waiter is another task's.
#[derive(Debug)]
pub(super) struct NeedsWaker;

/// Reads the clock for a decision: under the lock, and never less than the last.
pub(super) fn tick(core: &mut Core) -> Instant {
    core.latest = core.latest.max(Instant::now());
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
