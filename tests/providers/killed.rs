//! A connection that an administrator ends, at any poll of what a job and its end do on it.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use admit::{DbProvider, SeaOrmProvider, SeaOrmSession, SeaOrmTransaction};
use sea_orm::{TransactionSession, TransactionTrait};
use sqlx::Database;
use tokio::time::timeout;

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sea_orm::{backend, insert, thread};

/// Nothing takes that long but what hangs.
const HANGS: Duration = Duration::from_secs(30);

/// A server on which one connection is ended at one poll of all.
trait Server<DB: Database> {
    async fn id(&self, session: &SeaOrmSession<DB>) -> u64;
    async fn end(&self, id: u64);
    async fn rows(&self, number: u64) -> usize;
    async fn busy(&self) -> usize;
    fn out(&self) -> usize;
}

impl Server<sqlx::Postgres> for PostgresDatabase {
    async fn id(&self, session: &SeaOrmSession<sqlx::Postgres>) -> u64 {
        backend(session).await.unwrap() as u64
    }

    async fn end(&self, id: u64) {
        self.terminate(id as i32).await;
    }

    async fn rows(&self, number: u64) -> usize {
        self.rows(number).await
    }

    async fn busy(&self) -> usize {
        self.busy().await
    }

    fn out(&self) -> usize {
        self.out()
    }
}

impl Server<sqlx::MySql> for MySqlDatabase {
    async fn id(&self, session: &SeaOrmSession<sqlx::MySql>) -> u64 {
        thread(session).await.unwrap()
    }

    async fn end(&self, id: u64) {
        self.terminate(id).await;
    }

    async fn rows(&self, number: u64) -> usize {
        self.rows(number).await
    }

    async fn busy(&self) -> usize {
        self.busy().await
    }

    fn out(&self) -> usize {
        self.out()
    }
}

/// Counts polls, and ends the connection before one of them.
struct Killer<'a, S> {
    server: &'a S,
    id: u64,
    /// How many polls are left.
    left: Option<u64>,
}

impl<'a, S> Killer<'a, S> {
    fn is_over(&self) -> bool {
        self.left.is_none()
    }

    async fn tick<DB: Database>(&mut self)
    where
        S: Server<DB>,
    {
        match self.left {
            Some(0) => {
                self.server.end(self.id).await;
                self.left = None;
            }
            Some(left) => self.left = Some(left - 1),
            None => {}
        }
    }

    /// Awaits a step, and counts its polls.
    async fn step<DB: Database, F: Future>(&mut self, step: F) -> F::Output
    where
        S: Server<DB>,
    {
        let mut step = pin!(step);
        let polls = async {
            loop {
                self.tick::<DB>().await;
                let mut was_polled = false;
                let once = std::future::poll_fn(|cx| {
                    // Woken: back to the tick, before it is polled again.
                    if std::mem::replace(&mut was_polled, true) {
                        return Poll::Ready(None);
                    }
                    step.as_mut().poll(cx).map(Some)
                });
                if let Some(output) = once.await {
                    return output;
                }
            }
        };
        timeout(HANGS, polls).await.expect("it hangs")
    }
}

/// What is known of the rows: those that must be there, those that must not be, and the others.
#[derive(Debug, Default)]
struct Known {
    there: Vec<u64>,
    gone: Vec<u64>,
}

/// A job that goes on whatever fails. Its rows within its transaction are 1, 2, 4 and 6; 3 and 5 are
/// rolled back.
async fn job<DB: Database, S: Server<DB>>(
    session: &SeaOrmSession<DB>,
    killer: &mut Killer<'_, S>,
    base: u64,
) -> Vec<(u64, bool)> {
    let mut said = Vec::new();
    let first = killer.step(insert(session, base + 1)).await;
    said.push((1, first.is_ok()));
    if let Ok(outer) = killer.step(session.begin()).await {
        let second = killer.step(insert(&outer, base + 2)).await.is_ok();
        inner(&outer, killer, base + 3, false).await;
        let fourth = inner(&outer, killer, base + 4, true).await;
        let committed = killer.step(outer.commit()).await.is_ok();
        said.push((2, second && committed));
        said.push((4, fourth && committed));
    }
    if let Ok(outer) = killer.step(session.begin()).await {
        let _ = killer.step(insert(&outer, base + 5)).await;
        inner(&outer, killer, base + 5, true).await;
        drop(outer);
    }
    let sixth = killer.step(insert(session, base + 6)).await;
    said.push((6, sixth.is_ok()));
    said
}

async fn inner<DB: Database, S: Server<DB>>(
    outer: &SeaOrmTransaction<DB>,
    killer: &mut Killer<'_, S>,
    number: u64,
    commits: bool,
) -> bool {
    let Ok(inner) = killer.step(outer.begin()).await else { return false };
    let is_written = killer.step(insert(&inner, number)).await.is_ok();
    let ended = match commits {
        true => killer.step(inner.commit()).await,
        false => killer.step(inner.rollback()).await,
    };
    commits && is_written && ended.is_ok()
}

/// Plays the job with its connection ended at that poll. Answers whether it came to that.
async fn play<DB: Database, S: Server<DB>>(
    server: &S,
    provider: &Arc<SeaOrmProvider<DB>>,
    is_transactional: bool,
    at: u64,
    base: u64,
) -> bool {
    let handle = provider.acquire(false).await.unwrap();
    let id = {
        let session = provider.session(&handle).unwrap();
        server.id(&session).await
    };
    let mut killer = Killer { server, id, left: Some(at) };
    let begun = match is_transactional {
        true => killer.step(provider.begin(&handle)).await,
        false => Ok(()),
    };
    let mut known = Known { there: Vec::new(), gone: vec![3, 5] };
    let mut committed = Ok(());
    if begun.is_ok() {
        let session = provider.session(&handle).unwrap();
        let said = job(&session, &mut killer, base).await;
        drop(session);
        let was_ended = killer.is_over();
        if is_transactional {
            committed = killer.step(provider.commit(&handle)).await;
            assert!(!was_ended || committed.is_err(), "ended at {at}, and committed");
            if committed.is_ok() {
                assert!(said.iter().all(|&(_, is_said)| is_said), "{at}: {said:?}");
            }
        }
        for (number, is_said) in said {
            match (is_transactional, committed.is_ok()) {
                (true, true) => known.there.push(number),
                (true, false) if was_ended => known.gone.push(number),
                (true, false) => {}
                (false, _) if is_said => known.there.push(number),
                (false, _) => {}
            }
        }
    }
    let _ = killer.step(provider.close(&handle)).await;
    assert_eq!(server.out(), 0, "ended at {at}");
    while server.busy().await > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for number in &known.there {
        assert_eq!(server.rows(base + number).await, 1, "ended at {at}: {number} of {known:?}");
    }
    for number in &known.gone {
        assert_eq!(server.rows(base + number).await, 0, "ended at {at}: {number} of {known:?}");
    }
    killer.is_over()
}

async fn every_poll<DB: Database, S: Server<DB>>(server: &S, provider: &Arc<SeaOrmProvider<DB>>) {
    // How many polls a step takes is the network's to say.
    const POLLS: u64 = 45;
    for is_transactional in [true, false] {
        let mut ended = 0;
        for at in 0..POLLS {
            let base = 10 * (at + if is_transactional { 0 } else { POLLS });
            ended += u64::from(play(server, provider, is_transactional, at, base).await);
        }
        assert!(ended >= 15, "it was ended at {ended} polls");
    }
}

#[tokio::test]
async fn a_connection_ended_at_any_poll_on_postgres_is_never_a_commit_that_is_not() {
    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    every_poll(&database, &provider).await;
    database.drop().await;
}

#[tokio::test]
async fn a_connection_ended_at_any_poll_on_mysql_is_never_a_commit_that_is_not() {
    let Some(database) = MySqlDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    every_poll(&database, &provider).await;
    database.drop().await;
}
