//! Who keeps an admission running.

use super::face::Shared;
use crate::sync::Arc;

/// What handles, futures and grants of one admission share.
///
/// Handles and futures keep the admission running; grants do not, but hold this too, so that a
/// future hands its own to its grant without counting anew. So the last *handle* is gone when all
/// that is left of the owners are grants. That is looked at under the lock, where grants are
/// counted. Two handles that go at one moment may each see the other: then the last grant ends it,
/// by dropping this.
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
    /// A handle that is none of the grants is about to go.
    pub(super) fn let_go(self: &Arc<Self>) {
        let left = || Arc::strong_count(self) - 1;
        if left() > 0 {
            self.shared.stop_when_only_grants_are_left(left);
        }
    }

    /// A future has become one of `grants` grants: one handle less.
    pub(super) fn has_become_grant(self: &Arc<Self>, grants: usize) {
        if Arc::strong_count(self) <= grants {
            self.shared.stop_when_only_grants_are_left(|| Arc::strong_count(self));
        }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
