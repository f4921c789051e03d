//! One job: it wants, it waits, it works, and it ends in one of all the ways there are.

use std::sync::Arc;

use admit::testing::Draw;
use admit::{Account, Admit, AdmitError, Grant};
use tokio_util::sync::CancellationToken;

use crate::faults::{self, Impatience};
use crate::tally::{End, Tally};
use crate::world::World;

pub(crate) async fn run(world: Arc<World>, tally: Arc<Tally>, job: u64, seed: u64) {
    let mut draw = Draw::new(seed.wrapping_mul(0x1000_0001).wrapping_add(job));
    let end = attempt(&world, job, &mut draw).await;
    tally.count(end);
}

async fn attempt(world: &World, job: u64, draw: &mut Draw) -> End {
    let demand = world.demand(job, draw).expect("the limits are valid");
    let [watched, unwatched] = world.admissions();
    let admission = if draw.one_in(2) { watched } else { unwatched };
    if draw.one_in(20) {
        return match admission.try_admit(demand) {
            Ok(grant) => work(world, grant, job, draw).await,
            Err(_) => End::WouldWait,
        };
    }
    let admit = admission.admit(demand);
    // A job that waits is a handle of its own.
    drop(admission);
    let impatience = faults::impatience(draw, world.pace);
    match wait(admit, impatience).await {
        None => End::Dropped,
        Some(Ok(grant)) => work(world, grant, job, draw).await,
        Some(Err(error)) => match error {
            AdmitError::Cancelled => End::Cancelled,
            AdmitError::TimedOut { .. } => End::TimedOut,
            AdmitError::ShutDown => End::ShutDown,
            AdmitError::QueueFull { .. } => End::QueueFull,
            AdmitError::Refused { .. } => End::Refused,
            other => panic!("no account panics here: {other}"),
        },
    }
}

/// Waits as long as it likes; `None` when the future was dropped.
async fn wait(admit: Admit, impatience: Impatience) -> Option<Result<Grant, AdmitError>> {
    match impatience {
        Impatience::None => Some(admit.await),
        Impatience::Within(limit) => Some(admit.within(limit).await),
        Impatience::Dropped(after) => tokio::time::timeout(after, admit).await.ok(),
        Impatience::Cancelled(after) => {
            let token = CancellationToken::new();
            let cancel = async {
                tokio::time::sleep(after).await;
                token.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                outcome = admit.cancelled_by(token.clone()) => Some(outcome),
                () = cancel => None,
            }
        }
    }
}

/// To the lasting limits only: a lane that was slowed down once would rightly be kept for good.
///
/// Upstreams fail in spells.
fn report(world: &World, grant: &Grant, job: u64, draw: &mut Draw) {
    let is_spell = (job / 500).is_multiple_of(9);
    let failure = draw.one_in(if is_spell { 2 } else { 60 }).then(|| faults::failure(draw));
    let buckets = world.buckets.iter().map(|bucket| bucket.clone() as Arc<dyn Account>);
    for account in buckets.chain([world.window.clone() as Arc<dyn Account>]) {
        match &failure {
            Some(failure) => grant.report_failure(&account, failure),
            None => grant.report_success(&account),
        };
    }
}

async fn work(world: &World, grant: Grant, job: u64, draw: &mut Draw) -> End {
    match draw.between(0..=9) {
        0..=3 => tokio::task::yield_now().await,
        _ => tokio::time::sleep(world.micros(draw.between(1..=30_000))).await,
    }
    for bucket in &world.buckets {
        if draw.one_in(6) {
            grant.reconcile(bucket, draw.between(0..=3_000));
        }
    }
    report(world, &grant, job, draw);
    if draw.one_in(8) {
        grant.release_one(&world.gates[0]);
        tokio::time::sleep(world.micros(draw.between(1..=5_000))).await;
    }
    match draw.between(0..=59) {
        0 => faults::panic(),
        1..=5 => {
            grant.rollback();
            End::RolledBack
        }
        6..=15 => {
            // Settled by its watchdog and by itself: whoever is first.
            let grant = Arc::new(grant);
            let other = Arc::clone(&grant);
            let watchdog = tokio::spawn(async move { other.release() });
            grant.release();
            drop(grant);
            drop(watchdog.await);
            End::Done
        }
        _ => End::Done,
    }
}
