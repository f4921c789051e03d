//! What types can be sent, shared and moved, and how large they are.

use std::future::Future;
use std::mem::size_of;

use admit::{
    Account, AccountLink, Accounts, Admission, AdmissionBuilder, Admit, AdmitError, Amount, Cost,
    CountingGate, Demand, ElasticWindow, Grant, JobInfo, LimiterEvent, MemoryGate, RateLimitInfo,
    Refusal, Reservation, Router, Snapshot, SpendGate, SpendLedger, TokenBucket, TryAdmitError,
    UpstreamFailure, Valve,
};

const fn send<T: Send + 'static>() {}
const fn shared<T: Send + Sync + 'static>() {}
const fn unpin<T: Unpin>() {}
const fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn an_admit_can_be_sent_and_moved() {
    send::<Admit>();
    unpin::<Admit>();
    const fn resolves<T: Future<Output = Result<Grant, AdmitError>>>() {}
    resolves::<Admit>();
}

#[test]
fn handles_grants_demands_and_accounts_can_be_shared() {
    shared::<Admission>();
    shared::<AdmissionBuilder>();
    shared::<Grant>();
    unpin::<Grant>();
    shared::<Demand>();
    shared::<JobInfo>();
    shared::<Snapshot>();
    shared::<LimiterEvent>();
    shared::<RateLimitInfo>();
    shared::<UpstreamFailure>();
    shared::<AccountLink>();
    shared::<CountingGate>();
    shared::<TokenBucket>();
    shared::<ElasticWindow>();
    shared::<MemoryGate>();
    shared::<Accounts>();
    shared::<Router<String>>();
    shared::<SpendLedger>();
    shared::<Cost>();
    send::<Reservation>();
    shared::<std::sync::Arc<dyn SpendGate>>();
    shared::<std::sync::Arc<dyn Account>>();
    shared::<std::sync::Arc<dyn Valve>>();
}

#[test]
fn a_runner_and_what_it_runs_can_be_shared_and_its_runs_sent() {
    shared::<admit::JobRunner>();
    shared::<admit::Requirements>();
    shared::<admit::Resources>();
    shared::<admit::JobRecord>();
    shared::<admit::DbProviders>();
    shared::<admit::CountingProvider>();
    error::<admit::RunError<String>>();
    error::<admit::ProviderError>();
    error::<admit::DbProvidersError>();
    error::<admit::UsageError>();
    // A run can be spawned wherever its job's future can, and one whose job cannot be sent still runs.
    const fn sent<T: Send>(_: &T) {}
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let runner = admit::JobRunner::builder(&Admission::builder().start().unwrap());
        let runner = runner.build().unwrap();
        let job = async |_| Ok::<_, String>(());
        let run = runner.job(admit::Requirements::new()).run(job);
        sent(&run);
        run.await.unwrap();
        let local = std::rc::Rc::new(7);
        let job = async |_| Ok::<_, String>(*local);
        assert_eq!(runner.run(admit::Requirements::new(), job).await.unwrap(), 7);
    });
}

#[test]
fn errors_are_errors_that_cross_threads() {
    error::<AdmitError>();
    error::<TryAdmitError>();
    error::<Refusal>();
    error::<UpstreamFailure>();
    error::<admit::StartError>();
    error::<admit::BuildError>();
    error::<admit::ConfigError>();
    error::<admit::AccountPanic>();
    error::<admit::Defect>();
    error::<admit::RegistryError>();
    error::<admit::SpendRefusal>();
}

#[test]
fn the_futures_of_an_admission_can_be_sent() {
    fn is_send<T: Send>(_: &T) {}
    let admission = Admission::builder().build().unwrap();
    is_send(&admission.admit(Demand::new()));
    is_send(&admission.drained());
    is_send(&admission.run(Demand::new(), async {}));
}

/// Bounds, not wishes: what grows past them is felt by whoever keeps a million of them.
#[test]
fn what_there_are_many_of_is_small() {
    let word = size_of::<usize>();
    assert!(size_of::<Amount>() <= 16);
    assert_eq!(size_of::<Admission>(), word);
    assert_eq!(size_of::<Demand>(), 2 * word);
    assert!(size_of::<Grant>() <= 88);
    assert!(size_of::<Admit>() <= 136);
}
