//! Random histories of SeaORM's transactions within one another, beside a model of what is open.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use admit::testing::Draw;
use admit::{DbProvider, SeaOrmProvider, SeaOrmSession, SeaOrmTransaction};
use futures::FutureExt;
use sea_orm::entity::prelude::*;
use sea_orm::{TransactionSession, TransactionTrait};
use sqlx::Database;
use tokio::task::{JoinSet, unconstrained, yield_now};

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sea_orm::{entry, insert};
use crate::sqlite::SqliteFile;

const HISTORIES: u64 = 60;
const ROUNDS: u64 = 20;

/// In what the databases differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sqlite,
    /// A statement that fails takes everything with it, up to the next rollback to a savepoint.
    Postgres,
    /// Its driver may lose count of the answers where a statement is dropped half-way.
    MySql,
}

/// What may be there.
#[derive(Clone, Copy, Debug)]
struct Row {
    number: u64,
    /// Its statement was dropped half-way.
    perhaps: bool,
}

/// What should be so.
#[derive(Debug, Default)]
struct Model {
    /// There for good, however the job ends.
    lasting: Vec<Row>,
    /// In the job's own transaction, if it has one.
    own: Option<Vec<Row>>,
    /// The transactions within, from the outermost.
    open: Vec<(u64, Vec<Row>)>,
    /// PostgreSQL refuses everything until something is rolled back.
    has_failed: bool,
    /// The session takes nothing more.
    is_lost: bool,
}

impl Model {
    fn write(&mut self, number: u64, perhaps: bool) {
        let top = self.open.last_mut().map(|(_, rows)| rows);
        let rows = top.or(self.own.as_mut()).unwrap_or(&mut self.lasting);
        rows.push(Row { number, perhaps });
    }

    fn is_open(&self, id: u64) -> bool {
        self.open.iter().any(|&(open, _)| open == id)
    }

    fn is_innermost(&self, id: u64) -> bool {
        self.open.last().is_some_and(|&(open, _)| open == id)
    }

    /// A statement of one of the transactions, or of the session.
    fn takes(&self, of: Option<u64>) -> bool {
        !self.is_lost && of.is_none_or(|id| self.is_open(id))
    }

    fn roll_back(&mut self, id: u64) {
        if let Some(at) = self.open.iter().position(|&(open, _)| open == id) {
            self.open.truncate(at);
            self.has_failed = false;
        }
    }

    fn commit(&mut self) {
        let (_, rows) = self.open.pop().unwrap();
        let around = self.open.last_mut().map(|(_, rows)| rows);
        around.or(self.own.as_mut()).unwrap_or(&mut self.lasting).extend(rows);
    }

    fn is_in_a_transaction(&self) -> bool {
        self.own.is_some() || !self.open.is_empty()
    }
}

const fn below(draw: &mut Draw, n: u64) -> u64 {
    draw.any() % n
}

/// Polls a future some times, and drops it. What it answered, if it did.
async fn cut<F: Future>(draw: &mut Draw, future: F) -> Option<F::Output> {
    let mut future = pin!(unconstrained(future));
    for _ in 0..=below(draw, 2) {
        if let Some(output) = future.as_mut().now_or_never() {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

struct History<'a, DB: Database> {
    kind: Kind,
    session: &'a SeaOrmSession<DB>,
    model: Model,
    held: Vec<(u64, SeaOrmTransaction<DB>)>,
    number: u64,
    log: Vec<String>,
}

impl<DB: Database> History<'_, DB> {
    /// What was said is what should have been.
    fn check<T>(&mut self, what: &str, said: &Result<T, DbErr>, is_ok: bool) {
        let said = said.as_ref().map(drop).map_err(ToString::to_string);
        self.log.push(format!("{what}: {said:?}"));
        assert_eq!(said.is_ok(), is_ok, "{:#?}\n{:#?}", self.log, self.model);
    }

    async fn is_lost(&self) -> bool {
        self.session.execute_unprepared("SELECT 1").await.is_err()
    }

    /// Nothing is to be waited for after this: the first poll of what comes next sends it.
    async fn settle(&self) {
        let _ = self.session.execute_unprepared("SELECT 1").await;
    }

    async fn step(&mut self, draw: &mut Draw) {
        let whose = below(draw, self.held.len() as u64 + 1) as usize;
        let held = self.held.get(whose);
        let of = held.map(|&(id, _)| id);
        let takes = self.model.takes(of);
        match below(draw, 16) {
            0..4 => {
                self.number += 1;
                let number = self.number;
                let said = match held {
                    Some((_, transaction)) => insert(transaction, number).await,
                    None => insert(self.session, number).await,
                };
                let is_ok = takes && !self.model.has_failed;
                if is_ok {
                    self.model.write(number, false);
                }
                self.check(&format!("{of:?} writes {number}"), &said, is_ok);
            }
            4 => {
                self.number += 1;
                let number = self.number;
                let said = match held {
                    Some((_, transaction)) => cut(draw, insert(transaction, number)).await,
                    None => cut(draw, insert(self.session, number)).await,
                };
                let is_ok = takes && !self.model.has_failed;
                if is_ok {
                    self.model.write(number, said.is_none());
                }
                match said {
                    Some(said) => self.check(&format!("{of:?} writes {number}"), &said, is_ok),
                    None => {
                        self.log.push(format!("{of:?} half writes {number}"));
                        if is_ok && self.kind == Kind::MySql {
                            self.model.is_lost = self.is_lost().await;
                        }
                    }
                }
            }
            5 => {
                let wrong = "INSERT INTO nowhere VALUES (1)";
                let is_cut = below(draw, 2) == 0;
                if is_cut {
                    self.settle().await;
                }
                let fails = match held {
                    Some((_, transaction)) => transaction.execute_unprepared(wrong),
                    None => self.session.execute_unprepared(wrong),
                };
                let said = if is_cut { cut(draw, fails).await } else { Some(fails.await) };
                let fails = takes && self.kind == Kind::Postgres;
                self.model.has_failed |= fails && self.model.is_in_a_transaction();
                match said {
                    Some(said) => self.check(&format!("{of:?} fails"), &said, false),
                    None => self.log.push(format!("{of:?} half fails")),
                }
            }
            6..10 => {
                let begun = match held {
                    Some((_, transaction)) => transaction.begin().await,
                    None => self.session.begin().await,
                };
                self.begun(of, takes, Some(begun));
            }
            10 => {
                self.settle().await;
                let begun = match held {
                    Some((_, transaction)) => cut(draw, transaction.begin()).await,
                    None => cut(draw, self.session.begin()).await,
                };
                let is_half = begun.is_none();
                self.begun(of, takes, begun);
                if is_half && takes && self.kind == Kind::Sqlite {
                    // It may have been dropped before it asked for anything.
                    self.model.is_lost = self.is_lost().await;
                }
            }
            11..15 if of.is_some() => {
                let (id, transaction) = self.held.remove(whose);
                self.end(draw, id, transaction).await;
            }
            15 if of.is_some() => self.drop_beside_a_statement(whose).await,
            _ => {}
        }
    }

    fn begun(
        &mut self,
        of: Option<u64>,
        takes: bool,
        begun: Option<Result<SeaOrmTransaction<DB>, DbErr>>,
    ) {
        self.number += 1;
        let id = self.number;
        let is_ok = takes && !self.model.has_failed;
        let Some(begun) = begun else {
            self.model.is_lost = true;
            return self.log.push(format!("{of:?} half begins {id}"));
        };
        // The driver rolls back what is around it.
        self.model.is_lost |= takes && !is_ok;
        self.check(&format!("{of:?} begins {id}"), &begun, is_ok);
        if let Ok(transaction) = begun {
            self.model.open.push((id, Vec::new()));
            self.held.push((id, transaction));
        }
    }

    async fn end(&mut self, draw: &mut Draw, id: u64, transaction: SeaOrmTransaction<DB>) {
        let is_open = self.model.is_open(id);
        let way = below(draw, 6);
        if way == 0 || way == 3 {
            self.settle().await;
        }
        match way {
            0..3 => {
                let said = match way {
                    0 => cut(draw, transaction.commit()).await,
                    _ => Some(transaction.commit().await),
                };
                let can = self.model.takes(None) && self.model.is_innermost(id);
                let Some(said) = said else {
                    self.model.is_lost = true;
                    // What it was, nobody knows.
                    if self.model.open.len() == 1 && self.model.own.is_none() {
                        let (_, rows) = self.model.open.pop().unwrap();
                        let perhaps = rows.iter().map(|row| Row { perhaps: true, ..*row });
                        self.model.lasting.extend(perhaps);
                    }
                    return self.log.push(format!("half commits {id}"));
                };
                let is_ok = can && !self.model.has_failed;
                match is_ok {
                    true => self.model.commit(),
                    false => self.model.roll_back(id),
                }
                self.check(&format!("commits {id}"), &said, is_ok);
            }
            3 | 4 => {
                let said = match way {
                    3 => cut(draw, transaction.rollback()).await,
                    _ => Some(transaction.rollback().await),
                };
                let is_ok = self.model.takes(None);
                self.model.roll_back(id);
                match said {
                    Some(said) => self.check(&format!("rolls back {id}"), &said, is_ok),
                    None => self.log.push(format!("half rolls back {id}")),
                }
            }
            _ => {
                drop(transaction);
                self.model.roll_back(id);
                self.log.push(format!("drops {id}"));
            }
        }
        if self.model.is_lost && is_open {
            self.log.push("… and is lost".to_owned());
        }
    }

    /// One is dropped while a statement of the session's has the connection.
    async fn drop_beside_a_statement(&mut self, whose: usize) {
        self.settle().await;
        let (id, transaction) = self.held.remove(whose);
        self.number += 1;
        let number = self.number;
        let is_ok = self.model.takes(None) && !self.model.has_failed;
        let said = {
            let mut statement = pin!(unconstrained(insert(self.session, number)));
            let at_once = statement.as_mut().now_or_never();
            drop(transaction);
            match at_once {
                Some(said) => said,
                None => statement.await,
            }
        };
        if is_ok {
            self.model.write(number, false);
        }
        self.model.roll_back(id);
        self.check(&format!("writes {number}, and {id} is dropped meanwhile"), &said, is_ok);
    }
}

/// What is there for good, from a number on.
async fn rows<DB: Database>(provider: &Arc<SeaOrmProvider<DB>>, first: u64) -> BTreeSet<u64> {
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let found = entry::Entity::find().filter(entry::Column::Number.gte(first as i64));
    let found = found.all(&session).await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();
    found.iter().map(|row| row.number as u64).collect()
}

async fn histories<DB: Database>(kind: Kind, provider: &Arc<SeaOrmProvider<DB>>) {
    let mut number = 0;
    for seed in 0..HISTORIES {
        let draw = &mut Draw::new(seed);
        let first = number + 1;
        let handle = provider.acquire(false).await.unwrap();
        let is_transactional = below(draw, 2) == 0;
        if is_transactional {
            provider.begin(&handle).await.unwrap();
        }
        let mut model = Model { own: is_transactional.then(Vec::new), ..Model::default() };
        let mut log = vec![format!("seed {seed}, transactional: {is_transactional}")];
        // Guard after guard on one connection.
        for _ in 0..=below(draw, 2) {
            let session = provider.session(&handle).unwrap();
            let held = Vec::new();
            let mut history = History { kind, session: &session, model, held, number, log };
            for _ in 0..below(draw, 24) {
                history.step(draw).await;
            }
            while !history.held.is_empty() {
                let at = below(draw, history.held.len() as u64) as usize;
                let (id, dropped) = history.held.remove(at);
                drop(dropped);
                history.model.roll_back(id);
                history.log.push(format!("drops {id} at the end"));
            }
            (model, number, log) = (history.model, history.number, history.log);
        }
        let commits = is_transactional && below(draw, 3) > 0;
        if commits {
            let said = provider.commit(&handle).await;
            log.push(format!("commits: {said:?}"));
            let is_ok = !model.is_lost && !model.has_failed;
            assert_eq!(said.is_ok(), is_ok, "{log:#?}\n{model:#?}");
            let own = model.own.take().unwrap();
            model.lasting.extend(own.into_iter().filter(|_| is_ok));
        }
        let closed = provider.close(&handle).await;
        assert!(closed.is_ok(), "{closed:?}: {log:#?}");

        let found = rows(provider, first).await;
        for row in &model.lasting {
            assert!(row.perhaps || found.contains(&row.number), "{row:?} is lost: {log:#?}");
        }
        for number in found {
            let is_known = model.lasting.iter().any(|row| row.number == number);
            assert!(is_known, "{number} is left: {log:#?}");
        }
    }
}

#[tokio::test]
async fn transactions_within_one_another_are_what_was_said_of_them_on_sqlite() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    histories(Kind::Sqlite, &provider).await;
}

#[tokio::test]
async fn transactions_within_one_another_are_what_was_said_of_them_on_postgres() {
    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    histories(Kind::Postgres, &provider).await;
    database.drop().await;
}

#[tokio::test]
async fn transactions_within_one_another_are_what_was_said_of_them_on_mysql() {
    let Some(database) = MySqlDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    histories(Kind::MySql, &provider).await;
    database.drop().await;
}

/// Tasks that share a session: what is there is what was written in transactions of which all were told
/// that they are committed.
async fn siblings<DB: Database>(provider: &Arc<SeaOrmProvider<DB>>) {
    for seed in 0..ROUNDS {
        let first = 1_000_000 + seed * 1_000;
        let handle = provider.acquire(false).await.unwrap();
        let session = Arc::new(provider.session(&handle).unwrap());
        let mut tasks = JoinSet::new();
        for task in 0..4 {
            let (session, mut draw) = (Arc::clone(&session), Draw::new(seed * 10 + task));
            tasks.spawn(async move {
                let mut said = Vec::new();
                for round in 0..4 {
                    let number = first + task * 100 + round * 10;
                    let Ok(outer) = session.begin().await else { continue };
                    let wrote = insert(&outer, number).await.is_ok();
                    let mut wrote_within = false;
                    if let Ok(within) = outer.begin().await {
                        wrote_within = insert(&within, number + 1).await.is_ok();
                        if draw.one_in(2) {
                            yield_now().await;
                        }
                        match draw.any() % 4 {
                            0 => drop(within),
                            1 => within.rollback().await.unwrap(),
                            _ => wrote_within &= within.commit().await.is_ok(),
                        }
                    }
                    let is_committed = match draw.any() % 4 {
                        0 => false,
                        1 => outer.rollback().await.is_err(),
                        _ => outer.commit().await.is_ok(),
                    };
                    said.push((number, wrote && is_committed));
                    said.push((number + 1, wrote_within && is_committed));
                }
                said
            });
        }
        let said: Vec<_> = tasks.join_all().await.concat();
        drop(session);
        provider.close(&handle).await.unwrap();
        for number in rows(provider, first).await {
            assert!(said.contains(&(number, true)), "seed {seed}: {number} is left: {said:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn siblings_on_threads_leave_only_what_they_were_told_is_committed() {
    let file = SqliteFile::open(2).await;
    siblings(&SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap()).await;
    if let Some(database) = PostgresDatabase::open(2).await {
        siblings(&SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap()).await;
        database.drop().await;
    }
    if let Some(database) = MySqlDatabase::open(2).await {
        siblings(&SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap()).await;
        database.drop().await;
    }
}
