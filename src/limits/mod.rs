//! The limits that come with the crate: each an [`Account`](crate::Account).

mod throttle;
