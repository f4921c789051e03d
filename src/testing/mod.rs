//! What tests of accounts, providers and memory need: the contracts as tests, an ear for
//! announcements, and a memory that says what it is told.

mod announcements;
mod contract;
mod draw;
mod memory;
mod provider;

#[cfg(test)]
pub(crate) use announcements::Announcements;
pub use contract::{AccountContract, ContractViolation, Law};
pub use draw::Draw;
pub use memory::ScriptedMemory;
pub use provider::{Clause, ContractBreach, ProviderContract, ProviderFixture};
