use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::*;
use crate::testing::Announcements;

fn gate(capacity: u32) -> (Arc<CountingGate>, Instant) {
    (CountingGate::new("gate", capacity).unwrap(), Instant::now())
}

fn ask(n: u32, now: Instant) -> Ask {
    Ask::new(1, Amount::permits(n), now)
}

fn take(gate: &CountingGate, n: u32, now: Instant) -> Option<Charge> {
    let at = gate.try_take(&ask(n, now)).unwrap()?;
    Some(Charge::new(1, Amount::permits(n), at))
}

#[test]
fn takes_fit_up_to_the_capacity_and_come_back() {
    let (gate, now) = gate(3);
    let two = take(&gate, 2, now).unwrap();
    assert_eq!(two.at, now);
    assert!(gate.fits(&ask(1, now)).unwrap());
    assert!(!gate.fits(&ask(2, now)).unwrap());
    assert!(take(&gate, 2, now).is_none());
    assert_eq!(gate.in_use(now), 2);
    assert_eq!(gate.give(&two, now), Amount::permits(2));
    assert!(take(&gate, 3, now).is_some());
}

#[test]
fn the_reservation_is_set_aside() {
    let (gate, now) = gate(3);
    let reserving = |mine, ahead| gate.fits(&ask(mine, now).behind(Amount::permits(ahead)));
    assert!(reserving(1, 2).unwrap());
    assert!(!reserving(2, 2).unwrap());
    assert!(!reserving(0, 4).unwrap(), "not even nothing goes past a reservation that is short");
    assert!(!reserving(3, u32::MAX).unwrap(), "short beside the reservation is no refusal");
    assert!(gate.try_take(&ask(2, now).behind(Amount::permits(2))).unwrap().is_none());
}

#[test]
fn a_gate_names_no_instant_and_reads_no_clock() {
    let (gate, now) = gate(1);
    take(&gate, 1, now).unwrap();
    assert_eq!(gate.earliest_fit(&ask(1, now)), None);
    assert!(!gate.reads_clock());
    assert_eq!(gate.replenishment(), Replenishment::Release);
    assert_eq!(gate.category(), Category::Semaphore);
    let tracked = CountingGate::builder("gate", 1).track_activity(true).build().unwrap();
    assert!(!tracked.reads_clock());
}

#[test]
fn more_than_the_capacity_is_refused_on_the_check_and_on_the_take() {
    let (gate, now) = gate(2);
    for refusal in [gate.fits(&ask(3, now)).unwrap_err(), gate.try_take(&ask(3, now)).unwrap_err()]
    {
        assert!(refusal.text().contains("3 permits"), "{refusal}");
        assert!(refusal.text().contains("2 permits"), "{refusal}");
        assert_eq!(refusal.retry_instant(), None);
    }
    take(&gate, 2, now).unwrap();
    assert!(!gate.fits(&ask(2, now)).unwrap(), "short now is not impossible");
    assert_eq!(gate.in_use(now), 2);
}

#[test]
fn a_saturated_amount_is_refused_by_the_largest_gate() {
    let (gate, now) = gate(u32::MAX);
    let most = Amount { requests: u32::MAX, units: u64::MAX };
    for amount in [most, Amount::permits(u32::MAX), Amount { requests: 1, units: u64::MAX }] {
        assert!(gate.fits(&Ask::new(1, amount, now)).is_err());
        assert!(gate.try_take(&Ask::new(1, amount, now)).is_err());
    }
    take(&gate, u32::MAX - 1, now).unwrap();
    let behind = ask(u32::MAX - 1, now).behind(most);
    assert!(!gate.fits(&behind).unwrap());
}

#[test]
fn tokens_asked_of_a_gate_are_a_mistake() {
    let (gate, now) = gate(10);
    let refusal = gate.fits(&Ask::new(1, Amount::tokens(5), now)).unwrap_err();
    assert!(refusal.text().contains("5 tokens") && refusal.text().contains("mistake"), "{refusal}");
    assert!(gate.try_take(&Ask::new(1, Amount { requests: 2, units: 1 }, now)).is_err());
}

#[test]
fn nothing_at_all_is_granted_on_a_full_gate_and_debits_nothing() {
    let (gate, now) = gate(1);
    take(&gate, 1, now).unwrap();
    let none = take(&gate, 0, now).unwrap();
    assert_eq!(gate.in_use(now), 1);
    assert_eq!(gate.give(&none, now), Amount::NONE);
    assert!(!gate.fits(&ask(0, now).behind(Amount::permits(1))).unwrap());
}

#[test]
fn a_give_of_more_than_is_held_is_clamped() {
    let (gate, now) = gate(3);
    take(&gate, 2, now).unwrap();
    let too_much = Charge::new(1, Amount::permits(3), now);
    assert_eq!(gate.give(&too_much, now), Amount::permits(2));
    assert_eq!(gate.give(&too_much, now), Amount::NONE);
    assert_eq!(gate.status().available_permits, 3);
}

#[test]
fn a_reconcile_leaves_a_permit_as_it_is() {
    let (gate, now) = gate(1);
    let charge = take(&gate, 1, now).unwrap();
    assert_eq!(gate.reconcile(&charge, 0, now), Amount::permits(1));
    assert_eq!(gate.give(&charge, now), Amount::permits(1));
    assert_eq!(gate.in_use(now), 0);
}

#[test]
fn zero_capacities_are_named_and_change_nothing() {
    let error = CountingGate::new("gate", 0).unwrap_err();
    assert_eq!((error.field, &*error.value), ("capacity", "0"));
    assert_eq!(CountingGate::new("", 1).unwrap_err().field, "name");
    let (gate, _) = gate(4);
    let heard = Announcements::of(gate.link());
    assert_eq!(gate.resize(0).unwrap_err().field, "capacity");
    assert_eq!(gate.status().max_concurrent, 4);
    assert!(heard.take().is_nothing());
}

#[test]
fn a_resize_announces_what_it_changed() {
    let (gate, _) = gate(4);
    let heard = Announcements::of(gate.link());
    gate.resize(5).unwrap();
    let grown = heard.take();
    assert!(grown.grew && !grown.may_refuse);
    gate.resize(5).unwrap();
    assert!(heard.take().is_nothing());
    gate.resize(4).unwrap();
    let shrunk = heard.take();
    assert!(shrunk.may_refuse && !shrunk.grew);
}

#[test]
fn a_shrunk_gate_grants_nothing_until_below_its_new_capacity() {
    let (gate, now) = gate(10);
    let held: Vec<Charge> = (0..10).map(|_| take(&gate, 1, now).unwrap()).collect();
    gate.resize(2).unwrap();
    assert_eq!(gate.status().available_permits, 0);
    assert_eq!(gate.status().active, 10);
    for charge in &held[..8] {
        gate.give(charge, now);
        assert!(!gate.fits(&ask(1, now)).unwrap());
    }
    gate.give(&held[8], now);
    assert!(take(&gate, 1, now).is_some());
    assert!(take(&gate, 1, now).is_none());
}

#[test]
fn an_amount_above_a_shrunk_capacity_is_refused_naming_both() {
    let (gate, now) = gate(10);
    take(&gate, 10, now).unwrap();
    assert!(!gate.fits(&ask(8, now)).unwrap());
    gate.resize(4).unwrap();
    let refusal = gate.fits(&ask(8, now)).unwrap_err();
    assert!(refusal.text().contains('8') && refusal.text().contains('4'), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn activity_is_tracked_only_when_asked_for() {
    let silent = CountingGate::new("gate", 1).unwrap();
    take(&silent, 1, Instant::now()).unwrap();
    assert_eq!(silent.status().last_activity, None);

    let gate = CountingGate::builder("gate", 2).track_activity(true).build().unwrap();
    let start = Instant::now();
    assert_eq!(gate.status().last_activity, None);
    let charge = take(&gate, 1, start).unwrap();
    assert_eq!(gate.status().last_activity, Some(start));
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(take(&gate, 2, start).is_none());
    assert_eq!(gate.status().last_activity, Some(start), "a take that failed is none");
    gate.give(&charge, start);
    assert_eq!(gate.status().last_activity, Some(start + Duration::from_secs(3)));
}

#[test]
fn threads_never_overdraw_a_gate_and_lose_no_permit() {
    let (gate, now) = gate(10);
    let busy = AtomicU32::new(0);
    let (rounds, resizes) = if cfg!(miri) { (100, 20) } else { (20_000, 1_000) };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (gate, busy) = (&gate, &busy);
            scope.spawn(move || {
                for round in 0..rounds {
                    let n = 1 + (thread + round) % 4;
                    if let Some(charge) = take(gate, n, now) {
                        assert!(busy.fetch_add(n, SeqCst) + n <= 10);
                        busy.fetch_sub(n, SeqCst);
                        assert_eq!(gate.give(&charge, now), charge.amount);
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..resizes {
                gate.resize(7).unwrap();
                gate.resize(10).unwrap();
            }
        });
    });
    assert_eq!(gate.status().active, 0);
    assert_eq!(gate.status().max_concurrent, 10);
}

/// The two sides of the lost wake-up, as the monitor plays them: publish, then ask; give, then look.
#[test]
fn a_give_that_an_ask_did_not_see_sees_what_was_published_before_the_ask() {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    for _ in 0..if cfg!(miri) { 50 } else { 2_000 } {
        let (gate, now) = gate(1);
        let charge = take(&gate, 1, now).unwrap();
        let (waiting, barrier) = (AtomicBool::new(false), Barrier::new(2));
        let (fits, seen) = std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                barrier.wait();
                waiting.store(true, Relaxed);
                gate.fits(&ask(1, now)).unwrap()
            });
            barrier.wait();
            gate.give(&charge, now);
            let seen = waiting.load(Relaxed);
            (asker.join().unwrap(), seen)
        });
        assert!(fits || seen, "parked beside a free permit");
    }
}
