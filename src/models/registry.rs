//! The registry: who keeps the accounts of models and of declared types.

use std::any::{Any, TypeId, type_name};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use super::singleton::Singleton;
use super::spec::ModelSpec;
use crate::account::Account;
use crate::error::{AccountPanic, BoxError, ConfigError};
use crate::limits::{Limits, ModelGate, TokenBucket, TokenBucketStatus};
use crate::one_line::OneLine;
use crate::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Why the registry has no such account.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A gate was asked for of a model that declares no `max_concurrent`.
    #[error(
        "model `{}` declares no max_concurrent, so it has no gate; take its bucket",
        OneLine(model)
    )]
    NoGate {
        /// The spec's id.
        model: String,
    },
    /// A bucket was asked for of a model that declares `max_concurrent`.
    #[error(
        "model `{}` is limited to {max_concurrent} calls at once, so it has no bucket; take its gate",
        OneLine(model)
    )]
    NoBucket {
        /// The spec's id.
        model: String,
        /// What it declares.
        max_concurrent: u32,
    },
    /// Another spec of this id was made the other kind of account. Beside each other, neither would
    /// know what the other lets through.
    #[error(
        "model `{}` has a {has} already, made of a spec {of} max_concurrent; set it in both specs or \
         in neither, or give them two ids: each id is a limit of its own",
        OneLine(model)
    )]
    OtherKind {
        /// The spec's id.
        model: String,
        /// What the id has: `bucket`, or `gate`.
        has: &'static str,
        /// Whether the spec that made it has the field: `with`, or `without`.
        of: &'static str,
    },
    /// The spec cannot be made an account.
    #[error("model `{}` cannot be limited as specified: {}", OneLine(model), source.bare())]
    Spec {
        /// The spec's id.
        model: String,
        /// Which field, and what it must be.
        source: ConfigError,
    },
    /// The constructor of a [`Singleton`] failed or panicked. It is asked again at the next use.
    #[error("`{type_name}` could not be built: {}", OneLine(reason))]
    Build {
        /// The singleton's type.
        type_name: &'static str,
        /// The cause's text.
        reason: String,
        /// The cause: the constructor's own error, or an [`AccountPanic`].
        source: BoxError,
    },
    /// The constructor of a [`Singleton`] asked for the very account it was to build.
    #[error("`{type_name}` needs itself to be built; one of {chain} must do without the next")]
    Circular {
        /// The singleton's type.
        type_name: &'static str,
        /// Who asked for whom.
        chain: String,
    },
}

/// The registry: one account for each model, and one for each declared type.
///
/// Nothing in the crate requires it. It saves the host from passing accounts about, and sees to it
/// that two parts of a program that limit the same thing share one limit.
///
/// # Examples
///
/// ```
/// use admit::{Accounts, ModelSpec};
///
/// let accounts = Accounts::new();
/// let spec = ModelSpec::new("gpt-x", 30_000);
/// let bucket = accounts.bucket(&spec)?;
/// assert_eq!(bucket.status().requests_per_minute, 30);
/// assert!(accounts.gate(&spec).is_err());
///
/// // The provider says that there is more.
/// assert!(accounts.update_limits(&spec, 500, 60_000)?);
/// assert_eq!(bucket.status().tokens_per_minute, 60_000);
/// # Ok::<(), admit::RegistryError>(())
/// ```
#[derive(Default)]
pub struct Accounts {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    buckets: HashMap<String, Arc<TokenBucket>>,
    gates: HashMap<String, Arc<ModelGate>>,
    /// For each type its `Arc<S::Account>`.
    singletons: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
}

impl Accounts {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of the process, for convenience.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Accounts> = OnceLock::new();
        GLOBAL.get_or_init(Self::new)
    }

    /// The bucket of a model: one for each id.
    ///
    /// It is seeded from the first spec of that id; a second spec's numbers are not read.
    ///
    /// # Errors
    ///
    /// [`NoBucket`](RegistryError::NoBucket) for a spec with `max_concurrent`,
    /// [`OtherKind`](RegistryError::OtherKind) when its id has a gate,
    /// [`Spec`](RegistryError::Spec) for one that cannot be made a bucket.
    pub fn bucket(&self, spec: &ModelSpec) -> Result<Arc<TokenBucket>, RegistryError> {
        if let Some(max_concurrent) = spec.max_concurrent {
            return Err(RegistryError::NoBucket { model: spec.id.clone(), max_concurrent });
        }
        self.bucket_or(spec, spec.limits()).map(|(bucket, _)| bucket)
    }

    /// The gate of a model with `max_concurrent`: one for each id.
    ///
    /// # Errors
    ///
    /// [`NoGate`](RegistryError::NoGate) for a spec without `max_concurrent`,
    /// [`OtherKind`](RegistryError::OtherKind) when its id has a bucket,
    /// [`Spec`](RegistryError::Spec) for one that cannot be made a gate.
    pub fn gate(&self, spec: &ModelSpec) -> Result<Arc<ModelGate>, RegistryError> {
        let Some(capacity) = spec.max_concurrent else {
            return Err(RegistryError::NoGate { model: spec.id.clone() });
        };
        let mut kept = self.kept.lock();
        if let Some(gate) = kept.gates.get(&spec.id) {
            return Ok(Arc::clone(gate));
        }
        if kept.buckets.contains_key(&spec.id) {
            return Err(other_kind(spec, "bucket", "without"));
        }
        let gate = ModelGate::new(spec.id.as_str(), capacity).map_err(|e| refused(spec, e))?;
        kept.gates.insert(spec.id.clone(), Arc::clone(&gate));
        drop(kept);
        Ok(gate)
    }

    /// The account of a model, whichever it has: its gate where it declares `max_concurrent`,
    /// else its bucket.
    ///
    /// # Errors
    ///
    /// [`OtherKind`](RegistryError::OtherKind) when its id has the other,
    /// [`Spec`](RegistryError::Spec) when neither can be made of it.
    pub fn account(&self, spec: &ModelSpec) -> Result<Arc<dyn Account>, RegistryError> {
        if spec.max_concurrent.is_some() {
            self.gate(spec).map(|gate| gate as Arc<dyn Account>)
        } else {
            self.bucket(spec).map(|bucket| bucket as Arc<dyn Account>)
        }
    }

    /// Applies the ceilings a provider reported, per minute, and answers whether it did.
    ///
    /// The bucket keeps its throttle; see [`TokenBucket::set_limits`]. Where there is no bucket
    /// yet, one is made with these limits. A pair in which either is zero is ignored, and so is a
    /// spec with `max_concurrent`.
    ///
    /// # Errors
    ///
    /// When there is no bucket and none can be made: [`Spec`](RegistryError::Spec), or
    /// [`OtherKind`](RegistryError::OtherKind) where the id has a gate.
    pub fn update_limits(
        &self,
        spec: &ModelSpec,
        requests_per_minute: u32,
        tokens_per_minute: u64,
    ) -> Result<bool, RegistryError> {
        if requests_per_minute == 0 || tokens_per_minute == 0 || spec.max_concurrent.is_some() {
            return Ok(false);
        }
        let limits = Limits::per_minute(requests_per_minute, tokens_per_minute);
        let (bucket, is_new) = self.bucket_or(spec, limits)?;
        if !is_new {
            bucket.set_limits(limits).map_err(|e| refused(spec, e))?;
        }
        Ok(true)
    }

    /// What the bucket of a model holds now; `None` when the registry has no bucket of that id.
    #[must_use]
    pub fn status(&self, spec: &ModelSpec) -> Option<TokenBucketStatus> {
        let bucket = self.kept.lock().buckets.get(&spec.id).map(Arc::clone);
        bucket.map(|bucket| bucket.status())
    }

    /// The one account of the declared type `S`, built on first use.
    ///
    /// Concurrent first uses build one, and the others wait for it. First uses are built one at a
    /// time in the whole process, so that constructors that need each other are found to be in a
    /// circle instead of waiting for each other; a constructor must therefore not wait for another
    /// thread's first use.
    ///
    /// # Errors
    ///
    /// [`Build`](RegistryError::Build) when the constructor failed or panicked,
    /// [`Circular`](RegistryError::Circular) when it needs itself. Nothing is kept of either: the
    /// next use tries again.
    pub fn get<S: Singleton>(&self) -> Result<Arc<S::Account>, RegistryError> {
        if let Some(found) = self.singleton::<S>() {
            return Ok(found);
        }
        let building = Building::enter::<S>(self)?;
        if let Some(found) = self.singleton::<S>() {
            return Ok(found);
        }
        // The registry's own lock is free here: the constructor may use the registry.
        let built = match AccountPanic::catch("build", S::build) {
            Ok(Ok(built)) => built,
            Ok(Err(source)) => return Err(not_built::<S>(source)),
            Err(panic) => return Err(not_built::<S>(panic.into())),
        };
        let kept: Box<dyn Any + Send + Sync> = Box::new(Arc::clone(&built));
        self.kept.lock().singletons.insert(TypeId::of::<S>(), kept);
        drop(building);
        Ok(built)
    }

    /// Forgets every account, for tests. Who holds one goes on with it, beside a new one.
    pub fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        // Accounts may be the host's: they are dropped with the lock free.
        drop(kept);
    }

    fn singleton<S: Singleton>(&self) -> Option<Arc<S::Account>> {
        let kept = self.kept.lock();
        kept.singletons.get(&TypeId::of::<S>())?.downcast_ref::<Arc<S::Account>>().cloned()
    }

    /// The bucket of this id, and whether it is a new one with these limits.
    fn bucket_or(
        &self,
        spec: &ModelSpec,
        limits: Limits,
    ) -> Result<(Arc<TokenBucket>, bool), RegistryError> {
        let mut kept = self.kept.lock();
        if let Some(bucket) = kept.buckets.get(&spec.id) {
            return Ok((Arc::clone(bucket), false));
        }
        if kept.gates.contains_key(&spec.id) {
            return Err(other_kind(spec, "gate", "with"));
        }
        let bucket = TokenBucket::new(spec.id.as_str(), limits).map_err(|e| refused(spec, e))?;
        kept.buckets.insert(spec.id.clone(), Arc::clone(&bucket));
        drop(kept);
        Ok((bucket, true))
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock();
        f.debug_struct("Accounts")
            .field("buckets", &kept.buckets.len())
            .field("gates", &kept.gates.len())
            .field("singletons", &kept.singletons.len())
            .finish()
    }
}

fn refused(spec: &ModelSpec, source: ConfigError) -> RegistryError {
    RegistryError::Spec { model: spec.id.clone(), source }
}

fn other_kind(spec: &ModelSpec, has: &'static str, of: &'static str) -> RegistryError {
    RegistryError::OtherKind { model: spec.id.clone(), has, of }
}

fn not_built<S: Singleton>(source: BoxError) -> RegistryError {
    let reason = source.to_string();
    RegistryError::Build { type_name: type_name::<S>(), reason, source }
}

/// Held while constructors run: see [`Accounts::get`] for why there is only one.
static BUILDING: Mutex<()> = Mutex::new(());

thread_local! {
    /// What this thread is building, outermost first: registry, type, name.
    static UNDER_WAY: RefCell<Vec<(usize, TypeId, &'static str)>> = const { RefCell::new(Vec::new()) };
}

/// This thread builds one more account. The outermost holds the lock.
struct Building {
    _lock: Option<MutexGuard<'static, ()>>,
}

impl Building {
    fn enter<S: Singleton>(accounts: &Accounts) -> Result<Self, RegistryError> {
        let me = (std::ptr::from_ref(accounts).addr(), TypeId::of::<S>(), type_name::<S>());
        let outermost = UNDER_WAY.with_borrow(|under_way| {
            let mut from_me =
                under_way.iter().skip_while(|other| (other.0, other.1) != (me.0, me.1));
            if from_me.next().is_some() {
                let rest = from_me.map(|other| other.2);
                let chain: Vec<_> = [me.2].into_iter().chain(rest).chain([me.2]).collect();
                let chain = chain.join(" → ");
                return Err(RegistryError::Circular { type_name: me.2, chain });
            }
            Ok(under_way.is_empty())
        })?;
        let lock = outermost.then(|| BUILDING.lock());
        UNDER_WAY.with_borrow_mut(|under_way| under_way.push(me));
        Ok(Self { _lock: lock })
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        UNDER_WAY.with_borrow_mut(|under_way| under_way.pop());
    }
}

#[cfg(test)]
mod tests;
