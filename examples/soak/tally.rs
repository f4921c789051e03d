//! How jobs ended, and what the events told.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use admit::{EventKind, LimiterEvent};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

/// How a job ended, as far as it came to tell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Done,
    RolledBack,
    WouldWait,
    Dropped,
    Cancelled,
    TimedOut,
    ShutDown,
    QueueFull,
    Refused,
}

const NAMES: [&str; 9] = [
    "done",
    "rolled back",
    "would wait",
    "dropped",
    "cancelled",
    "timed out",
    "shut down",
    "queue full",
    "refused",
];

#[derive(Debug, Default)]
pub(crate) struct Tally {
    ends: [AtomicU64; NAMES.len()],
}

impl Tally {
    pub(crate) fn count(&self, end: End) {
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (end, name)) in self.ends.iter().zip(NAMES).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{} {name}", end.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}

/// Every hold that was told, and every end of one.
#[derive(Debug)]
pub(crate) struct Ear {
    events: Receiver<LimiterEvent>,
    pub(crate) heard: u64,
    pub(crate) lost: u64,
    pub(crate) held: u64,
    pub(crate) ended: u64,
}

impl Ear {
    pub(crate) const fn new(events: Receiver<LimiterEvent>) -> Self {
        Self { events, heard: 0, lost: 0, held: 0, ended: 0 }
    }

    pub(crate) fn listen(&mut self) {
        loop {
            match self.events.try_recv() {
                Ok(event) => {
                    self.heard += 1;
                    let was_held = event.wait.is_some();
                    self.held += u64::from(event.kind == EventKind::Held);
                    self.ended += u64::from(was_held && event.kind != EventKind::Held);
                }
                Err(TryRecvError::Lagged(lost)) => self.lost += lost,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }
}
