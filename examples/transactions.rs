//! Jobs that write to a database: each holds one connection while it may run, and works inside one
//! transaction that its repository functions find by themselves.
//!
//! One order is for more apples than there are. Its job fails after it has written, and leaves only
//! its audit row, which a transaction of its own has committed.
//!
//! ```console
//! cargo run --example transactions
//! ```

use std::sync::Arc;
use std::time::Duration;

use admit::{Admission, BoxError, JobInfo, JobRunner, Requirements, SqlxProvider};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{Executor, Row, Sqlite};

/// What is sold. Its functions are handed no connection: they take the one of the job they run in.
struct Shop {
    database: Arc<SqlxProvider<Sqlite>>,
}

impl Shop {
    /// Written whatever becomes of the order: on a second connection, in a transaction of its own.
    ///
    /// SQLite has one writer. So this comes before the job's own transaction writes.
    async fn audit(&self, customer: &str) -> Result<(), BoxError> {
        self.database
            .requires_new(async || {
                let insert = sqlx::query("INSERT INTO audit (customer) VALUES (?)").bind(customer);
                insert.execute(&mut *self.database.ambient().await?).await?;
                Ok(())
            })
            .await
    }

    async fn book(&self, customer: &str, apples: u32) -> Result<(), BoxError> {
        let insert = sqlx::query("INSERT INTO orders (customer, apples) VALUES (?, ?)");
        let insert = insert.bind(customer).bind(apples);
        insert.execute(&mut *self.database.ambient().await?).await?;
        Ok(())
    }

    async fn take(&self, apples: u32) -> Result<(), BoxError> {
        let take = sqlx::query("UPDATE stock SET apples = apples - ?1 WHERE apples >= ?1");
        let taken = take.bind(apples).execute(&mut *self.database.ambient().await?).await?;
        if taken.rows_affected() == 1 {
            Ok(())
        } else {
            Err(format!("there are no {apples} apples").into())
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let pool = open(folder.path()).await?;

    // Two jobs at once, and room in the pool for a second connection of each.
    let shop = Arc::new(Shop { database: SqlxProvider::new("shop", 2, pool.clone())? });
    let admission = Admission::builder().start()?;
    let runner = JobRunner::builder(&admission).build()?;

    for (customer, apples) in [("Ada", 3), ("Grace", 40), ("Barbara", 5)] {
        let requirements = Requirements::new()
            .database(&shop.database)
            .transactional()
            .for_job(JobInfo::new(customer, "order"));
        let ordered = runner
            .run(requirements, async |_resources| {
                shop.audit(customer).await?;
                shop.book(customer, apples).await?;
                shop.take(apples).await
            })
            .await;
        match ordered {
            Ok(()) => println!("{customer} gets {apples} apples"),
            Err(error) => println!("{customer} gets nothing: {error}"),
        }
    }

    println!("connections out: {}", pool.size() as usize - pool.num_idle());
    println!("orders: {}", names(&pool, "SELECT customer FROM orders").await?);
    println!("audit:  {}", names(&pool, "SELECT customer FROM audit").await?);
    pool.close().await;
    Ok(())
}

/// Four connections: one for each of two permits, and one more for each audit row.
async fn open(folder: &std::path::Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(folder.join("shop.sqlite"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
    pool.execute(
        "CREATE TABLE orders (customer TEXT NOT NULL, apples INTEGER NOT NULL);
         CREATE TABLE audit (customer TEXT NOT NULL);
         CREATE TABLE stock (apples INTEGER NOT NULL);
         INSERT INTO stock VALUES (20)",
    )
    .await?;
    Ok(pool)
}

async fn names(pool: &SqlitePool, query: &'static str) -> Result<String, sqlx::Error> {
    let rows = pool.fetch_all(query).await?;
    Ok(rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join(", "))
}
