//! What a subscriber hears when jobs come and go at once.

use admit::{EventKind, LimiterEvent};
use shuttle::future::block_on;

use crate::explore::explore;
use crate::place::{Place, is_over, join, start};

fn is_release(event: &LimiterEvent) -> bool {
    event.kind == EventKind::Released
}

#[test]
fn events_of_jobs_beside_one_another_come_in_order_and_none_stays_behind() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let mut heard = admission.subscribe();
        let jobs = [place.visit(&admission), place.visit(&admission)];
        join(jobs);
        // What is still on its way is with the evaluator. Were it with nobody, this would wait for ever.
        let mut events = Vec::new();
        while events.iter().filter(|event| is_release(event)).count() < 2 {
            events.push(block_on(heard.recv()).expect("no more than fit"));
        }
        let numbers = events.iter().map(|event| event.sequence);
        assert!(numbers.eq(1..=events.len() as u64), "{events:?}");
        let count = |kind| events.iter().filter(|event| event.kind == kind).count();
        let granted = count(EventKind::GrantedImmediate) + count(EventKind::GrantedFromHold);
        assert_eq!(granted, 2, "{events:?}");
        assert_eq!(count(EventKind::Held), count(EventKind::GrantedFromHold));
        is_over(&admission, 2);
        place.is_left();
    });
}
