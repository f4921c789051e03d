//! What the limits hear of an attempt.

use crate::account::{AccountId, AsAccount};
use crate::grant::Grant;
use crate::sync::Mutex;
use crate::upstream::UpstreamFailure;

/// Which accounts have been told, so that none hears of one attempt twice.
///
/// A report is made under the lock that says so: a task of the job's that reports as the attempt ends
/// comes before the end's own report, which then leaves its account out, or after it, and is not
/// heard. An account does no more under it than under its admission's.
#[derive(Default)]
pub(super) struct Reports {
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    accounts: Vec<AccountId>,
    /// The end's own report is made.
    is_over: bool,
}

impl Reports {
    /// The job itself tells one account how it went. Answers whether it heard.
    pub(super) fn of_job<A: AsAccount + ?Sized>(
        &self,
        account: &A,
        tell: impl FnOnce() -> bool,
    ) -> bool {
        let id = account.as_account().link().id();
        let mut told = self.told.lock();
        let heard = !told.is_over && tell();
        if heard && !told.accounts.contains(&id) {
            told.accounts.push(id);
        }
        drop(told);
        heard
    }

    /// The attempt succeeded: tells every account that was told nothing else.
    pub(super) fn success(&self, grant: &Grant) {
        let mut told = self.told.lock();
        told.is_over = true;
        for entry in grant.demand().entries() {
            if !told.accounts.contains(&entry.id()) {
                grant.report_success(entry.account());
            }
        }
        drop(told);
    }

    /// The attempt ended with the failure of an upstream: tells the account it names; where none is
    /// named so, every account that only time replenishes, since the upstream is behind one of them.
    pub(super) fn failed(&self, grant: &Grant, failure: &UpstreamFailure) {
        let entries = grant.demand().entries();
        let is_named = |name: &str| name == failure.service;
        let any_named = entries.iter().any(|entry| is_named(entry.name()));
        let mut told = self.told.lock();
        told.is_over = true;
        for entry in entries {
            let hears = if any_named { is_named(entry.name()) } else { !entry.comes_back() };
            if hears && !told.accounts.contains(&entry.id()) {
                grant.report_failure(entry.account(), failure);
            }
        }
        drop(told);
    }
}
