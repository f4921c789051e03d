//! What tests of accounts and of memory need: the contract as a test, an ear for announcements, and
//! a memory that says what it is told.

mod announcements;
mod contract;
mod draw;
mod memory;

#[cfg(test)]
pub(crate) use announcements::Announcements;
pub use contract::{AccountContract, ContractViolation, Law};
pub use draw::Draw;
pub use memory::ScriptedMemory;
