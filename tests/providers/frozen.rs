//! Connections that stop in the middle of what they say: a proxy before the server keeps the bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::{
    Admission, BoxError, DbProvider, JobRunner, Requirements, SeaOrmProvider, SqlxProvider,
    SqlxProviderBuilder,
};
use sea_orm::{ExecResult, QueryResult, TransactionSession, TransactionTrait};
use sea_query_sqlx::SqlxValues;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{Database, Executor, IntoArguments};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sea_orm::insert;

/// From what on nothing comes through any more.
#[derive(Clone, Debug, Default)]
struct Frozen {
    /// A word in what the client says; none, and all comes through.
    word: Option<&'static str>,
    /// Whether the server hears it.
    heard: bool,
    /// How many bytes of the answer come through.
    bytes: usize,
}

struct Proxy {
    port: u16,
    frozen: watch::Sender<Frozen>,
    met: Arc<AtomicUsize>,
}

impl Proxy {
    async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (frozen, watched) = watch::channel(Frozen::default());
        let met = Arc::new(AtomicUsize::new(0));
        let meets = Arc::clone(&met);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                tokio::spawn(between(client, server, watched.clone(), Arc::clone(&meets)));
            }
        });
        Self { port, frozen, met }
    }
}

async fn between(
    mut client: TcpStream,
    mut server: TcpStream,
    frozen: watch::Receiver<Frozen>,
    met: Arc<AtomicUsize>,
) {
    let (mut said, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    // How much of the answer is still let through, once the word was said.
    let mut left: Option<usize> = None;
    loop {
        tokio::select! {
            n = client.read(&mut said) => {
                let Ok(n @ 1..) = n else { return };
                let now = frozen.borrow().clone();
                let is_said = now.word.is_some_and(|word| {
                    said[..n].windows(word.len()).any(|some| some == word.as_bytes())
                });
                if left.is_some() {
                    continue;
                }
                if is_said {
                    left = Some(now.bytes);
                    met.fetch_add(1, Ordering::SeqCst);
                    if !now.heard {
                        continue;
                    }
                }
                if server.write_all(&said[..n]).await.is_err() { return }
            }
            n = server.read(&mut answered) => {
                let Ok(n @ 1..) = n else { return };
                let through = left.map_or(n, |left| left.min(n));
                left = left.map(|left| left - through);
                if client.write_all(&answered[..through]).await.is_err() { return }
            }
        }
    }
}

/// Wherever its connection stops, a job ends, and the connection is gone before its permit is free.
async fn stops<DB: Database>(proxy: &Proxy, brief: SqlxProviderBuilder<DB>, question: &'static str)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Row: Into<QueryResult>,
    DB::QueryResult: Into<ExecResult>,
    SqlxValues: IntoArguments<DB>,
{
    let brief = brief.acquire_timeout(Duration::from_millis(100)).build().unwrap();
    let provider = &SeaOrmProvider::over(&brief);
    let patient = SqlxProvider::new("main", 1, brief.pool().clone()).unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    // A question comes before a commit, and after a rollback.
    let words = ["INSERT", "RELEASE", question, "COMMIT", "ROLLBACK", "READ WRITE"];
    for (word, fails) in words.into_iter().flat_map(|word| [(word, false), (word, true)]) {
        for (heard, bytes) in [(false, 0), (true, 3)] {
            let case = format!("{word}, {fails}, {heard}");
            let before = proxy.met.load(Ordering::SeqCst);
            let mut requirements = Requirements::new().database(provider).transactional();
            if word == "READ WRITE" {
                requirements = requirements.read_only();
            }
            let run = runner.job(requirements).within(Duration::from_millis(50));
            let run = run.run(async |resources| {
                proxy.frozen.send_replace(Frozen { word: Some(word), heard, bytes });
                let session = resources.get(provider)?;
                if word != "READ WRITE" {
                    let transaction = session.begin().await?;
                    insert(&transaction, 1).await?;
                    transaction.commit().await?;
                }
                if fails { Err("no".into()) } else { Ok::<_, BoxError>(()) }
            });
            let over = tokio::time::timeout(Duration::from_secs(60), run).await;
            let over = over.unwrap_or_else(|_| panic!("{case} hangs"));
            let pool = brief.pool();
            assert_eq!(provider.account().status().active, 0, "{case}");
            assert_eq!(pool.size() as usize, pool.num_idle(), "{case}");
            let has_met = proxy.met.load(Ordering::SeqCst) > before;
            // What comes after the commit costs the connection alone.
            let is_after = word == "READ WRITE" || word == "ROLLBACK";
            assert!(!has_met || is_after || over.is_err(), "{case}");

            proxy.frozen.send_replace(Frozen::default());
            let again = Requirements::new().database(&patient).transactional();
            let again = runner.run(again, async |_| Ok::<_, BoxError>(())).await;
            again.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
    assert!(proxy.met.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn a_job_whose_connection_stops_ends_in_its_bounds_on_postgres() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let options: PgConnectOptions = database.pool.connect_options().as_ref().clone();
    let proxy = Proxy::before(options.get_port()).await;
    let options = options.port(proxy.port).ssl_mode(PgSslMode::Disable);
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    stops(&proxy, SqlxProvider::builder("main", 1, pool.clone()), "transaction_timestamp").await;
    pool.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_job_whose_connection_stops_ends_in_its_bounds_on_mysql() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let options: MySqlConnectOptions = database.pool.connect_options().as_ref().clone();
    let proxy = Proxy::before(options.get_port()).await;
    let options = options.port(proxy.port).ssl_mode(MySqlSslMode::Disabled);
    let pool = MySqlPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    stops(&proxy, SqlxProvider::builder("main", 1, pool.clone()), "admit_").await;
    pool.close().await;
    database.drop().await;
}
