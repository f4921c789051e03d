//! Holds the monitor against the plain walk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use admit::{Account, EventKind, MemoryGate};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::time::Instant;

use crate::world::{Waiting, World};

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

impl World {
    pub(crate) fn listen(&mut self) -> Result<(), String> {
        loop {
            match self.events.try_recv() {
                Ok(event) => {
                    let is_grant = matches!(
                        event.kind,
                        EventKind::GrantedImmediate | EventKind::GrantedFromHold
                    );
                    if is_grant {
                        let job = event.job.as_ref().expect("every job has a label");
                        let job = job.id.parse().expect("its number");
                        if self.seen.insert(job) {
                            self.granted.push(job);
                        }
                    }
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(()),
                Err(TryRecvError::Lagged(lost)) => return Err(format!("{lost} events were lost")),
            }
        }
    }

    /// Who was granted, in which order.
    pub(crate) fn compare_grants(&mut self) -> Result<(), String> {
        let (is, right) = (&self.granted, &self.plain.granted);
        ensure!(is == right, "granted, in this order: {is:?}, should be {right:?}");
        self.granted.clear();
        self.plain.granted.clear();
        Ok(())
    }

    /// The line, who was woken, and every account.
    pub(crate) fn compare_all(&self) -> Result<(), String> {
        self.admission.check();
        let (is, right) = (self.admission.queue_len(), self.plain.len());
        ensure!(is == right, "{is} wait, should be {right}");
        for Waiting { job, wakes, .. } in &self.waiting {
            let is = wakes.0.load(Ordering::Relaxed);
            let right = u32::from(!self.plain.is_waiting(*job));
            ensure!(is == right, "job {job} was woken {is} times, should be {right}");
        }
        let now = Instant::now();
        ensure!(now == self.plain.now, "the clocks differ");
        for (account, twin) in self.accounts.iter().zip(&self.plain.accounts) {
            let read = |account: &Arc<dyn Account>| {
                let levels = (account.capacity(), account.in_use(now));
                (levels, account.indicator(now), account.summary(now))
            };
            let (is, right) = (read(account), read(twin));
            ensure!(is == right, "{}: {is:?}, should be {right:?}", account.link().name());
        }
        if let (Some((gate, _)), Some(twin)) = (&self.memory, &self.plain.memory) {
            let read = |gate: &MemoryGate| {
                let status = gate.status();
                (status.used, status.floor, status.pacing, status.growth_penalty)
            };
            let (is, right) = (read(gate), read(twin));
            ensure!(is == right, "memory: {is:?}, should be {right:?}");
        }
        Ok(())
    }
}
