//! How SeaORM's statements run on a driver's connection.

use std::fmt;
use std::pin::Pin;

use sea_orm::{DbErr, ExecResult, QueryResult, RuntimeErr, Statement};
use sea_query_sqlx::SqlxValues;
use sqlx::{AssertSqlSafe, Database, Executor, IntoArguments};

pub(super) type Answer<'c, T> = Pin<Box<dyn Future<Output = Result<T, DbErr>> + Send + 'c>>;

pub(super) type Verb<DB, S, T> =
    for<'c> fn(&'c mut <DB as Database>::Connection, S) -> Answer<'c, T>;

/// Function pointers, made where the driver is known to be one of SeaORM's, so that nothing else has
/// to state those bounds, and no driver has to be chosen here.
pub(super) struct Statements<DB: Database> {
    pub(super) execute: Verb<DB, Statement, ExecResult>,
    pub(super) execute_unprepared: Verb<DB, String, ExecResult>,
    pub(super) query_one: Verb<DB, Statement, Option<QueryResult>>,
    pub(super) query_all: Verb<DB, Statement, Vec<QueryResult>>,
}

impl<DB: Database> Statements<DB> {
    pub(super) fn new() -> Self
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        DB::Row: Into<QueryResult>,
        DB::QueryResult: Into<ExecResult>,
        SqlxValues: IntoArguments<DB>,
    {
        Self {
            execute: execute::<DB>,
            execute_unprepared: execute_unprepared::<DB>,
            query_one: query_one::<DB>,
            query_all: query_all::<DB>,
        }
    }
}

impl<DB: Database> Clone for Statements<DB> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<DB: Database> Copy for Statements<DB> {}

impl<DB: Database> fmt::Debug for Statements<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statements").finish_non_exhaustive()
    }
}

fn query<DB: Database>(statement: Statement) -> sqlx::query::Query<'static, DB, SqlxValues>
where
    SqlxValues: IntoArguments<DB>,
{
    let values = statement.values.unwrap_or_else(|| sea_orm::sea_query::Values(Vec::new()));
    sqlx::query_with(AssertSqlSafe(statement.sql), SqlxValues(values))
}

fn execute<'a, DB: Database>(
    connection: &'a mut DB::Connection,
    statement: Statement,
) -> Answer<'a, ExecResult>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::QueryResult: Into<ExecResult>,
    SqlxValues: IntoArguments<DB>,
{
    Box::pin(async move {
        let done = connection.execute(query::<DB>(statement)).await;
        done.map(Into::into).map_err(execution)
    })
}

fn execute_unprepared<'a, DB: Database>(
    connection: &'a mut DB::Connection,
    statement: String,
) -> Answer<'a, ExecResult>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::QueryResult: Into<ExecResult>,
{
    Box::pin(async move {
        let done = connection.execute(AssertSqlSafe(statement)).await;
        done.map(Into::into).map_err(execution)
    })
}

fn query_one<'a, DB: Database>(
    connection: &'a mut DB::Connection,
    statement: Statement,
) -> Answer<'a, Option<QueryResult>>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Row: Into<QueryResult>,
    SqlxValues: IntoArguments<DB>,
{
    Box::pin(async move {
        let row = connection.fetch_optional(query::<DB>(statement)).await.map_err(querying)?;
        // MySQL's driver reads no further than that row, and the statement may fail behind it.
        sqlx::Connection::flush(connection).await.map_err(querying)?;
        Ok(row.map(Into::into))
    })
}

fn query_all<'a, DB: Database>(
    connection: &'a mut DB::Connection,
    statement: Statement,
) -> Answer<'a, Vec<QueryResult>>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Row: Into<QueryResult>,
    SqlxValues: IntoArguments<DB>,
{
    Box::pin(async move {
        let rows = connection.fetch_all(query::<DB>(statement)).await;
        rows.map(|rows| rows.into_iter().map(Into::into).collect()).map_err(querying)
    })
}

// The same variants as SeaORM's own connections answer, so that `DbErr::sql_err` works.

pub(super) fn execution(error: sqlx::Error) -> DbErr {
    DbErr::Exec(RuntimeErr::SqlxError(error.into()))
}

pub(super) fn querying(error: sqlx::Error) -> DbErr {
    DbErr::Query(RuntimeErr::SqlxError(error.into()))
}

/// Whether the database itself said it.
pub(super) fn is_an_answer(error: &DbErr) -> bool {
    matches!(of_sqlx(error), Some(sqlx::Error::Database(_)))
}

/// Whether the driver or the connection failed: what the database says to the statement may still come,
/// or never.
pub(super) fn is_the_drivers(error: &DbErr) -> bool {
    use sqlx::Error::{Io, Protocol, Tls};
    matches!(of_sqlx(error), Some(Io(_) | Protocol(_) | Tls(_)))
}

fn of_sqlx(error: &DbErr) -> Option<&sqlx::Error> {
    match error {
        DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error)) => {
            Some(error)
        }
        _ => None,
    }
}
