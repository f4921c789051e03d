//! Helpers for tests of what is built on admission.

mod memory;

pub use memory::ScriptedMemory;
