//! SeaORM's queries on a job's connection.

mod dropped;
mod transactions;

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

use crate::mysql::{FAILS_LATE, MySqlDatabase};
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

pub(crate) async fn thread(session: &SeaOrmSession<MySql>) -> Result<u64, BoxError> {
    let me = Statement::from_string(DbBackend::MySql, "SELECT connection_id()");
    let row = session.query_one_raw(me).await?.ok_or("no row")?;
    Ok(row.try_get_by_index(0)?)
}

pub(crate) async fn backend(session: &SeaOrmSession<Postgres>) -> Result<i32, BoxError> {
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
