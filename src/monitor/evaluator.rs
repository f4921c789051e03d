//! The evaluator: the one task that looks at the line when something changed or an hour came.

use std::pin::pin;
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

use super::core::Life;
use super::face::{Shared, tick};
use crate::sync::Arc;

/// No timer is armed further ahead: far timers have failed in the field, and one look a day at a
/// line that waits for longer costs nothing.
const FURTHEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Ends the admission's run when the task goes away, however it does.
///
/// Made before the task is spawned and moved into it: a runtime that shuts down may drop the task
/// before its first poll, and this must happen then too.
pub(super) struct Watch {
    shared: Arc<Shared>,
    generation: u64,
}

impl Watch {
    pub(super) const fn new(shared: Arc<Shared>, generation: u64) -> Self {
        Self { shared, generation }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let generation = self.generation;
        self.shared.hold(|core, out| {
            let now = core.latest;
            core.lose_runtime(generation, now, out);
        });
    }
}

/// Runs until the admission is stopped, closes, or its last handle is gone.
pub(super) async fn run(watch: Watch) {
    let shared = &*watch.shared;
    let mut timer = pin!(sleep_until(Instant::now()));
    loop {
        // An account may announce whenever it is asked, and then `notified` below never waits: the
        // task's budget has us yield to the others all the same.
        consume_budget().await;
        let early = shared.look_at_memory();
        let turn = shared.hold(|core, out| {
            if !matches!(core.life, Life::Running(_)) {
                return Turn::Over;
            }
            let now = tick(core, early);
            if !core.turn(now, out) {
                // Whoever comes next goes on; no timer is needed meanwhile.
                return Turn::Unfinished;
            }
            core.tell_overdue(now, out);
            let armed = core.next_deadline().map(|deadline| deadline.min(now + FURTHEST));
            if armed.is_some() && armed != core.armed {
                core.counters.count_timer();
            }
            core.armed = armed;
            armed.map_or(Turn::Idle, Turn::Until)
        });
        match turn {
            Turn::Over => return,
            Turn::Unfinished => tokio::task::yield_now().await,
            Turn::Idle => shared.inbox.notify.notified().await,
            Turn::Until(deadline) => {
                if timer.deadline() != deadline || timer.is_elapsed() {
                    timer.as_mut().reset(deadline);
                }
                tokio::select! {
                    biased;
                    () = shared.inbox.notify.notified() => {}
                    () = &mut timer => {}
                }
            }
        }
    }
}

/// What the evaluator does next.
enum Turn {
    Over,
    /// There is more to look at than one hold may take.
    Unfinished,
    /// Only an event can change anything.
    Idle,
    /// The clock will.
    Until(Instant),
}
