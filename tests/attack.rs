//! Attacks on the monitor: what a hostile caller, account or moment must not break.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use admit::{
    Account, AccountLink, Admission, Admit, AdmitError, Amount, Ask, Category, Charge,
    CountingGate, Demand, Grant, Refusal, Replenishment, Turn, Valve,
};
use tokio::time::Instant;
use tokio_test::task::spawn;

fn gate(n: u32) -> Arc<CountingGate> {
    CountingGate::new("gate", n).unwrap()
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// A waker that drops a future when it is woken.
struct DropsItsFuture(Mutex<Option<Pin<Box<Admit>>>>);

impl Wake for DropsItsFuture {
    fn wake(self: Arc<Self>) {
        let future = self.0.lock().unwrap().take();
        drop(future);
    }
}

#[test]
fn a_future_dropped_by_its_waker_inside_a_try_admit_does_not_stop_the_admission() {
    let admission = Admission::builder().build().unwrap();
    let gate = gate(2);
    let held = admission.try_admit(Demand::new().permits(&gate, 2)).unwrap();
    let waker = Arc::new(DropsItsFuture(Mutex::new(None)));
    let mut admit = Box::pin(admission.admit(Demand::new().permit(&gate)));
    let task = Waker::from(Arc::clone(&waker));
    assert!(admit.as_mut().poll(&mut Context::from_waker(&task)).is_pending());
    *waker.0.lock().unwrap() = Some(admit);
    drop(held);
    // Finishes the pending pass, and so wakes the waiter, before it is granted itself.
    let grant = admission.try_admit(Demand::new().permit(&gate)).unwrap();
    assert!(waker.0.lock().unwrap().is_none(), "it was woken");
    drop(grant);
    drop(admission.try_admit(Demand::new().permit(&gate)).expect("a handle is left: it goes on"));
}

#[test]
fn a_handle_dropped_beside_a_try_admit_does_not_stop_the_admission() {
    let gate = gate(4);
    for _ in 0..3_000 {
        let admission = Admission::builder().build().unwrap();
        let other = admission.clone();
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                drop(other);
            });
            barrier.wait();
            let _held: Vec<Grant> = (0..4)
                .map(|_| admission.try_admit(Demand::new().permit(&gate)).expect("it runs"))
                .collect();
        });
        drop(admission.try_admit(Demand::new().permit(&gate)).expect("a handle is left"));
    }
}

/// A valve that answers from a script, and then always yes.
struct Scripted {
    link: AccountLink,
    answers: Mutex<Vec<bool>>,
}

impl Scripted {
    fn new() -> Arc<Self> {
        Arc::new(Self { link: AccountLink::new("memory").unwrap(), answers: Mutex::default() })
    }

    fn says(&self, answers: &[bool]) {
        *self.answers.lock().unwrap() = answers.iter().rev().copied().collect();
    }
}

impl Valve for Scripted {
    fn link(&self) -> &AccountLink {
        &self.link
    }
    fn look(&self, _: Instant) {}
    fn willing(&self, _: Turn, _: Instant) -> bool {
        self.answers.lock().unwrap().pop().unwrap_or(true)
    }
    fn released(&self, _: Instant) {}
    fn completed(&self, _: Instant) -> bool {
        true
    }
    fn rolled_back(&self, _: Instant) {}
    fn earliest(&self, _: Turn, now: Instant) -> Option<Instant> {
        Some(now)
    }
    fn capacity(&self) -> u64 {
        1
    }
    fn in_use(&self) -> u64 {
        0
    }
    fn summary(&self, _: Instant) -> String {
        String::new()
    }
}

#[tokio::test(start_paused = true)]
async fn memory_that_changes_its_mind_anywhere_in_a_pass_strands_nobody() {
    // Other threads refresh the reading at any moment, so two questions of one pass may be answered
    // differently.
    for at in 0..10 {
        for len in 1..4 {
            let valve = Scripted::new();
            let admission = Admission::builder().memory_gate(valve.clone()).start().unwrap();
            let (x, y) = (gate(1), gate(1));
            let held_x = admission.try_admit(Demand::new().permit(&x)).unwrap();
            let held_y = admission.try_admit(Demand::new().permit(&y)).unwrap();
            let mut head = spawn(admission.admit(Demand::new().permit(&x)));
            let mut next = spawn(admission.admit(Demand::new().permit(&y)));
            let mut last = spawn(admission.admit(Demand::new().permit(&y)));
            assert!(head.poll().is_pending());
            assert!(next.poll().is_pending());
            assert!(last.poll().is_pending());
            settle().await;
            let script: Vec<bool> = (0..at).map(|_| true).chain((0..len).map(|_| false)).collect();
            valve.says(&script);
            drop(held_x);
            drop(held_y);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let Poll::Ready(Ok(_head)) = head.poll() else { panic!("head, {at} {len}") };
            let Poll::Ready(Ok(next)) = next.poll() else { panic!("next, {at} {len}") };
            drop(next);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let Poll::Ready(Ok(_last)) = last.poll() else { panic!("last, {at} {len}") };
            admission.check();
        }
    }
}

/// A valve with so many places.
struct Places {
    link: AccountLink,
    most: u32,
    used: AtomicU32,
}

impl Places {
    fn new(most: u32) -> Arc<Self> {
        let link = AccountLink::new("places").unwrap();
        Arc::new(Self { link, most, used: AtomicU32::new(0) })
    }
}

impl Valve for Places {
    fn link(&self) -> &AccountLink {
        &self.link
    }
    fn look(&self, _: Instant) {}
    fn willing(&self, _: Turn, _: Instant) -> bool {
        self.used.load(Ordering::SeqCst) < self.most
    }
    fn released(&self, _: Instant) {
        self.used.fetch_add(1, Ordering::SeqCst);
    }
    fn completed(&self, _: Instant) -> bool {
        self.used.fetch_sub(1, Ordering::SeqCst);
        true
    }
    fn rolled_back(&self, _: Instant) {
        self.used.fetch_sub(1, Ordering::SeqCst);
    }
    fn earliest(&self, _: Turn, now: Instant) -> Option<Instant> {
        Some(now + Duration::from_secs(1))
    }
    fn capacity(&self) -> u64 {
        u64::from(self.most)
    }
    fn in_use(&self) -> u64 {
        u64::from(self.used.load(Ordering::SeqCst))
    }
    fn summary(&self, _: Instant) -> String {
        String::new()
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_with_accounts_of_its_own_overtakes_nobody_at_the_memory_gate() {
    let valve = Places::new(1);
    let admission = Admission::builder().memory_gate(valve).start().unwrap();
    let (x, y) = (gate(1), gate(1));
    let held = admission.try_admit(Demand::new().permit(&x)).unwrap();
    let mut head = spawn(admission.admit(Demand::new().permit(&x)));
    assert!(head.poll().is_pending());
    settle().await;
    drop(held);
    // The pass has not run yet.
    assert!(admission.try_admit(Demand::new().permit(&y)).is_err(), "the head goes first");
    settle().await;
    assert!(matches!(head.poll(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_overtakes_nobody_who_could_go_but_was_not_looked_at_yet() {
    let valve = Places::new(2);
    let admission = Admission::builder().memory_gate(valve).start().unwrap();
    let (x, y) = (gate(1), gate(1));
    // Not settled by this admission: the valve has a place left all along.
    let elsewhere = Admission::builder().build().unwrap();
    let held = elsewhere.try_admit(Demand::new().permit(&x)).unwrap();
    let _other = admission.try_admit(Demand::new().permit(&gate(1))).unwrap();
    let mut head = spawn(admission.admit(Demand::new().permit(&x)));
    assert!(head.poll().is_pending());
    settle().await;
    drop(held);
    assert!(admission.try_admit(Demand::new().permit(&y)).is_err(), "the head goes first");
    settle().await;
    assert!(matches!(head.poll(), Poll::Ready(Ok(_))));
}

/// A gate that is hostile in one way.
struct Hostile {
    link: AccountLink,
    free: AtomicU32,
    announces: AtomicBool,
    asked: AtomicUsize,
}

impl Hostile {
    fn new(free: u32) -> Arc<Self> {
        Arc::new(Self {
            link: AccountLink::new("hostile").unwrap(),
            free: AtomicU32::new(free),
            announces: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        })
    }

    fn shout(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.announces.load(Ordering::SeqCst) {
            self.link.grew();
            self.link.may_refuse();
        }
    }
}

impl Account for Hostile {
    fn link(&self) -> &AccountLink {
        &self.link
    }
    fn category(&self) -> Category {
        Category::Other("hostile".into())
    }
    fn capacity(&self) -> u64 {
        self.shout();
        10
    }
    fn in_use(&self, _: Instant) -> u64 {
        self.shout();
        0
    }
    fn summary(&self, _: Instant) -> String {
        self.shout();
        String::new()
    }
    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }
    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.shout();
        Ok(ask.total().requests <= self.free.load(Ordering::SeqCst))
    }
    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.shout();
        let took = self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| {
            free.checked_sub(ask.total().requests).map(|_| free - ask.mine.requests)
        });
        Ok(took.is_ok().then_some(ask.now))
    }
    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.shout();
        self.free.fetch_add(charge.amount.requests, Ordering::SeqCst);
        charge.amount
    }
    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        self.shout();
        None
    }
}

/// Runs a program of its own on a thread; fails when it does not come to an end.
fn ends<F: Future<Output = ()> + Send + 'static>(program: F) {
    let (done, over) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(program);
        done.send(()).unwrap();
    });
    over.recv_timeout(Duration::from_secs(20)).expect("it comes to an end");
}

#[test]
fn an_account_that_announces_whenever_it_is_asked_starves_no_other_task() {
    ends(async {
        let admission = Admission::builder().start().unwrap();
        let account = Hostile::new(1);
        let held = admission.try_admit(Demand::new().permit(&account)).unwrap();
        let mut waits = spawn(admission.admit(Demand::new().permit(&account)));
        assert!(waits.poll().is_pending());
        settle().await;
        account.announces.store(true, Ordering::SeqCst);
        account.link.grew();
        settle().await;
        drop(held);
        settle().await;
        assert!(matches!(waits.poll(), Poll::Ready(Ok(_))));
    });
}

#[test]
fn the_evaluator_ends_with_two_handles_dropped_at_one_moment() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut left = 0;
    for _ in 0..1_000 {
        let admission = {
            let _inside = runtime.enter();
            Admission::builder().start().unwrap()
        };
        let gate = gate(1);
        let held = admission.try_admit(Demand::new().permit(&gate)).unwrap();
        let other = admission.clone();
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                drop(other);
            });
            barrier.wait();
            drop(admission);
        });
        let mut ended = false;
        for _ in 0..50_000 {
            ended |= runtime.metrics().num_alive_tasks() == 0;
            if ended {
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        left += u32::from(!ended);
        drop(held);
        while runtime.metrics().num_alive_tasks() != 0 {
            thread::yield_now();
        }
    }
    assert_eq!(left, 0, "evaluators that outlived the last handle");
}

#[test]
fn a_release_through_one_admission_always_wakes_the_other() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (a, b) = (Admission::builder().start().unwrap(), Admission::builder().start().unwrap());
        let (x, y) = (gate(1), gate(1));
        let mut tasks = Vec::new();
        for n in 0..4 {
            let admission = if n % 2 == 0 { a.clone() } else { b.clone() };
            let demand = match n {
                0 | 1 => Demand::new().permit(&x),
                2 => Demand::new().permit(&y).permit(&x),
                _ => Demand::new().permit(&x).permit(&y),
            };
            tasks.push(tokio::spawn(async move {
                for turn in 0..20_000_u32 {
                    if turn % 7 == n {
                        let mut late = Box::pin(admission.admit(demand.clone()));
                        let polled = std::future::poll_fn(|cx| Poll::Ready(late.as_mut().poll(cx)));
                        drop(polled.await);
                    } else {
                        let grant = admission.admit(demand.clone()).await.unwrap();
                        if turn % 3 == 0 {
                            grant.rollback();
                        }
                    }
                }
            }));
        }
        for task in tasks {
            let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
            ended.expect("nobody is forgotten").unwrap();
        }
        assert_eq!((x.status().active, y.status().active), (0, 0));
        a.check();
        b.check();
    });
}

#[test]
fn a_runtime_that_goes_at_any_moment_leaves_no_waiter_behind() {
    let admission = Admission::builder().build().unwrap();
    let gate = gate(1);
    let held = admission.try_admit(Demand::new().permit(&gate)).unwrap();
    for turn in 0..300_u64 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let waits = {
            let inside = runtime.enter();
            admission.start().expect("the one before is gone");
            drop(inside);
            let mut waits = spawn(admission.admit(Demand::new().permit(&gate)));
            assert!(waits.poll().is_pending());
            waits
        };
        let mut waits = waits;
        if turn % 3 == 0 {
            thread::yield_now();
        }
        if turn % 2 == 0 {
            drop(runtime);
        } else {
            runtime.shutdown_background();
        }
        let mut spins = 0;
        while !waits.is_woken() {
            thread::sleep(Duration::from_micros(50));
            spins += 1;
            assert!(spins < 100_000, "it hears of the end");
        }
        assert!(matches!(waits.poll(), Poll::Ready(Err(AdmitError::ShutDown))));
        admission.check();
    }
    drop(held);
}

#[tokio::test]
async fn thousands_of_heads_leave_over_many_holds_and_the_rest_goes_in_order() {
    // More than one hold looks at, refused and granted in turn, while newcomers come.
    let admission = Admission::builder().start().unwrap();
    let gate = CountingGate::new("wide", 20_000).unwrap();
    let held = admission.try_admit(Demand::new().permits(&gate, 20_000)).unwrap();
    let mut line: Vec<_> = (0..15_000_u32)
        .map(|n| {
            let n = if n % 2 == 0 { 15_001 + n / 2 % 4_000 } else { 1 };
            spawn(admission.admit(Demand::new().permits(&gate, n)))
        })
        .collect();
    for admit in &mut line {
        assert!(admit.poll().is_pending());
    }
    gate.resize(15_000).unwrap();
    settle().await;
    admission.check();
    assert_eq!(admission.queue_len(), 7_500, "what can never fit is refused");
    drop(held);
    let newcomer = admission.try_admit(Demand::new().permits(&gate, 7_501));
    assert!(newcomer.is_err(), "those who waited went first");
    assert_eq!((admission.queue_len(), gate.status().active), (0, 7_500));
    for (n, admit) in line.iter_mut().enumerate() {
        if n % 64 == 0 {
            // What is handed over counts against this task's budget.
            tokio::task::yield_now().await;
        }
        let Poll::Ready(outcome) = admit.poll() else { panic!("{n} waits") };
        assert_eq!(outcome.is_ok(), n % 2 == 1);
    }
    drop(line);
    assert_eq!(gate.status().active, 0);
}

#[tokio::test(start_paused = true)]
async fn anybody_of_a_class_may_leave_wherever_the_class_stands() {
    // Three classes of four on two gates and a bucket; every pair of members leaves, before or after
    // something changed, and the rest goes.
    for first in 0..12 {
        for second in 0..12 {
            for moment in 0..3 {
                let admission = Admission::builder().start().unwrap();
                let (x, y) = (gate(4), gate(4));
                let limits = admit::Limits::per_minute(60, 6_000);
                let bucket = admit::TokenBucket::new("bucket", limits).unwrap();
                let spent = admission.try_admit(Demand::new().tokens(&bucket, 6_000)).unwrap();
                let held = admission.try_admit(Demand::new().permits(&x, 4)).unwrap();
                let demands = [
                    Demand::new().permits(&x, 2),
                    Demand::new().permit(&x).permit(&y),
                    Demand::new().permit(&y).tokens(&bucket, 50),
                ];
                let mut line: Vec<_> =
                    (0..12).map(|n| Some(spawn(admission.admit(demands[n % 3].clone())))).collect();
                for admit in line.iter_mut().flatten() {
                    assert!(admit.poll().is_pending());
                }
                if moment > 0 {
                    settle().await;
                }
                line[first] = None;
                admission.check();
                if moment > 1 {
                    settle().await;
                }
                line[second] = None;
                admission.check();
                drop((held, spent));
                // Everybody holds for a moment only.
                for _ in 0..40 {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    for place in &mut line {
                        if place.as_mut().is_some_and(|admit| admit.poll().is_ready()) {
                            *place = None;
                        }
                    }
                }
                assert_eq!(admission.queue_len(), 0, "{first} {second} {moment}");
                admission.check();
                assert_eq!((x.status().active, y.status().active), (0, 0));
            }
        }
    }
}

/// A valve whose readings panic.
struct Unreadable(AccountLink, AtomicBool);

impl Valve for Unreadable {
    fn link(&self) -> &AccountLink {
        &self.0
    }
    fn look(&self, _: Instant) {}
    fn willing(&self, _: Turn, _: Instant) -> bool {
        self.1.load(Ordering::SeqCst)
    }
    fn released(&self, _: Instant) {}
    fn completed(&self, _: Instant) -> bool {
        true
    }
    fn rolled_back(&self, _: Instant) {}
    fn earliest(&self, _: Turn, now: Instant) -> Option<Instant> {
        Some(now + Duration::from_secs(1))
    }
    fn capacity(&self) -> u64 {
        panic!("no capacity")
    }
    fn in_use(&self) -> u64 {
        panic!("no use")
    }
    fn indicator(&self, _: Instant) -> Option<String> {
        panic!("no indicator")
    }
    fn summary(&self, _: Instant) -> String {
        panic!("no summary")
    }
}

#[tokio::test(start_paused = true)]
async fn a_valve_whose_readings_panic_loses_no_waiter() {
    let link = AccountLink::new("memory").unwrap();
    let valve = Arc::new(Unreadable(link, AtomicBool::new(false)));
    let admission = Admission::builder().memory_gate(valve.clone()).start().unwrap();
    let _events = admission.subscribe();
    let gate = gate(1);
    let mut waits = spawn(admission.admit(Demand::new().permit(&gate)));
    assert!(waits.poll().is_pending());
    let mut late =
        spawn(admission.admit(Demand::new().permit(&gate)).within(Duration::from_millis(10)));
    assert!(late.poll().is_pending());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(matches!(late.poll(), Poll::Ready(Err(AdmitError::TimedOut { .. }))));
    assert!(admission.try_admit(Demand::new().permit(&gate)).is_err());
    let _ = admission.snapshot();
    valve.1.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(waits.poll(), Poll::Ready(Ok(_))));
    assert_eq!(gate.status().active, 0);
}

/// What is panicked with: its drop panics, too.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("and again");
    }
}

fn bomb() -> ! {
    std::panic::panic_any(Bomb)
}

/// A gate of one that throws bombs out of one method.
struct Spiteful {
    link: AccountLink,
    busy: AtomicBool,
    method: &'static str,
}

impl Spiteful {
    fn new(method: &'static str) -> Arc<Self> {
        let link = AccountLink::new("spiteful").unwrap();
        Arc::new(Self { link, busy: AtomicBool::new(false), method })
    }

    fn enter(&self, method: &str) {
        if method == self.method {
            bomb();
        }
    }
}

impl Account for Spiteful {
    fn link(&self) -> &AccountLink {
        &self.link
    }
    fn category(&self) -> Category {
        Category::Other("spiteful".into())
    }
    fn capacity(&self) -> u64 {
        self.enter("capacity");
        1
    }
    fn in_use(&self, _: Instant) -> u64 {
        self.enter("in_use");
        u64::from(self.busy.load(Ordering::SeqCst))
    }
    fn summary(&self, _: Instant) -> String {
        self.enter("summary");
        String::new()
    }
    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }
    fn fits(&self, _: &Ask) -> Result<bool, Refusal> {
        self.enter("fits");
        Ok(!self.busy.load(Ordering::SeqCst))
    }
    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.enter("try_take");
        Ok((!self.busy.swap(true, Ordering::SeqCst)).then_some(ask.now))
    }
    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.enter("give");
        self.busy.store(false, Ordering::SeqCst);
        charge.amount
    }
    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        self.enter("earliest_fit");
        None
    }
    fn reconcile(&self, charge: &Charge, _: u64, _: Instant) -> Amount {
        self.enter("reconcile");
        charge.amount
    }
    fn on_success(&self, _: &Charge, _: Instant) {
        self.enter("on_success");
    }
    fn settled(&self, _: &Charge, _: bool, _: Instant) {
        self.enter("settled");
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_account_panics_with_may_panic_when_it_is_dropped() {
    let methods = [
        "fits",
        "try_take",
        "earliest_fit",
        "give",
        "reconcile",
        "on_success",
        "settled",
        "capacity",
        "in_use",
        "summary",
    ];
    for method in methods {
        let admission = Admission::builder().start().unwrap();
        let (account, place) = (Spiteful::new(method), gate(1));
        let demand = || Demand::new().permit(&account).permit(&place);
        let first = admission.try_admit(demand());
        let mut second = spawn(admission.admit(demand()));
        let _ = second.poll();
        if let Ok(grant) = first {
            grant.reconcile(&account, 1);
            grant.report_success(&account);
            let _ = admission.try_admit(demand());
            let _ = admission.snapshot();
            // The grant is dropped while the thread unwinds already: a second panic would be the end.
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _held = grant;
                panic!("the job's own");
            }));
            assert_eq!(*unwound.unwrap_err().downcast::<&str>().unwrap(), "the job's own");
        }
        settle().await;
        drop(second);
        settle().await;
        // Nobody else has heard of it.
        let other = admission.admit(Demand::new().permit(&place)).await;
        assert!(other.is_ok(), "{method}: {other:?}");
        admission.check();
    }
}

struct ThrowsABomb;

impl Wake for ThrowsABomb {
    fn wake(self: Arc<Self>) {
        bomb();
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_waker_panics_with_may_panic_when_it_is_dropped() {
    let admission = Admission::builder().start().unwrap();
    let place = gate(3);
    let held = admission.try_admit(Demand::new().permits(&place, 3)).unwrap();
    let waker = Waker::from(Arc::new(ThrowsABomb));
    let mut waits = [0; 3].map(|_| Box::pin(admission.admit(Demand::new().permit(&place))));
    let [first, second, third] = &mut waits;
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut second = spawn(second);
    let mut third = spawn(third);
    assert!(second.poll().is_pending() && third.poll().is_pending());
    drop(held);
    settle().await;
    assert!(second.is_woken() && third.is_woken());
    assert!(matches!(second.poll(), Poll::Ready(Ok(_))));
    drop(second);
    admission.check();
}
