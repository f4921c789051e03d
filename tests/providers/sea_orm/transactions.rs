//! A transaction within a session: whose it is to end, and what becomes of the others.

use super::*;

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
async fn a_statement_that_fails_behind_the_row_that_was_asked_for_is_told_by_itself() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    sqlx::Executor::execute(&database.observer, FAILS_LATE).await.unwrap();
    let provider = SeaOrmProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let late = Statement::from_string(session.get_database_backend(), "CALL fails_late()");
    let error = session.query_one_raw(late.clone()).await.unwrap_err();
    assert!(error.to_string().contains("too late"), "{error}");
    insert(&session, 1).await.unwrap();
    let within = session.begin().await.unwrap();
    insert(&within, 2).await.unwrap();
    within.query_one_raw(late).await.unwrap_err();
    within.commit().await.unwrap();
    drop(session);
    provider.commit(&handle).await.unwrap();
    provider.close(&handle).await.unwrap();
    assert_eq!([database.rows(1).await, database.rows(2).await], [1, 1]);
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
