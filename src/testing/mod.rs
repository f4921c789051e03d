//! What tests of accounts need: the contract as a test, and an ear for announcements.

mod announcements;
mod contract;
mod draw;

#[cfg(test)]
pub(crate) use announcements::Announcements;
pub use contract::{AccountContract, ContractViolation, Law};
pub use draw::Draw;
