//! SeaORM's queries on a job's connection.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use admit::testing::{ProviderContract, ProviderFixture};
use admit::{
    Admission, BoxError, DbProvider, JobRunner, Requirements, SeaOrmProvider, SeaOrmSession,
    SqlxProvider,
};
use sea_orm::entity::prelude::*;
use sea_orm::{
    AccessMode, DbBackend, IsolationLevel, Set, SqliteTransactionMode, Statement,
    TransactionOptions, TransactionSession, TransactionTrait,
};
use sqlx::{Executor, MySql, Postgres, Sqlite};

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sqlite::SqliteFile;

// The derive writes `pub` items beside these.
#[allow(unreachable_pub)]
pub(crate) mod entry {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "entries")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub number: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// As in a repository: any connection will do.
pub(crate) async fn insert(db: &impl ConnectionTrait, number: u64) -> Result<(), DbErr> {
    let row = entry::ActiveModel { number: Set(number as i64) };
    entry::Entity::insert(row).exec_without_returning(db).await.map(drop)
}

async fn count(db: &impl ConnectionTrait) -> usize {
    entry::Entity::find().all(db).await.unwrap().len()
}

struct OnSqlite(SqliteFile);

impl ProviderFixture for OnSqlite {
    type Provider = SeaOrmProvider<Sqlite>;

    fn provider(&self, name: &str, bound: u32) -> Arc<SeaOrmProvider<Sqlite>> {
        SeaOrmProvider::new(name, bound, self.0.pool.clone()).unwrap()
    }

    fn out(&self) -> usize {
        self.0.out()
    }

    async fn connection(&self, session: &mut SeaOrmSession<Sqlite>) -> Result<String, BoxError> {
        let me = Statement::from_string(DbBackend::Sqlite, "SELECT number FROM me");
        let row = session.query_one_raw(me).await?.ok_or("no row")?;
        Ok(row.try_get_by_index::<i64>(0)?.to_string())
    }

    async fn insert(&self, session: &mut SeaOrmSession<Sqlite>, row: u64) -> Result<(), BoxError> {
        Ok(insert(session, row).await?)
    }

    async fn rows(&self, row: u64) -> usize {
        self.0.rows(row).await
    }
}

struct OnPostgres(PostgresDatabase);

impl ProviderFixture for OnPostgres {
    type Provider = SeaOrmProvider<Postgres>;

    fn provider(&self, name: &str, bound: u32) -> Arc<SeaOrmProvider<Postgres>> {
        SeaOrmProvider::new(name, bound, self.0.pool.clone()).unwrap()
    }

    fn out(&self) -> usize {
        self.0.out()
    }

    async fn open_transactions(&self) -> Option<usize> {
        Some(self.0.busy().await)
    }

    async fn connection(&self, session: &mut SeaOrmSession<Postgres>) -> Result<String, BoxError> {
        Ok(backend(session).await?.to_string())
    }

    async fn insert(
        &self,
        session: &mut SeaOrmSession<Postgres>,
        row: u64,
    ) -> Result<(), BoxError> {
        Ok(insert(session, row).await?)
    }

    async fn rows(&self, row: u64) -> usize {
        self.0.rows(row).await
    }

    async fn break_connection(&self, session: &mut SeaOrmSession<Postgres>) -> bool {
        let pid = backend(session).await.unwrap();
        self.0.terminate(pid).await;
        true
    }
}

struct OnMySql(MySqlDatabase);

impl ProviderFixture for OnMySql {
    type Provider = SeaOrmProvider<MySql>;

    fn provider(&self, name: &str, bound: u32) -> Arc<SeaOrmProvider<MySql>> {
        SeaOrmProvider::new(name, bound, self.0.pool.clone()).unwrap()
    }

    fn out(&self) -> usize {
        self.0.out()
    }

    async fn open_transactions(&self) -> Option<usize> {
        Some(self.0.busy().await)
    }

    async fn connection(&self, session: &mut SeaOrmSession<MySql>) -> Result<String, BoxError> {
        Ok(thread(session).await?.to_string())
    }

    async fn insert(&self, session: &mut SeaOrmSession<MySql>, row: u64) -> Result<(), BoxError> {
        Ok(insert(session, row).await?)
    }

    async fn rows(&self, row: u64) -> usize {
        self.0.rows(row).await
    }

    async fn break_connection(&self, session: &mut SeaOrmSession<MySql>) -> bool {
        let id = thread(session).await.unwrap();
        self.0.terminate(id).await;
        true
    }
}

async fn thread(session: &SeaOrmSession<MySql>) -> Result<u64, BoxError> {
    let me = Statement::from_string(DbBackend::MySql, "SELECT connection_id()");
    let row = session.query_one_raw(me).await?.ok_or("no row")?;
    Ok(row.try_get_by_index(0)?)
}

async fn backend(session: &SeaOrmSession<Postgres>) -> Result<i32, BoxError> {
    let me = Statement::from_string(DbBackend::Postgres, "SELECT pg_backend_pid()");
    let row = session.query_one_raw(me).await?.ok_or("no row")?;
    Ok(row.try_get_by_index(0)?)
}

#[tokio::test]
async fn sea_orm_keeps_the_contract_on_sqlite() {
    ProviderContract::new(OnSqlite(SqliteFile::open(8).await)).assert().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sea_orm_keeps_the_contract_on_postgres() {
    let Some(database) = PostgresDatabase::open(8).await else { return };
    let contract = ProviderContract::new(OnPostgres(database));
    contract.assert().await;
    contract.into_fixture().0.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sea_orm_keeps_the_contract_on_mysql() {
    let Some(database) = MySqlDatabase::open(8).await else { return };
    let contract = ProviderContract::new(OnMySql(database));
    contract.assert().await;
    contract.into_fixture().0.drop().await;
}

#[tokio::test]
async fn the_pool_of_a_database_connection_will_do() {
    let file = SqliteFile::open(2).await;
    let host = sea_orm::DatabaseConnection::from(file.pool.clone());
    let provider =
        SeaOrmProvider::new("main", 1, host.get_sqlite_connection_pool().clone()).unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let requirements = Requirements::new().database(&provider).transactional();
    let run = runner.run(requirements, async |resources| {
        let session = resources.get(&provider)?;
        insert(&session, 1).await?;
        Ok::<_, BoxError>((count(&session).await, count(&host).await))
    });
    let seen = Box::pin(run).await.unwrap();
    assert_eq!(seen, (1, 0), "its own transaction sees the row, the host's connection does not");
    assert_eq!(count(&host).await, 1);
}

/// Savepoints in a transactional job, a transaction in another; both with SeaORM's own words.
async fn nests<DB: sqlx::Database>(provider: &Arc<SeaOrmProvider<DB>>, is_transactional: bool) {
    let handle = provider.acquire(false).await.unwrap();
    if is_transactional {
        provider.begin(&handle).await.unwrap();
    }
    let session = provider.session(&handle).unwrap();
    let before = count(&session).await;

    let kept = session.begin().await.unwrap();
    insert(&kept, 10).await.unwrap();
    let inner = kept.begin().await.unwrap();
    insert(&inner, 11).await.unwrap();
    inner.rollback().await.unwrap();
    kept.commit().await.unwrap();
    assert_eq!(count(&session).await, before + 1);

    let dropped = session.begin().await.unwrap();
    insert(&dropped, 12).await.unwrap();
    drop(dropped);
    assert_eq!(count(&session).await, before + 1, "what was dropped open is rolled back");

    let failed = session
        .transaction(|transaction| {
            Box::pin(async move {
                insert(transaction, 13).await?;
                Err::<(), _>(DbErr::Custom("no".to_owned()))
            })
        })
        .await;
    assert!(failed.is_err());
    session
        .transaction(|transaction| Box::pin(async move { insert(transaction, 14).await }))
        .await
        .unwrap();
    assert_eq!(count(&session).await, before + 2);
    drop(session);
    if is_transactional {
        provider.commit(&handle).await.unwrap();
    }
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_transaction_within_a_session_is_its_own_to_commit_on_sqlite() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    nests(&provider, true).await;
    nests(&provider, false).await;
    for (number, rows) in [(10, 2), (11, 0), (12, 0), (13, 0), (14, 2)] {
        assert_eq!(file.rows(number).await, rows, "row {number}");
    }
}

#[tokio::test]
async fn a_transaction_within_a_session_is_its_own_to_commit_on_postgres() {
    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    nests(&provider, true).await;
    nests(&provider, false).await;
    for (number, rows) in [(10, 2), (11, 0), (12, 0), (13, 0), (14, 2)] {
        assert_eq!(database.rows(number).await, rows, "row {number}");
    }
    assert_eq!(database.busy().await, 0);
    database.drop().await;
}

#[tokio::test]
async fn a_transaction_within_a_session_is_its_own_to_commit_on_mysql() {
    let Some(database) = MySqlDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    nests(&provider, true).await;
    nests(&provider, false).await;
    for (number, rows) in [(10, 2), (11, 0), (12, 0), (13, 0), (14, 2)] {
        assert_eq!(database.rows(number).await, rows, "row {number}");
    }
    database.quiet().await;
    database.drop().await;
}

#[tokio::test]
async fn a_transaction_dropped_while_a_sibling_works_is_rolled_back_before_the_next_statement() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let open = session.begin().await.unwrap();
    insert(&open, 1).await.unwrap();
    {
        let long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000)
                    SELECT count(*) FROM n";
        let mut sibling = Box::pin(session.execute_unprepared(long));
        assert!(futures::poll!(sibling.as_mut()).is_pending(), "it has the connection now");
        drop(open);
        sibling.await.unwrap();
    }
    assert_eq!(count(&session).await, 0);
    drop(session);
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_transactions_isolation_and_mode_are_set_where_there_is_one() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let immediate = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..Default::default()
    };
    let transaction = session.begin_with_options(immediate).await.unwrap();
    let other = sqlx::query("BEGIN IMMEDIATE; ROLLBACK; PRAGMA busy_timeout = 60000");
    let mut observer = file.observer.acquire().await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *observer).await.unwrap();
    assert!(other.execute(&mut *observer).await.is_err(), "the write lock is taken");
    transaction.rollback().await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();

    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let transaction = session
        .begin_with_config(Some(IsolationLevel::Serializable), Some(AccessMode::ReadOnly))
        .await
        .unwrap();
    let level = Statement::from_string(DbBackend::Postgres, "SHOW transaction_isolation");
    let row = transaction.query_one_raw(level).await.unwrap().unwrap();
    assert_eq!(row.try_get_by_index::<String>(0).unwrap(), "serializable");
    assert!(insert(&transaction, 1).await.is_err(), "it may only read");
    transaction.rollback().await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();
    database.drop().await;
}

#[tokio::test]
async fn it_shares_the_bound_of_the_provider_it_is_over() {
    let file = SqliteFile::open(2).await;
    let inner = SqlxProvider::new("main", 3, file.pool.clone()).unwrap();
    let provider = SeaOrmProvider::over(&inner);
    assert!(Arc::ptr_eq(provider.account(), inner.account()));
    let handle = provider.acquire(false).await.unwrap();
    insert(&provider.session(&handle).unwrap(), 1).await.unwrap();
    inner.close(&handle).await.unwrap();
    assert_eq!((file.out(), file.rows(1).await), (0, 1));
}

/// The driver ends whichever is innermost, whoever asks.
#[tokio::test]
async fn a_transaction_ends_its_own_and_not_its_siblings() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();

    // Told that it is committed, the first would be undone by the second's rollback.
    let first = session.begin().await.unwrap();
    insert(&first, 1).await.unwrap();
    let second = session.begin().await.unwrap();
    insert(&second, 2).await.unwrap();
    let error = first.commit().await.unwrap_err();
    assert!(error.to_string().contains("within this one"), "{error}");
    let error = second.commit().await.unwrap_err();
    assert!(error.to_string().contains("is rolled back"), "{error}");
    assert_eq!(count(&session).await, 0);

    // Dropped, it takes those within it along, and does not leave itself to be committed by them.
    let first = session.begin().await.unwrap();
    insert(&first, 3).await.unwrap();
    let second = session.begin().await.unwrap();
    drop(first);
    insert(&session, 4).await.unwrap();
    second.commit().await.unwrap_err();
    assert_eq!(count(&session).await, 1);

    // A rollback takes them along as well, and theirs is nothing then.
    let first = session.begin().await.unwrap();
    let second = session.begin().await.unwrap();
    insert(&second, 5).await.unwrap();
    first.rollback().await.unwrap();
    second.rollback().await.unwrap();
    assert_eq!(count(&session).await, 1);

    let first = session.begin().await.unwrap();
    let second = session.begin().await.unwrap();
    insert(&second, 6).await.unwrap();
    second.commit().await.unwrap();
    first.commit().await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();
    for (number, rows) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 0), (6, 1)] {
        assert_eq!(file.rows(number).await, rows, "row {number}");
    }
}

/// sqlx's driver for PostgreSQL rolls back the transaction around a savepoint that fails or is dropped
/// half-way. What the job writes after that would stay whatever becomes of it.
#[tokio::test]
async fn a_begin_that_costs_the_jobs_transaction_is_the_sessions_last_word() {
    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    for (is_transactional, fails) in [(true, true), (true, false), (false, false)] {
        let handle = provider.acquire(false).await.unwrap();
        if is_transactional {
            provider.begin(&handle).await.unwrap();
        }
        let session = provider.session(&handle).unwrap();
        if fails {
            session.execute_unprepared("SELECT 1 / 0").await.unwrap_err();
            session.begin().await.unwrap_err();
        } else {
            loop {
                // Without the budget of the test's own task, which may be spent before it begins.
                let mut begin = tokio::task::unconstrained(session.begin());
                // A server may be that fast.
                let Poll::Ready(begun) = futures::poll!(&mut begin) else { break };
                begun.unwrap().rollback().await.unwrap();
            }
        }
        insert(&session, 1).await.unwrap_err();
        session.begin().await.unwrap_err();
        drop(session);
        let session = provider.session(&handle).unwrap();
        let error = insert(&session, 1).await.unwrap_err();
        assert!(error.to_string().contains("takes no more statements"), "{error}");
        drop(session);
        if is_transactional {
            provider.commit(&handle).await.unwrap_err();
        }
        provider.close(&handle).await.unwrap();
        assert_eq!((database.rows(1).await, database.out()), (0, 0));
        // The server may not have noticed yet that a connection is closed.
        while database.busy().await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    database.drop().await;
}

/// What it writes would be outside it, and stay whatever becomes of it.
#[tokio::test]
async fn a_transaction_that_is_gone_takes_no_more_statements() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    for is_transactional in [false, true] {
        let handle = provider.acquire(false).await.unwrap();
        if is_transactional {
            provider.begin(&handle).await.unwrap();
        }
        let session = provider.session(&handle).unwrap();
        let first = session.begin().await.unwrap();
        let second = session.begin().await.unwrap();
        let third = second.begin().await.unwrap();
        insert(&third, 1).await.unwrap();
        first.rollback().await.unwrap();
        for gone in [&second, &third] {
            let error = insert(gone, 1).await.unwrap_err();
            assert!(error.to_string().contains("is rolled back"), "{error}");
            let error = gone.begin().await.unwrap_err();
            assert!(error.to_string().contains("is rolled back"), "{error}");
            gone.execute_unprepared("INSERT INTO entries VALUES (1)").await.unwrap_err();
            let all = entry::Entity::find();
            all.clone().all(gone).await.unwrap_err();
            all.one(gone).await.unwrap_err();
        }
        second.rollback().await.unwrap();
        insert(&session, 2).await.unwrap();
        drop((third, session));
        if is_transactional {
            provider.commit(&handle).await.unwrap();
        }
        provider.close(&handle).await.unwrap();
        assert_eq!(file.rows(1).await, 0);
    }
    assert_eq!(file.rows(2).await, 2);
}

/// SQLite's driver rolls back in a thread of its own, and says how deep it is only after that.
#[tokio::test]
async fn a_transaction_may_begin_right_after_one_that_was_dropped() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    let immediate = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..Default::default()
    };
    let mut observer = file.observer.acquire().await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *observer).await.unwrap();
    for _ in 0..20 {
        let handle = provider.acquire(false).await.unwrap();
        let session = provider.session(&handle).unwrap();
        let dropped = session.begin().await.unwrap();
        insert(&dropped, 1).await.unwrap();
        drop(dropped);
        let kept = session.begin_with_options(immediate).await.unwrap();
        let other = sqlx::query("BEGIN IMMEDIATE; ROLLBACK");
        assert!(other.execute(&mut *observer).await.is_err(), "the write lock is taken");
        insert(&kept, 2).await.unwrap();
        kept.commit().await.unwrap();
        drop(session);
        provider.close(&handle).await.unwrap();
    }
    drop(observer);
    assert_eq!((file.rows(1).await, file.rows(2).await), (0, 20));
}

/// A savepoint has its name from how deep it is, and one that was rolled back to is there still. A
/// rollback after a release that the server has seen goes back to that one.
#[tokio::test]
async fn a_commit_dropped_half_way_undoes_nothing_around_it_unsaid() {
    let file = SqliteFile::open(2).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    half_commits(&provider).await;
    if let Some(database) = PostgresDatabase::open(2).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        half_commits(&provider).await;
        database.drop().await;
    }
    if let Some(database) = MySqlDatabase::open(2).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        half_commits(&provider).await;
        database.drop().await;
    }
}

async fn half_commits<DB: sqlx::Database>(provider: &Arc<SeaOrmProvider<DB>>) {
    for number in 1..=10 {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let session = provider.session(&handle).unwrap();
        session.begin().await.unwrap().rollback().await.unwrap();
        insert(&session, number).await.unwrap();
        let within = session.begin().await.unwrap();
        let mut commit = Box::pin(tokio::task::unconstrained(within.commit()));
        let is_half = futures::poll!(commit.as_mut()).is_pending();
        drop(commit);
        let goes_on = insert(&session, 100 + number).await;
        drop(session);
        let committed = provider.commit(&handle).await;
        provider.close(&handle).await.unwrap();
        let handle = provider.acquire(false).await.unwrap();
        let session = provider.session(&handle).unwrap();
        let rows = |number: u64| {
            let session = &session;
            let found = entry::Entity::find().filter(entry::Column::Number.eq(number as i64));
            async move { found.all(session).await.unwrap().len() }
        };
        let expected = usize::from(committed.is_ok());
        assert_eq!(rows(number).await, expected, "half: {is_half}, {goes_on:?}, {committed:?}");
        assert_eq!(rows(100 + number).await, usize::from(goes_on.is_ok() && committed.is_ok()));
        drop(session);
        provider.close(&handle).await.unwrap();
    }
}

/// The databases answer such a commit with success.
#[tokio::test]
async fn a_commit_of_what_a_statement_has_ended_says_so() {
    if let Some(database) = PostgresDatabase::open(2).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        ended_by(&provider, "SELECT 1 / 0").await;
        assert_eq!((database.rows(1).await, database.rows(2).await), (0, 1));
        database.drop().await;
    }
    if let Some(database) = MySqlDatabase::open(2).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        ended_by(&provider, "ROLLBACK").await;
        assert_eq!((database.rows(1).await, database.rows(2).await), (0, 1));
        database.drop().await;
    }
}

async fn ended_by<DB: sqlx::Database>(provider: &Arc<SeaOrmProvider<DB>>, statement: &str) {
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let transaction = session.begin().await.unwrap();
    insert(&transaction, 1).await.unwrap();
    // The job goes on from it.
    let _ = transaction.execute_unprepared(statement).await;
    transaction.commit().await.unwrap_err();
    // There was nothing around it to be lost.
    let transaction = session.begin().await.unwrap();
    insert(&transaction, 2).await.unwrap();
    transaction.commit().await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();
}

/// MySQL is told of them before the transaction: left there, they would be the next one's.
#[tokio::test]
async fn what_is_set_for_a_transaction_that_is_not_begun_is_no_others() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    loop {
        let begin = session.begin_with_config(None, Some(AccessMode::ReadOnly));
        let mut begin = tokio::task::unconstrained(begin);
        // A server may be that fast.
        let Poll::Ready(begun) = futures::poll!(&mut begin) else { break };
        begun.unwrap().rollback().await.unwrap();
    }
    let error = session.begin().await.unwrap_err();
    assert!(error.to_string().contains("takes no more statements"), "{error}");
    drop(session);
    provider.close(&handle).await.unwrap();

    // Where the server refuses it nothing is left, and the session goes on.
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let session = provider.session(&handle).unwrap();
    session.begin_with_config(None, Some(AccessMode::ReadOnly)).await.unwrap_err();
    insert(&session, 1).await.unwrap();
    drop(session);
    provider.commit(&handle).await.unwrap();
    provider.close(&handle).await.unwrap();
    assert_eq!(database.rows(1).await, 1);
    database.drop().await;
}

/// Else a repository that asks for it, as for any other job, would write in one that may only read.
#[tokio::test]
async fn a_read_only_jobs_transactions_are_read_only_whatever_they_ask_for() {
    let file = SqliteFile::open(1).await;
    let provider = SeaOrmProvider::new("main", 1, file.pool.clone()).unwrap();
    asks_to_write(&provider).await;
    assert_eq!(file.rows(1).await, 0);
    if let Some(database) = PostgresDatabase::open(1).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        asks_to_write(&provider).await;
        assert_eq!(database.rows(1).await, 0);
        database.drop().await;
    }
    if let Some(database) = MySqlDatabase::open(1).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        asks_to_write(&provider).await;
        assert_eq!(database.rows(1).await, 0);
        database.drop().await;
    }
}

async fn asks_to_write<DB: sqlx::Database>(provider: &Arc<SeaOrmProvider<DB>>) {
    let handle = provider.acquire(true).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let transaction = session.begin_with_config(None, Some(AccessMode::ReadWrite)).await.unwrap();
    count(&transaction).await;
    insert(&transaction, 1).await.unwrap_err();
    drop((transaction, session));
    provider.close(&handle).await.unwrap();
    // The next one may, and says so.
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let transaction = session.begin_with_config(None, Some(AccessMode::ReadWrite)).await.unwrap();
    insert(&transaction, 2).await.unwrap();
    drop((transaction, session));
    provider.close(&handle).await.unwrap();
}

/// sqlx's driver for MySQL loses count where one is dropped while it is prepared, and gives the next one
/// its answer.
#[tokio::test]
async fn a_statement_after_one_that_was_dropped_has_its_own_answer_or_none() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    for number in 1..=30 {
        let handle = provider.acquire(false).await.unwrap();
        let session = provider.session(&handle).unwrap();
        // Another one each time, so that it is prepared anew.
        let sql = format!("SELECT number + {number} FROM entries WHERE number = ?");
        let unknown = Statement::from_sql_and_values(DbBackend::MySql, sql, [1.into()]);
        let mut dropped = Box::pin(tokio::task::unconstrained(session.query_all_raw(unknown)));
        if futures::poll!(dropped.as_mut()).is_pending() && number % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(number / 4)).await;
            let _ = futures::poll!(dropped.as_mut());
        }
        drop(dropped);
        let session = match number % 3 {
            0 => {
                drop(session);
                provider.session(&handle).unwrap()
            }
            _ => session,
        };
        let asked = Statement::from_string(DbBackend::MySql, format!("SELECT 1000 + {number}"));
        let answer = async {
            let row = session.query_one_raw(asked).await?;
            row.ok_or(DbErr::RecordNotFound(String::new()))?.try_get_by_index::<i64>(0)
        };
        match answer.await {
            Ok(answer) => assert_eq!(answer, 1000 + number as i64),
            Err(error) => {
                assert!(error.to_string().contains("takes no more statements"), "{error}");
            }
        }
        drop(session);
        let _ = provider.close(&handle).await;
    }
    database.drop().await;
}

/// Polls a statement once, and drops it. Its error is for nobody.
async fn dropped(db: &impl ConnectionTrait, statement: &str) {
    let mut dropped = db.execute_unprepared(statement);
    let _ = futures::poll!(&mut dropped);
}

/// sqlx's driver for PostgreSQL would have begun by then, and not know it: what comes after would be
/// rolled back as the job ends.
#[tokio::test]
async fn the_error_of_a_statement_that_was_dropped_is_told_to_nobody_else() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    let fails = "SELECT 1 / 0 FROM pg_sleep(0.02)";

    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    dropped(&session, fails).await;
    let transaction = session.begin().await.expect("a begin of its own");
    drop(transaction);
    dropped(&session, fails).await;
    insert(&session, 1).await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();
    assert_eq!(database.rows(1).await, 1);

    // Nor to the job's own end, where what it was in is rolled back.
    for transactional in [true, false] {
        let handle = provider.acquire(false).await.unwrap();
        if transactional {
            provider.begin(&handle).await.unwrap();
        }
        let session = provider.session(&handle).unwrap();
        insert(&session, 2).await.unwrap();
        let transaction = session.begin().await.unwrap();
        insert(&transaction, 3).await.unwrap();
        dropped(&transaction, fails).await;
        drop((transaction, session));
        if transactional {
            provider.commit(&handle).await.unwrap();
        }
        provider.close(&handle).await.unwrap();
    }
    assert_eq!((database.rows(2).await, database.rows(3).await), (2, 0));
    database.drop().await;
}

/// The drivers would wait for it without end.
#[tokio::test]
async fn a_session_whose_driver_waits_for_an_answer_that_does_not_come_refuses_to_go_on() {
    if let Some(database) = PostgresDatabase::open(1).await {
        let inner = SqlxProvider::builder("main", 1, database.pool.clone());
        let inner = inner.acquire_timeout(Duration::from_millis(500)).build().unwrap();
        let provider = SeaOrmProvider::over(&inner);
        // What the driver has read by itself costs nothing.
        let tables = ["COPY entries TO STDOUT", "COPY entries FROM STDIN"];
        for (number, copies) in (0..).zip(tables) {
            let handle = provider.acquire(false).await.unwrap();
            let session = provider.session(&handle).unwrap();
            session.execute_unprepared(copies).await.unwrap_err();
            assert_eq!(insert(&session, number).await.is_ok(), number == 0, "{copies}");
            drop(session);
            provider.close(&handle).await.unwrap();
            assert_eq!(database.out(), 0);
        }
        database.drop().await;
    }
    if let Some(database) = MySqlDatabase::open(1).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        let handle = provider.acquire(false).await.unwrap();
        let session = provider.session(&handle).unwrap();
        let one_too_many = [1.into(), 2.into()];
        let sql = "INSERT INTO entries VALUES (?)";
        let wrong = Statement::from_sql_and_values(DbBackend::MySql, sql, one_too_many);
        session.execute_raw(wrong).await.unwrap_err();
        let error = insert(&session, 1).await.unwrap_err();
        assert!(error.to_string().contains("takes no more statements"), "{error}");
        drop(session);
        provider.close(&handle).await.unwrap();
        assert_eq!((database.out(), database.rows(1).await), (0, 0));
        database.drop().await;
    }
}

/// Its answer is read by nobody: what comes after would stay, whatever becomes of the job.
#[tokio::test]
async fn a_session_whose_transaction_went_with_a_statement_that_was_dropped_refuses_to_go_on() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    let of_two = "CREATE TABLE pair (id BIGINT PRIMARY KEY, number BIGINT NOT NULL)";
    for statement in [of_two, "INSERT INTO pair VALUES (1, 0), (2, 0)"] {
        database.observer.execute(statement).await.unwrap();
    }
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let session = provider.session(&handle).unwrap();
    session.execute_unprepared("UPDATE pair SET number = 1 WHERE id = 1").await.unwrap();
    let mut other = database.observer.begin().await.unwrap();
    // Of two that wait for each other the one that has written less is rolled back.
    let much = "INSERT INTO entries WITH RECURSIVE n AS (SELECT 8 AS i UNION SELECT i + 1 FROM n
                WHERE i < 500) SELECT i FROM n";
    for statement in [much, "UPDATE pair SET number = 2 WHERE id = 2"] {
        other.execute(statement).await.unwrap();
    }
    dropped(&session, "UPDATE pair SET number = 1 WHERE id = 2").await;
    other.execute("UPDATE pair SET number = 2 WHERE id = 1").await.unwrap();
    other.rollback().await.unwrap();

    let error = insert(&session, 1).await.unwrap_err();
    assert!(error.to_string().contains("takes no more statements"), "{error}");
    drop(session);
    provider.commit(&handle).await.unwrap_err();
    provider.close(&handle).await.unwrap();
    assert_eq!(database.rows(1).await, 0);
    database.drop().await;
}

/// The rollback of the transaction it was in is sent when its answer has been read: sqlx's driver for
/// MySQL would take a part of that for the rollback's, and wait for the rest without end.
#[tokio::test]
async fn a_transaction_dropped_while_a_statement_of_it_is_prepared_hangs_nothing() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    for number in 1..=8 {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let session = provider.session(&handle).unwrap();
        let transaction = session.begin().await.unwrap();
        let columns = vec!["number"; number as usize].join(", ");
        let sql = format!("SELECT {columns} FROM entries WHERE number = ?");
        let unknown = Statement::from_sql_and_values(DbBackend::MySql, sql, [1.into()]);
        // It is prepared when the table is free.
        let mut other = database.observer.acquire().await.unwrap();
        other.execute("LOCK TABLES entries WRITE").await.unwrap();
        let mut dropped = transaction.query_all_raw(unknown);
        assert!(futures::poll!(&mut dropped).is_pending());
        drop(dropped);
        drop(transaction);
        other.execute("UNLOCK TABLES").await.unwrap();
        let wrote = tokio::time::timeout(Duration::from_secs(20), insert(&session, number)).await;
        let wrote = wrote.expect("it does not hang").is_ok();
        drop(session);
        let committed = provider.commit(&handle).await.is_ok();
        assert!(wrote || !committed);
        provider.close(&handle).await.unwrap();
        assert_eq!(database.rows(number).await, usize::from(committed));
    }
    database.drop().await;
}

/// A statement that is dropped while it waits for the answer to an earlier one costs no more than that:
/// with a time-out around each, a slow one may well outlast two.
#[tokio::test]
async fn a_slow_statement_that_outlasts_several_time_outs_costs_its_session_nothing() {
    if let Some(database) = MySqlDatabase::open(1).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        let sleeps = |seconds: f64| {
            let sql = "SELECT SLEEP(?)";
            Statement::from_sql_and_values(DbBackend::MySql, sql, [seconds.into()])
        };
        outlasts(&provider, sleeps).await;
        assert_eq!(database.rows(1).await, 2);
        database.drop().await;
    }
    if let Some(database) = PostgresDatabase::open(1).await {
        let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
        let sleeps = |seconds: f64| {
            let sql = "SELECT 1 FROM pg_sleep($1)";
            Statement::from_sql_and_values(DbBackend::Postgres, sql, [seconds.into()])
        };
        outlasts(&provider, sleeps).await;
        assert_eq!(database.rows(1).await, 2);
        database.drop().await;
    }
}

async fn outlasts<DB: sqlx::Database>(
    provider: &Arc<SeaOrmProvider<DB>>,
    sleeps: impl Fn(f64) -> Statement,
) {
    for transactional in [true, false] {
        let handle = provider.acquire(false).await.unwrap();
        if transactional {
            provider.begin(&handle).await.unwrap();
        }
        let session = provider.session(&handle).unwrap();
        // Once before, so that the next is not dropped while it is prepared.
        session.query_one_raw(sleeps(0.0)).await.unwrap();
        {
            let mut slow = session.query_one_raw(sleeps(0.5));
            for _ in 0..3 {
                assert!(futures::poll!(&mut slow).is_pending());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        for _ in 0..3 {
            let mut next = session.query_one_raw(sleeps(0.0));
            for _ in 0..3 {
                let _ = futures::poll!(&mut next);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        insert(&session, 1).await.unwrap();
        drop(session);
        if transactional {
            provider.commit(&handle).await.unwrap();
        }
        provider.close(&handle).await.unwrap();
    }
}

/// What is set in a transaction as it begins may be dropped half-way, too.
#[tokio::test]
async fn the_error_of_a_setting_that_was_dropped_is_told_to_nobody_else() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    for polls in (1..=4).cycle().take(60) {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let session = provider.session(&handle).unwrap();
        // After this no level can be set.
        insert(&session, 1).await.unwrap();
        let mut begin = session.begin_with_config(Some(IsolationLevel::Serializable), None);
        for _ in 0..polls {
            if futures::poll!(&mut begin).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(begin);
        if let Err(error) = insert(&session, 2).await {
            assert!(error.to_string().contains("takes no more statements"), "{error}");
        }
        drop(session);
        provider.close(&handle).await.unwrap();
    }
    database.drop().await;
}
