//! The whole of it, in parts: each on a runtime of its own, which goes away in the middle of
//! everything, but for the last.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use admit::testing::Draw;
use admit::{BuildError, StartError};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::Args;
use crate::faults;
use crate::job;
use crate::leaks;
use crate::tally::{Ear, Tally};
use crate::world::World;

/// Runtimes used up in a run.
const PARTS: u64 = 20;
/// Jobs at once, at the most.
const MOST: u64 = 2_000;
/// How much slower everything is in virtual time.
const PACE: u32 = 30;
/// Between two readings of memory.
const WEATHER: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SoakError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("no runtime: {0}")]
    Runtime(#[from] io::Error),
}

/// What goes on from part to part.
struct Soak {
    world: Arc<World>,
    tally: Arc<Tally>,
    ear: Ear,
    draw: Draw,
    seed: u64,
    started: u64,
    /// Where the clock of the last runtime stood, and where that of the first did.
    clock: Option<(Instant, Instant)>,
    began: std::time::Instant,
}

/// Runs all of it; answers what was left behind.
pub(crate) fn run(args: &Args) -> Result<Vec<String>, SoakError> {
    let is_virtual = args.real.is_none();
    let (world, events) = World::new(if is_virtual { PACE } else { 1 })?;
    let mut soak = Soak {
        world: Arc::new(world),
        tally: Arc::default(),
        ear: Ear::new(events),
        draw: Draw::new(args.seed),
        seed: args.seed,
        started: 0,
        clock: None,
        began: std::time::Instant::now(),
    };
    let jobs_a_part = args.jobs().div_ceil(PARTS);
    let time_a_part = args.real().map(|real| real / u32::try_from(PARTS).unwrap_or(u32::MAX));
    let mut settled = 0;
    let mut left = Vec::new();
    for part in 0..PARTS {
        let is_last = part == PARTS - 1;
        let runtime = runtime(is_virtual)?;
        left = runtime.block_on(async {
            soak.go_on(is_virtual).await?;
            soak.part(jobs_a_part, time_a_part, is_last).await;
            if is_last {
                Ok::<_, SoakError>(leaks::look(&soak.world, &mut soak.ear, is_virtual).await)
            } else {
                soak.clock = soak.clock.map(|(first, _)| (first, Instant::now()));
                Ok(Vec::new())
            }
        })?;
        // With it go the jobs in the line, at work, and about to end; and the evaluators.
        drop(runtime);
        soak.tell();
        if part == PARTS / 5 {
            settled = leaks::resident()?;
        }
    }
    left.extend(leaks::grown(settled, leaks::resident()?));
    Ok(left)
}

fn runtime(is_virtual: bool) -> io::Result<Runtime> {
    if is_virtual {
        Builder::new_current_thread().enable_time().start_paused(true).build()
    } else {
        Builder::new_multi_thread().worker_threads(4).enable_time().build()
    }
}

impl Soak {
    /// The clock of this runtime goes on where the last stood, and somebody looks at the line again.
    async fn go_on(&mut self, is_virtual: bool) -> Result<(), StartError> {
        let now = Instant::now();
        let (first, then) = *self.clock.get_or_insert((now, now));
        if is_virtual {
            tokio::time::advance(then.saturating_duration_since(now)).await;
            self.clock = Some((first, Instant::now()));
        }
        self.world.start()
    }

    async fn part(&mut self, jobs: u64, time: Option<Duration>, to_the_end: bool) {
        let (world, mut draw) = (Arc::clone(&self.world), Draw::new(self.draw.any()));
        let weather = tokio::spawn(async move {
            loop {
                world.memory.set(faults::weather(&mut draw), 1_000);
                tokio::time::sleep(WEATHER * world.pace).await;
            }
        });
        let mut running = JoinSet::new();
        let mut doomed: VecDeque<AbortHandle> = VecDeque::new();
        let until = time.map(|time| Instant::now() + time);
        let half = time.map(|time| Instant::now() + time / 2);
        let mut is_replaced = false;
        let end = self.started.saturating_add(jobs);
        let most = MOST.min(jobs / 4).max(1) as usize;
        while self.started < end && until.is_none_or(|until| Instant::now() < until) {
            let (world, tally) = (Arc::clone(&self.world), Arc::clone(&self.tally));
            let task = running.spawn(job::run(world, tally, self.started, self.seed));
            self.started += 1;
            let is_half =
                self.started + jobs / 2 >= end || half.is_some_and(|half| Instant::now() >= half);
            if is_half && !is_replaced {
                is_replaced = true;
                self.world.replace().expect("inside a runtime with a timer");
            }
            if self.draw.one_in(40) {
                doomed.push_back(task);
            }
            if doomed.len() > 20
                && let Some(task) = doomed.pop_front()
            {
                task.abort();
            }
            if self.started.is_multiple_of(64) {
                self.ear.listen();
                tokio::task::yield_now().await;
                // Those that panicked or were aborted have ended, too.
                while running.try_join_next().is_some() {}
            }
            // Nobody may end for a while, under memory that is short; the time is up all the same.
            let up = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let mut up = std::pin::pin!(up);
            let mut is_up = false;
            while running.len() >= most && !is_up {
                tokio::select! {
                    ended = running.join_next() => drop(ended),
                    () = &mut up => is_up = true,
                }
            }
        }
        if to_the_end {
            weather.abort();
            self.world.calm();
            while running.join_next().await.is_some() {
                self.ear.listen();
            }
        } else {
            // They go with the runtime, as they are.
            running.detach_all();
        }
    }

    fn tell(&mut self) {
        self.ear.listen();
        let live = self.world.live();
        let hours = self.clock.map_or(0.0, |(first, last)| (last - first).as_secs_f64() / 3_600.0);
        let seconds = self.began.elapsed().as_secs_f64();
        let resident = leaks::resident().map_or(0, |bytes| bytes >> 20);
        println!(
            "{} jobs in {seconds:.0} s ({hours:.2} h virtual); {} short-lived accounts, {live} of \
             them live; {resident} MiB; {}",
            self.started,
            self.world.accounts_made.load(Ordering::Relaxed),
            self.tally,
        );
    }
}
