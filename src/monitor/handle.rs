//! Who keeps an admission running.

use super::face::Shared;
use crate::sync::{Arc, step};

/// What handles, futures and grants of one admission share.
///
/// Handles and futures keep the admission running; grants do not, but hold this too, so that a
/// future hands its own to its grant without counting anew. So the last *handle* is gone when all
/// that is left of the owners are grants. That is looked at under the lock, where grants are
/// counted. A grant that goes at that very moment may still be seen as an owner when it is counted
/// no more: then the last grant ends it, by dropping this.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Every future is a handle, so nobody waits: this only ends the evaluator and lets the
        // accounts forget the admission.
        self.shared.stop_quietly();
    }
}

impl Handle {
    /// A handle that is none of the grants goes.
    ///
    /// It goes first and looks then. Of two that go at one moment, the one that gets the lock later
    /// sees the other gone; looking before, each might see the other still there.
    pub(super) fn let_go(this: Arc<Self>) {
        let (shared, owners) = (Arc::clone(&this.shared), Arc::downgrade(&this));
        step();
        drop(this);
        step();
        if owners.strong_count() > 0 {
            shared.stop_when_only_grants_are_left(|| owners.strong_count());
        }
    }

    /// A future has become one of `grants` grants: one handle less.
    pub(super) fn has_become_grant(self: &Arc<Self>, grants: usize) {
        step();
        if Arc::strong_count(self) <= grants {
            self.shared.stop_when_only_grants_are_left(|| Arc::strong_count(self));
        }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
