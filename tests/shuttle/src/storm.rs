//! Anything beside anything: what the other scenes leave out because nobody thought of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use admit::{
    Account, Admission, AdmitError, Amount, Ask, Charge, CountingGate, Demand, EventKind, Grant,
    JobInfo, Keep, Limits, MemoryGate, TokenBucket, TryAdmitError,
};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::explore::{Clock, explore_in_time};
use crate::passages::Roomy;
use crate::place::{join, start};

const LIMIT: Duration = Duration::from_millis(5);

/// With memory, it goes by the other short way.
fn start_with(memory: bool) -> Admission {
    let memory = memory.then(|| MemoryGate::with_source(Roomy).unwrap());
    memory.map_or_else(start, |memory| Admission::builder().memory_gate(memory).start().unwrap())
}

fn draw(below: u32) -> u32 {
    thread_rng().gen_range(0..below)
}

/// What the threads of one run share.
struct World {
    admissions: Vec<Admission>,
    gates: [Arc<CountingGate>; 2],
    /// Permits of each gate in use, by the jobs' own count.
    inside: [AtomicU32; 2],
    /// Plenty: it makes a demand a timed one, and nobody wait.
    bucket: Arc<TokenBucket>,
    /// Whether the gates keep their size.
    is_firm: bool,
    clock: Clock,
}

impl World {
    fn drawn(clock: &Clock) -> Arc<Self> {
        let gates = ["one", "other"].map(|name| CountingGate::new(name, 1 + draw(2)).unwrap());
        let bucket = TokenBucket::new("bucket", Limits::per_minute(1_000, 1_000)).unwrap();
        let admissions: Vec<_> = (0..=draw(2)).map(|_| start_with(draw(4) == 0)).collect();
        let inside = [(); 2].map(|()| AtomicU32::new(0));
        let (is_firm, clock) = (draw(2) == 0, clock.clone());
        let world = Self { admissions, gates, inside, bucket, is_firm, clock };
        if draw(3) > 0 {
            // The door is open from then on.
            drop(world.admissions[0].try_admit(Demand::new().permit(&world.gates[0])));
        }
        Arc::new(world)
    }

    fn admission(&self) -> &Admission {
        &self.admissions[draw(self.admissions.len() as u32) as usize]
    }

    /// One permit of either gate, of both in either order, or two of one; perhaps with a token.
    fn demand(&self) -> Demand {
        let [one, other] = &self.gates;
        let demand = match draw(7) {
            0..=2 => Demand::new().permit(one),
            3 => Demand::new().permits(one, 2),
            4 => Demand::new().permit(other),
            5 => Demand::new().permit(one).permit(other),
            _ => Demand::new().permit(other).permit(one),
        };
        if draw(6) == 0 { demand.tokens(&self.bucket, 1) } else { demand }
    }

    /// Holds a grant for a moment, and ends it in one of the ways there are.
    fn work<K: Keep>(&self, grant: Grant<K>) {
        let wanted = |gate: &Arc<CountingGate>| {
            let mut entries = grant.demand().entries().iter();
            let entry = entries.find(|entry| entry.account().link().id() == gate.link().id());
            entry.map_or(0, |entry| entry.amount().requests)
        };
        let taken = self.gates.each_ref().map(wanted);
        for ((gate, inside), taken) in self.gates.iter().zip(&self.inside).zip(taken) {
            let inside = inside.fetch_add(taken, Ordering::SeqCst) + taken;
            assert!(!self.is_firm || inside <= gate.status().max_concurrent, "granted twice");
        }
        for (inside, taken) in self.inside.iter().zip(taken) {
            inside.fetch_sub(taken, Ordering::SeqCst);
        }
        let [one, _] = &self.gates;
        match draw(6) {
            0 => assert!(grant.release() && !grant.rollback()),
            1 => assert!(grant.rollback() && !grant.release()),
            2 => {
                assert_eq!(grant.release_one(one), taken[0] > 0);
                assert!(!grant.release_one(one));
            }
            _ => {}
        }
    }

    fn ended<K: Keep>(&self, outcome: Result<Grant<K>, AdmitError>) {
        match outcome {
            Ok(grant) => self.work(grant),
            Err(error) => self.is_expected(&error),
        }
    }

    /// Two permits may be more than a gate has, and the second admission is stopped now and then.
    fn is_expected(&self, error: &AdmitError) {
        match error {
            AdmitError::Cancelled | AdmitError::TimedOut { .. } | AdmitError::Refused { .. } => {}
            AdmitError::ShutDown if self.admissions.len() > 1 => {}
            error => panic!("{error}"),
        }
    }

    /// One of the things a thread may do.
    fn act(&self) {
        let (admission, demand) = (self.admission(), self.demand());
        match draw(15) {
            0 | 1 => self.ended(block_on(admission.admit(demand))),
            2 | 3 => self.ended(block_on(admission.admit_ref(&demand))),
            4 | 5 => match admission.try_admit(demand) {
                Err(TryAdmitError::WouldWait { .. }) => {}
                Err(TryAdmitError::Admit(error)) => self.is_expected(&error),
                Err(error) => panic!("{error}"),
                Ok(grant) => self.work(grant),
            },
            6 => self.ended(block_on(admission.admit(demand).within(LIMIT))),
            7 => {
                let token = CancellationToken::new();
                let admit = admission.admit(demand).cancelled_by(token.clone());
                let cancels = thread::spawn(move || token.cancel());
                self.ended(block_on(admit));
                join([cancels]);
            }
            8 => {
                // Is dropped as it waits, or granted and not looked at.
                let held = admission.try_admit(demand.clone());
                let mut leaves = admission.admit(demand);
                let polled = Pin::new(&mut leaves).poll(&mut Context::from_waker(Waker::noop()));
                drop(held);
                drop((leaves, polled));
            }
            9 if !self.is_firm => self.gates[0].resize(1 + draw(3)).unwrap(),
            10 => {
                let now = Instant::now();
                let (gate, one) = (&self.gates[0], Amount::permits(1));
                if gate.try_take(&Ask::new(0, one, now)).unwrap().is_some() {
                    gate.give(&Charge::new(0, one, now), now);
                    // A call that comes from no admission is told of by nobody else.
                    gate.link().grew();
                }
            }
            11 => self.clock.advance(LIMIT),
            12 if draw(3) == 0 => self.admissions[1..].iter().for_each(Admission::stop),
            13 => block_on(admission.drained()),
            _ => {
                admission.check();
                drop(admission.snapshot());
            }
        }
    }

    fn is_over(&self) {
        for admission in &self.admissions {
            admission.check();
            let snapshot = admission.snapshot();
            assert_eq!((snapshot.waiting, snapshot.held, snapshot.unseen.count), (0, 0, 0));
        }
        for gate in &self.gates {
            assert_eq!((gate.status().active, gate.link().waiting()), (0, 0));
        }
    }
}

#[test]
fn whatever_threads_do_beside_one_another_nobody_is_left_and_nothing_lost() {
    explore_in_time(|clock| {
        let world = World::drawn(clock);
        let mut heard = (draw(4) == 0).then(|| world.admissions[0].subscribe());
        let threads = [(); 3].map(|()| {
            let world = Arc::clone(&world);
            thread::spawn(move || (0..=draw(2)).for_each(|_| world.act()))
        });
        join(threads);
        world.is_over();
        if let Some(heard) = &mut heard {
            // What is still on its way comes before the last.
            let last = Demand::new().permit(&world.gates[0]).for_job(JobInfo::new("last", "last"));
            drop(world.admissions[0].try_admit(last).expect("nobody is there"));
            let mut held = 0;
            loop {
                let event = block_on(heard.recv()).expect("no more than fit");
                match event.kind {
                    EventKind::Held => held += 1,
                    EventKind::GrantedFromHold => held -= 1,
                    EventKind::Rejected if event.wait.is_some() => held -= 1,
                    EventKind::Released if event.job.is_some() => break,
                    _ => {}
                }
            }
            assert_eq!(held, 0, "a hold was told of and not ended");
        }
    });
}
