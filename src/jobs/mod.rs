//! From what a job needs to done and settled.

mod attempt;
mod bill;
mod held;
mod job;
mod job_error;
mod ledger;
mod meter;
mod plan;
mod record;
mod reports;
mod requirements;
mod resources;
mod retry;
mod run_error;
mod runner;
mod spend;
mod stop;
mod tenure;

pub use job::{Finished, Job};
pub use job_error::JobError;
pub use ledger::{SpendLedger, SpendStatus};
pub use meter::UsageError;
pub use record::JobRecord;
pub use requirements::Requirements;
pub use resources::Resources;
pub use retry::RetryPolicy;
pub use run_error::{RunError, RunStage, TimeoutCause};
pub use runner::{JobRunner, JobRunnerBuilder};
pub use spend::{Priced, Reservation, SpendGate, SpendRefusal};
