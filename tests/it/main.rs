//! The rules of the monitor, topic by topic, on a paused clock.

mod counters;
mod line;
mod support;
