//! Sends events once the lock is free, in the order they were decided.

use std::collections::VecDeque;

use tokio::sync::broadcast;

use crate::caught::contain;
use crate::events::LimiterEvent;
use crate::sync::Mutex;

/// Events on their way to subscribers.
///
/// Events are queued under the admission's lock, so they stand in the order they were decided.
/// Whoever gets the `sending` try-lock sends what there is; who does not leaves it to the one who
/// has it, and that one looks again after letting go. So the last event is never left behind:
/// either the sender's second look finds it, or its owner gets the lock.
#[derive(Debug)]
pub(crate) struct Publisher {
    channel: broadcast::Sender<LimiterEvent>,
    queue: Mutex<Queue>,
    sending: Mutex<()>,
    bound: usize,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<LimiterEvent>,
    dropped: u64,
}

impl Publisher {
    /// The least bound of the queue, however small the channel: a long pass decides much at once.
    const LEAST_BOUND: usize = 65_536;

    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            channel: broadcast::Sender::new(capacity),
            queue: Mutex::default(),
            sending: Mutex::new(()),
            bound: capacity.max(Self::LEAST_BOUND),
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<LimiterEvent> {
        self.channel.subscribe()
    }

    /// Called under the admission's lock. The queue is bounded: the oldest goes, and is counted.
    pub(crate) fn enqueue(&self, events: &mut Vec<LimiterEvent>) {
        let mut queue = self.queue.lock();
        queue.events.extend(events.drain(..));
        while queue.events.len() > self.bound {
            queue.events.pop_front();
            queue.dropped += 1;
        }
        drop(queue);
    }

    /// Called with no lock held.
    pub(crate) fn publish(&self) {
        loop {
            let Some(sending) = self.sending.try_lock() else { return };
            loop {
                let batch = std::mem::take(&mut self.queue.lock().events);
                if batch.is_empty() {
                    break;
                }
                for event in batch {
                    // Nobody listening any more is no failure of ours.
                    contain("a subscriber's waker", || drop(self.channel.send(event)));
                }
            }
            drop(sending);
            if self.queue.lock().events.is_empty() {
                return;
            }
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }
}
