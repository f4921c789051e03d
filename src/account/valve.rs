//! The valve: what a job meets before any account, because it cannot be booked.

use tokio::time::Instant;

use super::{AccountLink, InPassage};
use crate::events::Category;

/// How the asking line stands, as a [`Valve`] is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// The line drains: somebody was refused, and until that is over jobs go one at a time.
    pub draining: bool,
    /// A job of this line completed since the line's last release, so the next need not wait.
    pub earned: bool,
}

impl Turn {
    /// The turn of a line that drains or not, with a completion in hand or not.
    #[must_use]
    pub const fn new(draining: bool, earned: bool) -> Self {
        Self { draining, earned }
    }
}

/// A limit that is watched rather than booked: memory.
///
/// The monitor asks it before any account, at every attempt of a demand with entries. Whether a
/// line drains is that line's own state and comes in as a [`Turn`]; one valve may serve several
/// admissions.
///
/// Every method but [`look`](Self::look) is called under the admission's lock: no blocking, no
/// logging, no call into an admission.
pub trait Valve: Send + Sync + 'static {
    /// The embedded link: the name, and how many wait on the valve.
    fn link(&self) -> &AccountLink;

    /// Refreshes what the answers are based on, where that is due. Called without any lock, before
    /// a decision; it may read a file.
    fn look(&self, now: Instant);

    /// Whether one more job may go now. Changes nothing.
    fn willing(&self, turn: Turn, now: Instant) -> bool;

    /// One job with entries was granted.
    fn released(&self, now: Instant);

    /// One job with entries completed; answers whether that earns the line a turn.
    fn completed(&self, now: Instant) -> bool;

    /// One grant was rolled back: its work never happened. No completion.
    fn rolled_back(&self, now: Instant);

    /// When it is worth asking again, asked after it was unwilling; a due instant in the past is
    /// answered as it is. It may be willing again by then, where it was looked at on another thread
    /// meanwhile: then that is now, or earlier.
    fn earliest(&self, turn: Turn, now: Instant) -> Option<Instant>;

    /// What kind of limit this is, for events and snapshots.
    fn category(&self) -> Category {
        Category::Memory
    }

    /// The limit, in bytes.
    fn capacity(&self) -> u64;

    /// What is used of it, in bytes.
    fn in_use(&self) -> u64;

    /// A word about an unusual state; `None` when nominal.
    fn indicator(&self, now: Instant) -> Option<String> {
        let _ = now;
        None
    }

    /// One line naming the numbers.
    fn summary(&self, now: Instant) -> String;

    /// Whether it is asked in a passage. For this crate's own: nobody else can name what it answers.
    #[doc(hidden)]
    fn in_passage(&self) -> InPassage<'_> {
        InPassage::Never
    }
}
