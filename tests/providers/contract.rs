//! The provider contract, on every provider the crate has.

use std::sync::Arc;

use admit::CountingProvider;
use admit::testing::{ProviderContract, ProviderFixture};

use crate::mysql::{MySqlDatabase, SqlxOnMySql};
use crate::postgres::{PostgresDatabase, SqlxOnPostgres};
use crate::sqlite::{SqliteFile, SqlxOnSqlite};

struct Counting;

impl ProviderFixture for Counting {
    type Provider = CountingProvider;
    const HOLDS_A_CONNECTION: bool = false;

    fn provider(&self, name: &str, bound: u32) -> Arc<CountingProvider> {
        CountingProvider::new(name, bound).unwrap()
    }
}

#[tokio::test]
async fn the_provider_that_only_counts_keeps_what_applies() {
    ProviderContract::new(Counting).assert().await;
}

#[tokio::test]
async fn sqlx_keeps_the_contract_on_sqlite() {
    ProviderContract::new(SqlxOnSqlite(SqliteFile::open(8).await)).assert().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlx_keeps_the_contract_on_sqlite_with_threads() {
    ProviderContract::new(SqlxOnSqlite(SqliteFile::open(8).await)).assert().await;
}

#[tokio::test]
async fn sqlx_keeps_the_contract_on_postgres() {
    let Some(database) = PostgresDatabase::open(8).await else { return };
    let contract = ProviderContract::new(SqlxOnPostgres(database));
    contract.assert().await;
    contract.into_fixture().0.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlx_keeps_the_contract_on_postgres_with_threads() {
    let Some(database) = PostgresDatabase::open(8).await else { return };
    let contract = ProviderContract::new(SqlxOnPostgres(database));
    contract.assert().await;
    contract.into_fixture().0.drop().await;
}

#[tokio::test]
async fn sqlx_keeps_the_contract_on_mysql() {
    let Some(database) = MySqlDatabase::open(8).await else { return };
    let contract = ProviderContract::new(SqlxOnMySql(database));
    contract.assert().await;
    contract.into_fixture().0.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlx_keeps_the_contract_on_mysql_with_threads() {
    let Some(database) = MySqlDatabase::open(8).await else { return };
    let contract = ProviderContract::new(SqlxOnMySql(database));
    contract.assert().await;
    contract.into_fixture().0.drop().await;
}
