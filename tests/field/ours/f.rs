//! F. Impossible and zero amounts: what is refused says what, whatever stands in the way.

use admit::{Account, Admission, AdmitError, Amount, Demand, TryAdmitError};

use super::{slots, window};
use crate::support::*;

/// The text of a refusal by this account.
#[track_caller]
fn refused_by(admission: &Admission, demand: Demand, account: &dyn Account) -> String {
    match admission.try_admit(demand) {
        Err(TryAdmitError::Admit(error @ AdmitError::Refused { .. })) => {
            let text = error.to_string();
            assert!(text.contains(&**account.link().name()), "{text}");
            assert!(!error.is_retryable() && error.retry_at().is_none(), "{text}");
            text
        }
        other => panic!("it should be refused: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn f_more_than_a_gate_has_is_refused_behind_a_line_as_well() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(2);
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let line: Vec<_> = (0..5).map(|_| parked(&admission, permits(&g, 2))).collect();
    let text = refused_by(&admission, permits(&g, 3), &*g);
    assert!(text.contains('3') && text.contains('2'), "{text}");
    assert_eq!(admission.queue_len(), 5);
    drop((line, held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_more_requests_than_a_minute_allows_are_refused_as_requests() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(5, 1_000);
    let wanted = Amount { requests: 6, units: 10 };
    let text = refused_by(&admission, Demand::new().add(&b, wanted), &*b);
    assert!(text.contains("6 requests") && text.contains('5'), "{text}");
    assert_eq!((b.status().available_requests, b.status().available_tokens), (5, 1_000));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_more_than_a_window_ever_holds_is_refused_and_exactly_that_is_granted() {
    let admission = started();
    let watch = Observer::of(&admission);
    let w = window(4, secs(1));
    let text = refused_by(&admission, slots(&w, 5), &*w);
    assert!(text.contains('5') && text.contains('4'), "{text}");
    drop(admission.try_admit(slots(&w, 4)).unwrap());
    assert_eq!(w.status().available, 0);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_exactly_all_of_everything_is_granted() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b, w) = (gate(7), bucket(3, 500), window(2, secs(1)));
    let all = slots(&w, 2).add(&b, Amount { requests: 3, units: 500 }).permits(&g, 7);
    let grant = admission.try_admit(all.clone()).unwrap();
    assert_short_of(&would_wait(admission.try_admit(all)), &[&*w, &*b, &*g]);
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_tokens_of_a_gate_are_a_mistake_and_told_as_one() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(100);
    let text = refused_by(&admission, Demand::new().tokens(&g, 40), &*g);
    assert!(text.contains("40"), "{text}");
    // One token is as good as one permit.
    drop(admission.try_admit(Demand::new().tokens(&g, 1)).unwrap());
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_an_impossible_part_refuses_the_whole_before_anything_is_debited() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b, w) = (gate(2), bucket(10, 100), window(2, secs(1)));
    for demand in [
        slots(&w, 1).permits(&g, 1).tokens(&b, 101),
        tokens_of(&b, 101).permits(&g, 1).permits(&w, 1),
    ] {
        refused_by(&admission, demand, &*b);
        assert_eq!((g.status().active, w.status().available), (0, 2));
        assert_eq!((b.status().available_tokens, b.status().available_requests), (100, 10));
    }
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_an_impossible_part_refuses_though_another_part_is_short() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b) = (gate(1), bucket(10, 100));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    for demand in [permits(&g, 1).tokens(&b, 101), tokens_of(&b, 101).permit(&g)] {
        refused_by(&admission, demand, &*b);
    }
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_a_full_line_still_tells_the_impossible_from_the_short() {
    let admission = Admission::builder().max_waiting(1).start().unwrap();
    let watch = Observer::of(&admission);
    let g = gate(2);
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let waiter = parked(&admission, permits(&g, 1));
    let error = admission.admit(permits(&g, 3)).await.unwrap_err();
    assert!(matches!(error, AdmitError::Refused { .. }), "{error}");
    let error = admission.admit(permits(&g, 2)).await.unwrap_err();
    assert!(matches!(error, AdmitError::QueueFull { waiting: 1, limit: 1 }), "{error}");
    drop((waiter, held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_the_largest_gate_counts_to_its_end_and_not_round_it() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(u32::MAX);
    let most = admission.try_admit(permits(&g, u32::MAX - 1)).unwrap();
    let last = admission.try_admit(permits(&g, 1)).unwrap();
    assert_short_of(&would_wait(admission.try_admit(permits(&g, 1))), &[&*g]);
    assert_short_of(&would_wait(admission.try_admit(permits(&g, u32::MAX - 1))), &[&*g]);
    assert_eq!(g.status().available_permits, 0);
    drop((most, last));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f_a_request_of_no_tokens_needs_the_request_and_no_token() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = drained_bucket(&admission, 2, 100);
    drop(admission.try_admit(tokens_of(&b, 0)).unwrap());
    assert_eq!(b.status().available_requests, 0);
    assert_short_of(&would_wait(admission.try_admit(tokens_of(&b, 0))), &[&*b]);
    // Nothing at all needs neither.
    drop(admission.try_admit(Demand::new().add(&b, Amount::NONE)).unwrap());
    watch.all_gone();
}
