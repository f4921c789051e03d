//! The face of the engine: the only lock, and what happens around it.

use std::fmt;
use std::ops::DerefMut;

use tokio::time::Instant;

use super::arrive::{Arrival, Asker};
use super::core::{Core, Life, Settings, Settlement};
use super::line::{Key, Limit, Outcome};
use super::outbox::Outbox;
use super::publisher::Publisher;
use super::settle::Troubles;
use super::taken::{Standing, Taken};
use crate::account::{Inbox, Valve};
use crate::caught::contain;
use crate::demand::Demand;
use crate::error::AccountPanic;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Notify, Ordering, StaticU64};

/// What handles, futures, grants and the evaluator of one admission share.
///
/// Lock order: this core, then an account's own lock, its link, the inbox. A hold goes: hear what
/// was announced, decide, queue the events, let go, then wake, drop and publish.
///
/// Whoever has the core has shut the [`Door`](crate::account::Door) first, so holds and passages
/// exclude each other, and "under the lock" is said of both.
pub struct Shared {
    core: Mutex<Core>,
    /// Grants there are, settled or not, that own the admission but are no handles. Changed under
    /// the lock only.
    grants: AtomicUsize,
    /// What a grant of permits that passed the door says of its time.
    pub(super) born: Instant,
    pub(super) inbox: Arc<Inbox>,
    pub(super) publisher: Publisher,
    pub(super) drained: Notify,
    /// Nothing is granted any more.
    pub(super) over: Notify,
    pub(super) valve: Option<Arc<dyn Valve>>,
}

impl Shared {
    pub(super) fn new(settings: Settings, event_capacity: usize) -> Self {
        static ADMISSIONS: StaticU64 = StaticU64::new(0);
        let inbox = Arc::new(Inbox::new(ADMISSIONS.fetch_add(1, Ordering::Relaxed) + 1));
        let valve = settings.valve.clone();
        let born = Instant::now();
        Self {
            core: Mutex::new(Core::new(Arc::clone(&inbox), settings, born)),
            grants: AtomicUsize::new(0),
            born,
            inbox,
            publisher: Publisher::new(event_capacity),
            drained: Notify::new(),
            over: Notify::new(),
            valve,
        }
    }

    /// The lock, with the door shut and who passed it counted.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        if let Some(count) = self.inbox.door.shut() {
            core.count_passages(count);
        }
        core
    }

    /// Opens the door at the end of a hold that need not have been one, so that the next like it
    /// passes. A hold of another kind leaves it shut: the next hold has it cheaper.
    #[inline]
    fn let_pass(&self, core: &Core, demand: &Demand) {
        if demand.list().may_pass && core.may_be_passed() {
            self.inbox.door.open(core.held);
        }
    }

    /// Counts one grant more that owns the admission; answers how many there are.
    #[inline]
    pub(super) fn count_owner(&self) -> usize {
        let grants = self.grants.load(Ordering::Relaxed) + 1;
        self.grants.store(grants, Ordering::Relaxed);
        grants
    }

    #[inline]
    pub(super) fn discount_owner(&self, goes: bool) {
        if goes {
            let grants = self.grants.load(Ordering::Relaxed);
            self.grants.store(grants.wrapping_sub(1), Ordering::Relaxed);
        }
    }

    /// One decision: lock, decide, unlock, and do what was left to do.
    pub(super) fn hold<R>(&self, decide: impl FnOnce(&mut Core, &mut Outbox) -> R) -> R {
        self.hold_on(self.lock(), decide)
    }

    /// The same with the lock in hand.
    #[inline]
    fn hold_on<R>(
        &self,
        mut core: MutexGuard<'_, Core>,
        decide: impl FnOnce(&mut Core, &mut Outbox) -> R,
    ) -> R {
        let mut out = Outbox::default();
        let result = {
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
        if out.is_over {
            contain("a waker", || self.over.notify_waiters());
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
        owns: bool,
    ) -> Result<Inline, u64> {
        let mut core = self.lock();
        if self.inbox.is_pending() {
            return Err(0);
        }
        let now = match early {
            None if !demand.list().timed => core.latest,
            early => tick(&mut core, early),
        };
        let (id, taken) = core.take_inline(demand, now)?;
        let grants = if owns { self.count_owner() } else { 0 };
        self.let_pass(&core, demand);
        drop(core);
        Ok(Inline { id, taken, grants })
    }

    /// Somebody asks to be admitted, for the first time or with a waker.
    /// With how many grants there are then.
    pub(super) fn arrive(
        &self,
        asker: &mut Asker,
        early: Option<Instant>,
        owns: bool,
    ) -> (Arrival, usize) {
        self.hold(|core, out| {
            let now = if asker.has_waker() || core.needs_clock(&asker.demand) {
                tick(core, early)
            } else {
                core.latest
            };
            let arrival = core.arrive(asker, now, out);
            let is_owner = owns && matches!(arrival, Arrival::Granted(_));
            (arrival, if is_owner { self.count_owner() } else { 0 })
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
        owns: bool,
    ) -> Result<Option<(Outcome, usize)>, NeedsWaker> {
        // No hold: nothing is decided here. Wakers go after the lock.
        let mut core = self.lock();
        if let Some(outcome) = core.line.collect(key) {
            let is_owner = owns && matches!(outcome, Outcome::Granted(_));
            let grants = if is_owner { self.count_owner() } else { 0 };
            drop(core);
            return Ok(Some((outcome, grants)));
        }
        let Some(waiter) = core.line.waiter_mut(key) else { return Ok(None) };
        let old = match (fresh, &waiter.waker) {
            (Some(fresh), _) => waiter.waker.replace(fresh),
            (None, Some(kept)) if kept.will_wake(waker) => None,
            (None, _) => return Err(NeedsWaker),
        };
        drop(core);
        drop(old);
        Ok(None)
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
            // Who leaves the line takes no time with it, but for those who are told.
            let needs_clock = core.teller.is_watched() || core.line.waiter(key).is_none();
            let now = if needs_clock { tick(core, None) } else { core.latest };
            core.withdraw(key, now, out);
        });
    }

    /// Settles a grant, if it is not settled yet. `owner_goes` says that the grant itself goes too,
    /// and that it owned the admission.
    ///
    /// `taken` is the grant's own lock where it is shared. It goes with the decision: the wakers that
    /// run afterwards may come back to the same grant.
    pub(crate) fn settle(
        &self,
        id: u64,
        demand: &Demand,
        mut taken: impl DerefMut<Target = Taken>,
        how: Settlement,
        owner_goes: bool,
    ) -> bool {
        if how == Settlement::Release && self.pass_out(demand, &mut taken, owner_goes) {
            return true;
        }
        self.settle_in_hold(id, demand, taken, how, owner_goes)
    }

    #[inline(never)]
    fn settle_in_hold(
        &self,
        id: u64,
        demand: &Demand,
        mut taken: impl DerefMut<Target = Taken>,
        how: Settlement,
        owner_goes: bool,
    ) -> bool {
        let mut core = self.lock();
        if how == Settlement::Release && !self.inbox.is_pending() {
            let mut troubles = Troubles::new();
            if core.settle_inline(id, demand, &mut taken, &mut troubles) {
                self.discount_owner(owner_goes);
                if troubles.is_empty() && !core.awaits_drain {
                    // Nobody was woken, told or filed, and the line is as it was: there is nothing
                    // for `leave` to see to. What an account announced meanwhile is in the inbox,
                    // and has woken the evaluator if anybody waits.
                    self.let_pass(&core, demand);
                    return true;
                }
                self.hold_on(core, move |core, out| {
                    let _taken = taken;
                    core.mend(demand, troubles, out);
                    core.look_if_drained(out);
                });
                return true;
            }
            if !Outbox::is_serving()
                && let Some(hand_off) = core.hand_off(demand, &taken)
            {
                let now = tick(&mut core, None);
                let waker = core.hand_over(hand_off, now);
                self.discount_owner(owner_goes);
                taken.standing = Standing::Released;
                drop(taken);
                // Another head may be told of at another time, if it waits too long.
                let wake_evaluator = core.needs_evaluator();
                drop(core);
                if wake_evaluator {
                    self.inbox.notify.notify_one();
                }
                if let Some(waker) = waker {
                    Outbox::serve_one(waker);
                }
                return true;
            }
        }
        self.hold_on(core, move |core, out| {
            out.serves =
                how == Settlement::Release && !Outbox::is_serving() && core.may_serve(demand);
            // A release returns permits, which need no clock; time accounts only hear of it, and
            // take an older instant for their own latest. Whoever goes now has waited until now.
            let needs_clock = out.serves || how == Settlement::Rollback;
            let now = if needs_clock { tick(core, None) } else { core.latest };
            self.discount_owner(owner_goes);
            let settled = core.settle(id, demand, &mut taken, how, now, out);
            if out.serves {
                core.serve(now, out);
            }
            settled
        })
    }

    /// A grant that settled before goes, and owned the admission.
    pub(crate) fn forget_owner(&self) {
        if let Some(_passage) = self.inbox.door.pass() {
            self.discount_owner(true);
            return;
        }
        let core = self.lock();
        self.discount_owner(true);
        drop(core);
    }

    /// The last handle is gone.
    pub(super) fn stop_quietly(&self) {
        self.hold(|core, out| {
            let now = core.latest;
            core.stop(now, out);
        });
    }

    /// Stops when there is no handle but grants. `owners` counts both, without the caller.
    ///
    /// A passage sees the count as a hold does, and is all that is needed mostly.
    pub(super) fn stop_when_only_grants_are_left(&self, owners: impl Fn() -> usize) {
        if let Some(_passage) = self.inbox.door.pass()
            && owners() > self.grants.load(Ordering::Relaxed)
        {
            return;
        }
        self.hold(|core, out| {
            if owners() <= self.grants.load(Ordering::Relaxed) {
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
            let Some(part) = taken.holding(index, demand) else { return Ok(false) };
            let now = tick(core, None);
            let holds =
                core.reconcile(&demand.entries()[index], &part.charge(id), actual_units, now)?;
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
        if let Some(count) = self.inbox.door.shut() {
            core.count_passages(count);
        }
        let now = core.latest;
        core.stop(now, &mut out);
        out.deliver();
    }
}
