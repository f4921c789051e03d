//! From what a job needs to done and settled.

mod ledger;
mod spend;

pub use ledger::{SpendLedger, SpendStatus};
pub use spend::{Priced, Reservation, SpendGate, SpendRefusal};
