//! The limits that come with the crate: each an [`Account`](crate::Account).

mod circuit;
mod stamps;
mod throttle;
mod window;

pub use circuit::CircuitState;
pub use window::{ElasticWindow, ElasticWindowBuilder, ElasticWindowStatus, WindowConfig};
