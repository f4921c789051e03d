//! The few statements in which databases differ.

use sqlx::Database;

/// How a database is told to refuse writes, and asked about its transaction.
///
/// It goes by the [name](Database::NAME) of sqlx's driver. So no driver has to be chosen here: the
/// host chooses them, as features of its own sqlx. sqlx's `Any` does not say what it is connected to,
/// and needs to be told.
///
/// What a dialect says is plain SQL, so a server that speaks like one of these goes by it too. The
/// tests run on PostgreSQL and SQLite; the contract was run by hand on MariaDB 10.11, and on no MySQL.
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

    /// A query that answers with a row in a transaction that can be committed, where `COMMIT` alone
    /// would not tell: PostgreSQL answers it with success when a statement of the transaction has
    /// failed, and rolls back.
    pub(super) const fn can_commit(self) -> Option<&'static str> {
        match self {
            Self::Postgres => Some(IN_TRANSACTION),
            Self::Sqlite | Self::MySql => None,
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
}

/// A transaction's first statement has the transaction's time. Fails in a transaction that failed.
const IN_TRANSACTION: &str = "SELECT 1 WHERE transaction_timestamp() <> statement_timestamp()";
