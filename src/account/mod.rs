//! The account: one limit, as the monitor sees it.

mod ask;
mod contract;
mod door;
mod inbox;
mod link;
mod permits;
mod refusal;
mod valve;

pub use ask::{Ask, Charge, Replenishment};
pub use contract::{Account, AsAccount};
pub(crate) use door::{Count, Door, InPassage};
pub(crate) use inbox::{Inbox, Marks};
pub(crate) use link::Nature;
pub use link::{AccountId, AccountLink};
pub(crate) use permits::Permits;
pub(crate) use permits::State as PermitState;
pub use refusal::Refusal;
pub use valve::{Turn, Valve};
