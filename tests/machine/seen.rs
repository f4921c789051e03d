//! What the cases met: a run in which nothing happened proves nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::model::{Life, Model};
use crate::world::World;

static SEEN: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

fn count(what: &'static str, n: u64) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    *seen.entry(what).or_default() += n;
}

/// A case came to its end.
pub(crate) fn add(model: &Model, world: &World) {
    count("cases", 1);
    count("granted", world.ledger.ends.granted);
    count("granted from the line", world.ledger.from_hold);
    for (reason, n) in &world.ledger.reasons {
        count(reason, *n);
    }
    count("not watched", u64::from(!world.is_watched()));
    count("closed", u64::from(world.is_closed));
    count("stopped", u64::from(model.life == Life::Stopped));
    count("runtimes lost", u64::from(model.lost));
}

/// Each of it happened, the rarest in one case of a hundred.
pub(crate) fn check(cases: u64) {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    println!("{seen:?}");
    for what in [
        "granted",
        "granted from the line",
        "cancelled",
        "timed out",
        "refused",
        "queue full",
        "shut down",
        "aborted",
        "stopped",
        "runtimes lost",
    ] {
        let n = seen.get(what).copied().unwrap_or_default();
        assert!(n >= cases / 100, "too seldom, {what}: {seen:?}");
    }
    assert!(cases < 1_000 || seen.contains_key("closed"), "no defect ever: {seen:?}");
}
