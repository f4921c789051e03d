//! A provider over a pool in memory, which keeps the contract or breaks one clause of it.

mod toy;

use std::time::Duration;

use self::toy::{Fault, Toys};
use super::{Clause, ProviderContract};

fn contract(fault: Option<Fault>) -> ProviderContract<Toys> {
    ProviderContract::new(Toys::new(fault)).patience(Duration::from_secs(1))
}

#[tokio::test(start_paused = true)]
async fn a_provider_in_order_keeps_every_clause() {
    contract(None).assert().await;
    contract(Some(Fault::WaitsInVain)).assert().await;
}

#[tokio::test(start_paused = true)]
async fn every_fault_is_found_by_its_clause() {
    for (fault, clause) in [
        (Fault::OneAccountForAll, Clause::Identity),
        (Fault::ConnectsLate, Clause::OneConnection),
        (Fault::ReturnsLate, Clause::OneConnection),
        (Fault::HandsOutTwice, Clause::OneGuard),
        (Fault::ClosesInUse, Clause::OneGuard),
        (Fault::WritesThrough, Clause::Isolation),
        (Fault::CommitsNothing, Clause::Isolation),
        (Fault::ReconnectsAtBegin, Clause::SameConnection),
        (Fault::CommitsWithoutBegin, Clause::Order),
        (Fault::WritesReadOnly, Clause::ReadOnly),
        (Fault::StaysReadOnly, Clause::ReadOnly),
        (Fault::StaysReadOnlyAborted, Clause::ReadOnly),
        (Fault::StaysReadOnlyOpen, Clause::ReadOnly),
        (Fault::WritesReadOnlyLater, Clause::ReadOnly),
        (Fault::KeepsReadOnlyAborted, Clause::ReadOnly),
        (Fault::ChainsCommits, Clause::Isolation),
        (Fault::ReconnectsAtRollback, Clause::SameConnection),
        (Fault::KeepsHalfAcquired, Clause::HalfWay),
        (Fault::LosesOnceDropped, Clause::Isolation),
        (Fault::WorksClosed, Clause::OneConnection),
        (Fault::BeginsTwice, Clause::Order),
        (Fault::FailsToRollBackAgain, Clause::Rollback),
        (Fault::KeepsIdleAborted, Clause::HalfWay),
        (Fault::TakesForeign, Clause::Foreign),
        (Fault::KeepsRolledBack, Clause::Rollback),
        (Fault::CommitsAtClose, Clause::Close),
        (Fault::KeepsDropped, Clause::Close),
        (Fault::WorksAborted, Clause::Abort),
        (Fault::FailsToCloseAborted, Clause::Abort),
        (Fault::ForgetsAbortInUse, Clause::AbortInUse),
        (Fault::NeverCompletes, Clause::Completion),
        (Fault::LosesHalfWay, Clause::HalfWay),
        (Fault::LosesLate, Clause::HalfWay),
        (Fault::IgnoresBroken, Clause::Broken),
        (Fault::HangsBroken, Clause::Broken),
        (Fault::TakesTwo, Clause::FanOut),
    ] {
        let breach =
            contract(Some(fault)).check_one(clause).await.expect_err(&format!("{fault:?}"));
        assert_eq!(breach.clause, clause);
        assert!(breach.to_string().starts_with("database `main` breaks the clause"), "{breach}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_with_any_fault_does_not_keep_the_contract() {
    for fault in [Fault::ReturnsLate, Fault::CommitsAtClose, Fault::LosesHalfWay] {
        assert!(contract(Some(fault)).check().await.is_err(), "{fault:?}");
    }
}
