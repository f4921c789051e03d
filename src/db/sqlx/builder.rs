//! The settings of a provider.

use std::fmt;
use std::time::Duration;

use sqlx::{Column as _, Database, Executor, Pool, Row as _, SqlStr};

use super::lease::{Asked, Speak};
use super::{SqlDialect, SqlxProvider};
use crate::account::Account;
use crate::error::ConfigError;
use crate::limits::DatabaseGate;
use crate::sync::Arc;

/// How a [`SqlxProvider`] is to be; from [`SqlxProvider::builder`].
pub struct SqlxProviderBuilder<DB: Database> {
    name: Arc<str>,
    max_concurrent: u32,
    pool: Pool<DB>,
    speak: Speak<DB>,
    dialect: Option<SqlDialect>,
    begin: Option<&'static str>,
    acquire_timeout: Duration,
}

impl<DB: Database> SqlxProviderBuilder<DB> {
    pub(super) fn new(name: Arc<str>, max_concurrent: u32, pool: Pool<DB>) -> Self
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        Self {
            name,
            max_concurrent,
            pool,
            speak: speak::<DB>,
            dialect: SqlDialect::of::<DB>(),
            begin: None,
            acquire_timeout: Duration::from_secs(30),
        }
    }

    /// What the database speaks. Known from the driver's name, until told otherwise; needed for
    /// sqlx's `Any`, which does not know.
    #[must_use]
    pub const fn dialect(mut self, dialect: SqlDialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// The statement that opens a job's transaction; `BEGIN`, until told otherwise, and for jobs that
    /// are read-only.
    ///
    /// `BEGIN IMMEDIATE` is good on SQLite when jobs read before they write: a plain transaction
    /// that has read what another one has changed since cannot write, and no waiting helps.
    #[must_use]
    pub const fn begin_with(mut self, statement: &'static str) -> Self {
        self.begin = Some(statement);
        self
    }

    /// How long a job waits for its connection, for its turn at it, and for each step that ends it;
    /// 30 s, until told otherwise.
    #[must_use]
    pub const fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// The provider.
    ///
    /// # Errors
    ///
    /// When the name is empty, there are no permits, there is no time to acquire in, or the dialect is
    /// not known.
    pub fn build(self) -> Result<Arc<SqlxProvider<DB>>, ConfigError> {
        let account = DatabaseGate::new(&self.name, self.max_concurrent)?;
        let of = |error: ConfigError| error.of(&**account.link().name());
        if self.acquire_timeout.is_zero() {
            return Err(of(ConfigError::new("acquire_timeout", "0 s", "must be positive")));
        }
        let dialect = self.dialect.ok_or_else(|| {
            let requirement = "must be stated for this driver";
            of(ConfigError::new("dialect", format!("{:?}", DB::NAME), requirement))
        })?;
        Ok(Arc::new(SqlxProvider {
            name: self.name,
            account,
            pool: self.pool,
            speak: self.speak,
            dialect,
            begin: self.begin,
            acquire_timeout: self.acquire_timeout,
        }))
    }
}

fn speak<'a, DB: Database>(connection: &'a mut DB::Connection, statement: SqlStr) -> Asked<'a>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    Box::pin(async move {
        let rows = connection.fetch_all(statement).await?;
        let name = |row: &DB::Row| row.columns().first().map(|column| column.name().to_owned());
        Ok(rows.last().map(|row| name(row).unwrap_or_default()))
    })
}

impl<DB: Database> fmt::Debug for SqlxProviderBuilder<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxProviderBuilder")
            .field("name", &self.name)
            .field("max_concurrent", &self.max_concurrent)
            .field("dialect", &self.dialect)
            .finish_non_exhaustive()
    }
}
