//! What is dropped half-way: nothing of it is another's.

use super::*;

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

/// Nor to the job's commit, on a database where the transaction outlives it.
#[tokio::test]
async fn the_error_of_a_statement_that_was_dropped_costs_no_commit_on_mysql() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    sqlx::Executor::execute(&database.observer, FAILS_LATE).await.unwrap();
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let session = provider.session(&handle).unwrap();
    insert(&session, 1).await.unwrap();
    dropped(&session, "CALL fails_late()").await;
    drop(session);
    provider.commit(&handle).await.unwrap();
    provider.close(&handle).await.unwrap();
    assert_eq!(database.rows(1).await, 1);
    database.quiet().await;
    database.drop().await;
}
