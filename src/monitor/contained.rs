//! A valve whose panics end here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::time::Instant;

use crate::account::{AccountLink, InPassage, Turn, Valve};
use crate::caught::say;
use crate::error::panic_message;
use crate::events::Category;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// A valve that panicked over a question is not asked again: from then on it stands open, so that a
/// broken memory gate stops nobody. A reading that panics is empty, and changes nothing else. Each
/// is logged once, when nobody holds a lock: at the next look.
pub(super) struct Contained {
    inner: Arc<dyn Valve>,
    is_broken: AtomicBool,
    is_unreadable: AtomicBool,
    to_say: Mutex<Vec<(&'static str, String)>>,
}

impl Contained {
    pub(super) fn around(inner: Arc<dyn Valve>) -> Arc<dyn Valve> {
        let (is_broken, is_unreadable) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, is_broken, is_unreadable, to_say: Mutex::default() })
    }

    #[inline]
    fn ask<R>(&self, open: R, question: impl FnOnce(&dyn Valve) -> R) -> R {
        if self.is_broken.load(Ordering::Relaxed) {
            return open;
        }
        match catch_unwind(AssertUnwindSafe(|| question(&*self.inner))) {
            Ok(answer) => answer,
            Err(payload) => {
                self.is_broken.store(true, Ordering::Relaxed);
                let message = panic_message(payload);
                self.to_say.lock().push(("it stands open from now on", message));
                open
            }
        }
    }

    fn read<R>(&self, empty: R, reading: impl FnOnce(&dyn Valve) -> R) -> R {
        catch_unwind(AssertUnwindSafe(|| reading(&*self.inner))).unwrap_or_else(|payload| {
            if !self.is_unreadable.swap(true, Ordering::Relaxed) {
                let message = panic_message(payload);
                self.to_say.lock().push(("what it was read for stays empty", message));
            }
            empty
        })
    }
}

impl Valve for Contained {
    fn link(&self) -> &AccountLink {
        self.inner.link()
    }

    fn look(&self, now: Instant) {
        self.ask((), |valve| valve.look(now));
        if self.is_broken.load(Ordering::Relaxed) || self.is_unreadable.load(Ordering::Relaxed) {
            for (what, message) in std::mem::take(&mut *self.to_say.lock()) {
                let name = self.link().name();
                say(|| tracing::error!(%name, "the gate panicked; {what}: {message}"));
            }
        }
    }

    fn willing(&self, turn: Turn, now: Instant) -> bool {
        self.ask(true, |valve| valve.willing(turn, now))
    }

    fn in_passage(&self) -> InPassage<'_> {
        self.inner.in_passage()
    }

    fn released(&self, now: Instant) {
        self.ask((), |valve| valve.released(now));
    }

    fn completed(&self, now: Instant) -> bool {
        self.ask(true, |valve| valve.completed(now))
    }

    fn rolled_back(&self, now: Instant) {
        self.ask((), |valve| valve.rolled_back(now));
    }

    fn earliest(&self, turn: Turn, now: Instant) -> Option<Instant> {
        // Asked of one that was unwilling. If it broke just now, it is open at the next look.
        self.ask(Some(now), |valve| valve.earliest(turn, now))
    }

    fn category(&self) -> Category {
        self.read(Category::Memory, Valve::category)
    }

    fn capacity(&self) -> u64 {
        self.read(0, Valve::capacity)
    }

    fn in_use(&self) -> u64 {
        self.read(0, Valve::in_use)
    }

    fn indicator(&self, now: Instant) -> Option<String> {
        self.read(None, |valve| valve.indicator(now))
    }

    fn summary(&self, now: Instant) -> String {
        self.read(String::new(), |valve| valve.summary(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CountingGate, Demand};

    /// A gate that refuses, until it panics in a method of the test's choice.
    struct Faulty {
        link: AccountLink,
        panics: &'static str,
    }

    impl Faulty {
        fn at(&self, method: &str) {
            assert!(self.panics != method, "{method}");
        }
    }

    impl Valve for Faulty {
        fn link(&self) -> &AccountLink {
            &self.link
        }
        fn look(&self, _: Instant) {
            self.at("look");
        }
        fn willing(&self, _: Turn, _: Instant) -> bool {
            self.at("willing");
            matches!(self.panics, "released" | "completed" | "rolled_back")
        }
        fn released(&self, _: Instant) {
            self.at("released");
        }
        fn completed(&self, _: Instant) -> bool {
            self.at("completed");
            false
        }
        fn rolled_back(&self, _: Instant) {
            self.at("rolled_back");
        }
        fn earliest(&self, _: Turn, _: Instant) -> Option<Instant> {
            self.at("earliest");
            None
        }
        fn capacity(&self) -> u64 {
            1
        }
        fn in_use(&self) -> u64 {
            0
        }
        fn summary(&self, _: Instant) -> String {
            String::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_panics_in_any_method_stops_nobody() {
        for panics in ["look", "willing", "released", "completed", "rolled_back", "earliest"] {
            let link = AccountLink::new("faulty").unwrap();
            let admission = Admission::builder()
                .memory_gate(Arc::new(Faulty { link, panics }))
                .start()
                .unwrap();
            let gate = CountingGate::new("gate", 1).unwrap();
            for _ in 0..3 {
                let grant = admission.admit(Demand::new().permit(&gate)).await.unwrap();
                grant.rollback();
                drop(admission.admit(Demand::new().permit(&gate)).await.unwrap());
            }
            assert_eq!((gate.status().active, admission.queue_len()), (0, 0), "{panics}");
            admission.check();
        }
    }
}
