//! The few statements in which databases differ.

use sqlx::{AssertSqlSafe, Database, SqlSafeStr as _, SqlStr};

/// How a database is told to refuse writes, and asked about its transaction.
///
/// It goes by the [name](Database::NAME) of sqlx's driver. So no driver has to be chosen here: the
/// host chooses them, as features of its own sqlx. sqlx's `Any` does not say what it is connected to,
/// and needs to be told.
///
/// What a dialect says is plain SQL, so a server that speaks like one of these goes by it too. The
/// tests run on PostgreSQL, SQLite and MariaDB; on MySQL they can be run, and were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SqlDialect {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
    /// MySQL and MariaDB.
    MySql,
}

impl SqlDialect {
    /// The dialect of a driver, if its name says it.
    #[must_use]
    pub fn of<DB: Database>() -> Option<Self> {
        match DB::NAME {
            "PostgreSQL" => Some(Self::Postgres),
            "SQLite" => Some(Self::Sqlite),
            "MySQL" => Some(Self::MySql),
            _ => None,
        }
    }

    /// A query that answers with a row where writes are refused already: by the host, who then keeps
    /// it so.
    pub(super) const fn refuses_writes(self) -> &'static str {
        match self {
            Self::Postgres => {
                "SELECT 1 WHERE current_setting('default_transaction_read_only') = 'on'"
            }
            Self::Sqlite => "SELECT 1 FROM pragma_query_only WHERE query_only = 1",
            // Its name differs among versions.
            Self::MySql => {
                "SHOW SESSION VARIABLES WHERE Value = 'ON'
                 AND Variable_name IN ('transaction_read_only', 'tx_read_only')"
            }
        }
    }

    pub(super) const fn refuse_writes(self) -> &'static str {
        match self {
            Self::Postgres => "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            Self::Sqlite => "PRAGMA query_only = ON",
            Self::MySql => "SET SESSION TRANSACTION READ ONLY",
        }
    }

    pub(super) const fn allow_writes(self) -> &'static str {
        match self {
            Self::Postgres => "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            Self::Sqlite => "PRAGMA query_only = OFF",
            Self::MySql => "SET SESSION TRANSACTION READ WRITE",
        }
    }

    /// A question that is answered with yes in a transaction that can be committed, where `COMMIT`
    /// alone would not tell: PostgreSQL answers it with success when a statement of the transaction
    /// has failed, and rolls back; MySQL answers it with success where no transaction is open any
    /// more, after a deadlock or a statement that commits by itself.
    pub(super) fn can_commit(self) -> Option<Question> {
        match self {
            Self::Postgres => Some(Question::row(IN_TRANSACTION)),
            Self::Sqlite => None,
            // Outside a transaction a savepoint is gone with the statement that made it.
            Self::MySql => Some(Question::marked(|mark| {
                format!("SAVEPOINT {mark}; RELEASE SAVEPOINT {mark}; SELECT 1 AS {mark}")
            })),
        }
    }

    /// A statement that fails, or answers with a row, where a transaction is open that sqlx knows
    /// nothing of, because the job's own SQL opened it. Changes nothing elsewhere, and makes no noise
    /// in the server's log.
    pub(super) const fn finds_stray(self) -> &'static str {
        match self {
            Self::Postgres => IN_TRANSACTION,
            // Within a transaction the first of the two fails.
            Self::Sqlite => "BEGIN; ROLLBACK",
            // There it needs no finding out: this is silent without a transaction.
            Self::MySql => "ROLLBACK",
        }
    }

    /// A question that is answered with yes, where the driver may have lost count of the answers, and
    /// with no, where the connection would lose what the next one writes.
    ///
    /// sqlx's driver for MySQL loses count when a statement with arguments is dropped before the server
    /// has prepared it: from then on it takes what is left of that answer for the next one, and
    /// everybody gets somebody else's. And where a job has turned `autocommit` off, or has every
    /// transaction begin another at its end (`completion_type`), the next one's writes would all be in a
    /// transaction that nobody commits. What the host has set for its
    /// connections is not known here, so nothing is set anew.
    pub(super) fn can_go_back(self) -> Option<Question> {
        match self {
            Self::Postgres | Self::Sqlite => None,
            Self::MySql => Some(Question::marked(|mark| {
                format!(
                    "SELECT 1 AS {mark}; SELECT 1 AS {mark}_{NO} FROM dual
                     WHERE @@session.autocommit <> @@global.autocommit
                        OR @@session.completion_type <> @@global.completion_type"
                )
            })),
        }
    }
}

/// A statement, and the answer that means yes.
pub(super) struct Question {
    statement: SqlStr,
    /// What the answer bears where it must be told from every other: as the name of the first column,
    /// or in the error that means no. So does the same name with [`NO`] at its end.
    mark: Option<String>,
}

impl Question {
    /// Any row is a yes.
    pub(super) fn row(statement: &'static str) -> Self {
        Self { statement: statement.into_sql_str(), mark: None }
    }

    fn marked(statement: impl FnOnce(&str) -> String) -> Self {
        let mark = format!("admit_{:016x}", fastrand::u64(..));
        Self { statement: AssertSqlSafe(statement(&mark)).into_sql_str(), mark: Some(mark) }
    }

    pub(super) fn statement(&self) -> SqlStr {
        self.statement.clone()
    }

    /// What an answer means: the name of the first column of its last row, or an error.
    pub(super) fn read(&self, answer: sqlx::Result<Option<String>>) -> sqlx::Result<bool> {
        match (&self.mark, answer) {
            (None, answer) => Ok(answer?.is_some()),
            (Some(mark), Ok(Some(name))) if name == *mark => Ok(true),
            (Some(mark), Ok(Some(name))) if name == format!("{mark}_{NO}") => Ok(false),
            (Some(mark), Err(sqlx::Error::Database(error))) if error.message().contains(mark) => {
                Ok(false)
            }
            (Some(_), Err(error)) => Err(error),
            (Some(_), Ok(_)) => {
                let what = "the connection gives the answer to another statement: one was dropped \
                            half-way";
                Err(sqlx::Error::Protocol(what.to_owned()))
            }
        }
    }
}

const NO: &str = "no";

/// A transaction's first statement has the transaction's time. Fails in a transaction that failed.
const IN_TRANSACTION: &str = "SELECT 1 WHERE transaction_timestamp() <> statement_timestamp()";
