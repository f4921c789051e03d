//! The account: one limit, as the monitor sees it.

mod ask;
mod contract;
mod inbox;
mod link;
mod refusal;
mod valve;

pub use ask::{Ask, Charge, Replenishment};
pub use contract::{Account, AsAccount};
pub(crate) use inbox::{Inbox, Marks};
pub(crate) use link::Nature;
pub use link::{AccountId, AccountLink};
pub use refusal::Refusal;
pub use valve::{Turn, Valve};
