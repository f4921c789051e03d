//! One account a key, made when it is first asked for and forgotten when nobody could tell.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::account::{Account, AsAccount};
use crate::error::{AccountPanic, ConfigError};
use crate::sync::{Arc, Mutex, Ordering, fence};

/// How many entries one call looks at to forget them.
///
/// Each call adds at most one, so at two a call what can be forgotten is found faster than it
/// comes: the router holds at most about half as much again as what it must keep.
const LOOKS: usize = 2;

/// Below this many entries the tables are not worth shrinking.
const SMALL: usize = 64;

/// One account for every key: a bucket for each customer, a window for each host.
///
/// The account is resolved when the demand is built, and named in it like any other. It is built
/// on first use. It is let go only when it is [fresh](Account::is_fresh) **and** the router holds
/// the only `Arc` of it: then one built anew is in the same state, so forgetting forgives no use
/// and doubles no limit. A demand, a grant and a waiting job each hold an `Arc`. A host that keeps
/// a [`Weak`](std::sync::Weak) of an account does not hold it; ask the router again instead. What
/// the host changed on an account, such as its limits, goes with it: the constructor should know.
///
/// Every call looks at two entries to forget them, so nothing scans all keys at once, and a
/// million keys that were used once do not pile up.
///
/// The answer is the account as the constructor made it: `Arc<TokenBucket>` where it makes one
/// (so that `status` and the direct records are at hand), `Arc<dyn Account>`, the default of `A`,
/// where the kind depends on the key.
///
/// # Panics
///
/// A panic in the constructor reaches the caller, and the key may be asked for again. An account
/// that panics in [`is_fresh`](Account::is_fresh) is kept. The constructor runs with the router's
/// lock free and may call it; `is_fresh`, and the key's `Hash` and `Eq`, run under the lock and
/// must not.
///
/// # Examples
///
/// ```
/// use admit::{Account, ConfigError, Limits, Router, TokenBucket};
///
/// let customers = Router::new(|customer: &String| {
///     TokenBucket::new(customer.as_str(), Limits::per_minute(60, 100_000))
/// });
/// let one = customers.account_for("acme")?;
/// let same = customers.account_for("acme")?;
/// assert_eq!(one.link().id(), same.link().id());
/// # Ok::<(), ConfigError>(())
/// ```
pub struct Router<K, A: ?Sized = dyn Account> {
    build: Box<Build<K, A>>,
    routes: Mutex<Routes<K, A>>,
}

type Build<K, A> = dyn Fn(&K) -> Result<Arc<A>, ConfigError> + Send + Sync;

impl<K, A: ?Sized> Router<K, A>
where
    K: Hash + Eq + Clone,
    Arc<A>: AsAccount,
{
    /// A router that makes the account of a key with `build`.
    ///
    /// Callers that ask for one new key at the same time may each build; one of the accounts is
    /// kept, all of them are answered that one, and the others are dropped unused.
    pub fn new(build: impl Fn(&K) -> Result<Arc<A>, ConfigError> + Send + Sync + 'static) -> Self {
        Self { build: Box::new(build), routes: Mutex::new(Routes::default()) }
    }

    /// The account of this key.
    ///
    /// The key may be given borrowed (`&str` for a `String`); it is copied when it is new.
    ///
    /// # Errors
    ///
    /// What the constructor answered. Nothing is kept of it, and the key may be asked for again.
    pub fn account_for<Q>(&self, key: &Q) -> Result<Arc<A>, ConfigError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = Instant::now();
        let mut routes = self.routes.lock();
        let known = routes.accounts.get(key).map(Arc::clone);
        let forgotten = routes.sweep(now);
        drop(routes);
        // Keys and accounts are the host's: they are dropped, like the constructor is called,
        // with the lock free.
        drop(forgotten);
        if let Some(account) = known {
            return Ok(account);
        }
        let key = key.to_owned();
        let built = (self.build)(&key)?;
        let mut routes = self.routes.lock();
        let kept = routes.keep(key, &built);
        drop(routes);
        // Where somebody else's was kept, ours goes now, with the lock free.
        drop(built);
        Ok(kept)
    }

    /// How many accounts the router holds now: those in use, and those not found fresh yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.lock().accounts.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The accounts, and the order in which they are looked at to be forgotten.
///
/// Every key of `accounts` is in `turns` once.
struct Routes<K, A: ?Sized> {
    accounts: HashMap<K, Arc<A>>,
    turns: VecDeque<K>,
}

/// What was let go, to be dropped with the lock free.
type Forgotten<K, A> = SmallVec<[(K, K, Arc<A>); LOOKS]>;

impl<K, A: ?Sized> Default for Routes<K, A> {
    fn default() -> Self {
        Self { accounts: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<K, A: ?Sized> Routes<K, A>
where
    K: Hash + Eq + Clone,
    Arc<A>: AsAccount,
{
    /// Keeps this account, unless the key has one: the answer is the one it has.
    fn keep(&mut self, key: K, built: &Arc<A>) -> Arc<A> {
        if let Some(kept) = self.accounts.get(&key) {
            return Arc::clone(kept);
        }
        self.turns.push_back(key.clone());
        self.accounts.insert(key, Arc::clone(built));
        Arc::clone(built)
    }

    /// Looks at the next few accounts and lets go of those nobody could tell from a new one.
    fn sweep(&mut self, now: Instant) -> Forgotten<K, A> {
        let mut forgotten = Forgotten::new();
        for _ in 0..LOOKS.min(self.turns.len()) {
            let Some(turn) = self.turns.pop_front() else { break };
            let forget =
                self.accounts.get(&turn).is_some_and(|account| is_forgettable(account, now));
            if !forget {
                self.turns.push_back(turn);
            } else if let Some((key, account)) = self.accounts.remove_entry(&turn) {
                forgotten.push((turn, key, account));
            }
        }
        // Halving at an eighth costs a copy of what is left for every so many that went.
        if self.turns.capacity() > SMALL && self.turns.len() < self.turns.capacity() / 8 {
            let room = SMALL.max(self.turns.len() * 2);
            self.turns.shrink_to(room);
            self.accounts.shrink_to(room);
        }
        forgotten
    }
}

/// Whether nobody could tell this account from one built anew.
fn is_forgettable<A: ?Sized>(account: &Arc<A>, now: Instant) -> bool
where
    Arc<A>: AsAccount,
{
    if Arc::strong_count(account) > 1 {
        return false;
    }
    // The count is read without ordering. What the last holder did to the account before it let go
    // must be seen by the question that follows, or a use could be forgiven.
    fence(Ordering::Acquire);
    AccountPanic::catch("is_fresh", || account.as_account().is_fresh(now)).unwrap_or(false)
}

impl<K, A: ?Sized> fmt::Debug for Router<K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accounts = self.routes.lock().accounts.len();
        f.debug_struct("Router").field("accounts", &accounts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
