//! So many a second, in real time.
//!
//! N tasks wait for one token each of a limit of N per second that has just been emptied, so it
//! takes a second until the last has its own; N is 1,000 and 10,000. The same with governor's
//! `until_ready` and with leaky-bucket, one after the other on Tokio runtimes of one thread; governor
//! waits in a thread of its own as well, so what is counted is the processor time of the process.
//!
//! - `pacing_rate_error_percent`: by how much N over the seconds it took differs from N per second;
//!   the worse of both N.
//! - `pacing_cpu_vs_governor`: processor time a grant, ours over governor's; the worse of both N.
//! - `pacing_cpu_floor`: the same of what any pacing costs that wakes a task a grant from Tokio's timer: N
//!   tasks that wait for a word each, and one that sleeps until the next instant and says it.
//! - `leaky_bucket_rate_error_percent`: theirs, refilled in steps of 100 ms, which is its default and
//!   the kindest; what it does in steps of 1 ms, as fine as a Tokio timer goes, is noted.
//!
//! Where there is no processor clock (off unix), only the rates mean something.

mod measure;
mod peers;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admit::{Amount, Demand, Limits, TokenBucket};
use measure::{Plan, figure, median, note, of_this_process as cpu, one_thread};
use peers::{Ours, limiter, started};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

fn main() {
    let plan = Plan::from_env();
    let (sizes, count): (&[u32], _) = plan.pick((&[1_000, 10_000], 3), (&[100], 1));
    let (mut off, mut share, mut floor, mut leaky) = (f64::MIN, f64::MIN, f64::MIN, f64::MIN);
    for &n in sizes {
        let sides: [(&str, Run); 5] = [
            ("ours", ours),
            ("governor", governor),
            ("leaky_bucket_100ms", |n| leaky_bucket(n, Duration::from_millis(100))),
            ("leaky_bucket_1ms", |n| leaky_bucket(n, Duration::from_millis(1))),
            ("timer_alone", timer_alone),
        ];
        let paces: Vec<[Pace; 5]> = (0..count).map(|_| sides.map(|(_, run)| run(n))).collect();
        for (at, (name, _)) in sides.iter().enumerate() {
            let of = |field: fn(&Pace) -> f64| median(paces.iter().map(|round| field(&round[at])));
            note(&format!("pacing_{n}_{name}_rate_error_percent"), of(|pace| pace.off));
            note(&format!("pacing_{n}_{name}_cpu_us_a_grant"), of(|pace| pace.cpu));
        }
        let over_governor =
            |at: usize| median(paces.iter().map(|round| round[at].cpu / round[1].cpu));
        off = off.max(median(paces.iter().map(|round| round[0].off)));
        share = share.max(over_governor(0));
        floor = floor.max(over_governor(4));
        leaky = leaky.max(median(paces.iter().map(|round| round[2].off)));
    }
    figure("pacing_rate_error_percent", off);
    figure("pacing_cpu_vs_governor", share);
    figure("pacing_cpu_floor", floor);
    figure("leaky_bucket_rate_error_percent", leaky);
}

/// Paces one second.
type Run = fn(u32) -> Pace;

/// What one second of pacing came to.
#[derive(Clone, Copy)]
struct Pace {
    /// How far the rate was off, in percent.
    off: f64,
    /// Processor time, in microseconds a grant.
    cpu: f64,
}

fn ours(n: u32) -> Pace {
    one_thread().block_on(async {
        let admission = started();
        let limits = Limits::per_minute(60 * n, 60 * u64::from(n));
        let bucket = TokenBucket::new("bucket", limits).expect("positive limits");
        let whole = Amount { requests: limits.requests, units: limits.tokens };
        let watch = Watch::start();
        drop(admission.admit(Demand::new().add(&bucket, whole)).await.expect("it starts full"));
        let one = Ours { admission, demand: Demand::new().tokens(&bucket, 1) };
        watch
            .all(n, || {
                let one = one.clone();
                async move { drop(one.take().await) }
            })
            .await
    })
}

fn governor(n: u32) -> Pace {
    one_thread().block_on(async {
        let limiter = Arc::new(limiter(n));
        let watch = Watch::start();
        let whole = n.try_into().expect("a positive rate");
        limiter.check_n(whole).expect("it is no more than the burst").expect("it starts full");
        watch
            .all(n, || {
                let limiter = Arc::clone(&limiter);
                async move { limiter.until_ready().await }
            })
            .await
    })
}

fn leaky_bucket(n: u32, interval: Duration) -> Pace {
    one_thread().block_on(async {
        let refill = u128::from(n) * interval.as_nanos() / Duration::from_secs(1).as_nanos();
        // Fewer than one in an interval cannot be said.
        let refill = usize::try_from(refill).expect("a small number").max(1);
        let watch = Watch::start();
        let limiter = leaky_bucket::RateLimiter::builder()
            .initial(0)
            .max(n as usize)
            .refill(refill)
            .interval(interval)
            .build();
        let limiter = Arc::new(limiter);
        watch.all(n, || Arc::clone(&limiter).acquire_owned(1)).await
    })
}

fn timer_alone(n: u32) -> Pace {
    one_thread().block_on(async {
        let (words, heard): (Vec<_>, Vec<_>) = (0..n).map(|_| oneshot::channel::<()>()).unzip();
        let mut heard = heard.into_iter();
        let watch = Watch::start();
        let (started, step) = (watch.started, Duration::from_secs(1) / n);
        tokio::spawn(async move {
            for (at, word) in (1..).zip(words) {
                tokio::time::sleep_until((started + step * at).into()).await;
                word.send(()).expect("its task waits for it");
            }
        });
        watch
            .all(n, || {
                let heard = heard.next().expect("one for each");
                async move { heard.await.expect("it is said") }
            })
            .await
    })
}

/// Since when, and how much processor time the process had used then.
struct Watch {
    started: Instant,
    cpu: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { started: Instant::now(), cpu: cpu() }
    }

    /// Waits for N jobs, each a task.
    async fn all<F>(self, n: u32, mut job: impl FnMut() -> F) -> Pace
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut tasks: JoinSet<()> = (0..n).map(|_| job()).collect();
        while tasks.join_next().await.is_some() {}
        let (took, cpu) = (self.started.elapsed(), cpu().saturating_sub(self.cpu));
        Pace {
            off: (1.0 / took.as_secs_f64() - 1.0).abs() * 100.0,
            cpu: cpu.as_secs_f64() * 1e6 / f64::from(n),
        }
    }
}
