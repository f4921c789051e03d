//! The limits that come with the crate: each an [`Account`](crate::Account).

mod router;

pub use router::Router;
