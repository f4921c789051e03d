//! The rules of the monitor, topic by topic, on a paused clock.

mod asks;
mod breaches;
mod circuits;
mod counters;
mod crossed;
mod demands;
mod ends;
mod events;
mod exact;
mod executors;
mod grants;
mod internals;
mod line;
mod overdue;
mod passages;
mod races;
mod snapshot;
mod support;
mod texts;
