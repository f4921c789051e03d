//! The rules of the monitor, topic by topic, on a paused clock.

mod line;
mod support;
