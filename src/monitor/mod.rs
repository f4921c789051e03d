//! The monitor: one line, one lock, one evaluator.
//!
//! `core` and the files it is spread over (`arrive`, `pass`, `settle`, `teller`, `look_in`) are the engine:
//! state and rules, with no lock and no clock. `face` locks, calls the engine, unlocks, and then
//! does what the engine left in the `outbox`.

mod admission;
mod admit;
mod arrive;
mod asking;
mod builder;
mod contained;
mod core;
mod counters;
mod evaluator;
mod face;
mod hand_off;
mod handle;
mod ids;
mod index;
mod keep;
mod line;
mod look;
mod look_in;
mod outbox;
mod overdue;
mod pass;
mod passage;
mod publisher;
mod settle;
mod stand;
mod taken;
mod tally;
mod teller;
mod tree;

pub use admission::Admission;
pub use admit::{Admit, AdmitRef};
pub use builder::AdmissionBuilder;
#[cfg(any(test, feature = "testing"))]
pub use counters::Counters;
pub use keep::{Borrowed, Keep, Owned};

pub(crate) use core::Settlement;
pub(crate) use line::{Hold, Landing, Limit};
pub(crate) use settle::panic_line;
pub(crate) use taken::{Standing, Taken};
