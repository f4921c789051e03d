//! M. Bounds, shutdown, events.

use admit::{Admission, AdmitError, EventKind};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn m_a_place_in_a_full_line_is_free_as_soon_as_somebodys_time_is_up() {
    let admission = Admission::builder().max_waiting(2).start().unwrap();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut first = park(admission.admit(permits(&g, 1)).within(secs(1)));
    let mut second = parked(&admission, permits(&g, 1));
    let full = admission.admit(permits(&g, 1)).await.unwrap_err();
    assert!(matches!(full, AdmitError::QueueFull { waiting: 2, limit: 2 }), "{full}");
    pass_time(secs(1)).await;
    let mut third = parked(&admission, permits(&g, 1));
    assert!(matches!(landed(&mut first), Err(AdmitError::TimedOut { .. })));
    drop(held);
    settle().await;
    drop(granted(&mut second));
    settle().await;
    drop(granted(&mut third));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m_who_listens_late_hears_the_end_of_what_began_before() {
    let admission = started();
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&g, 1));
    let mut events = admission.subscribe();
    drop(held);
    settle().await;
    drop(granted(&mut waiter));
    let mut kinds = Vec::new();
    while let Ok(event) = events.try_recv() {
        kinds.push((event.kind, event.waiting));
    }
    let told =
        [(EventKind::Released, 1), (EventKind::GrantedFromHold, 0), (EventKind::Released, 0)];
    assert_eq!(kinds, told);
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn m_a_second_stop_is_none_and_everything_held_still_comes_back() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b) = (gate(2), bucket(10, 100));
    let grants: Vec<_> =
        (0..2).map(|_| admission.try_admit(permits(&g, 1).tokens(&b, 50)).unwrap()).collect();
    let mut waiter = parked(&admission, permits(&g, 1));
    admission.stop();
    admission.stop();
    assert!(matches!(landed(&mut waiter), Err(AdmitError::ShutDown)));
    assert!(grants[0].rollback() && grants[1].release());
    assert_eq!((g.status().active, b.status().available_tokens), (0, 50));
    admission.drained().await;
    drop(grants);
    watch.all_gone();
}
