//! Numbers for askers, unique in the process, handed out without contention.

use crate::sync::{Ordering, StaticU64};

/// A supply of ids. Each admission takes a block at a time from the process's counter, so that the
/// common step is an addition under a lock it has anyway.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    next: u64,
    end: u64,
}

impl Ids {
    const BLOCK: u64 = 1 << 16;

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        static BLOCKS: StaticU64 = StaticU64::new(0);
        if self.next == self.end {
            // The first block begins at BLOCK, so no id is ever zero.
            let block = BLOCKS.fetch_add(1, Ordering::Relaxed) + 1;
            self.next = block.wrapping_mul(Self::BLOCK);
            self.end = self.next.wrapping_add(Self::BLOCK);
        }
        let id = self.next;
        self.next += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_never_zero_and_never_repeat_across_supplies() {
        let (mut one, mut other) = (Ids::default(), Ids::default());
        let mut seen = HashSet::from([0]);
        for _ in 0..=Ids::BLOCK {
            assert!(seen.insert(one.next()));
            assert!(seen.insert(other.next()));
        }
    }
}
