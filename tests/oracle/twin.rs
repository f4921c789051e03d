//! One account, built twice from one description: one for the monitor, one for the plain walk.

use std::sync::Arc;

use admit::{Account, CircuitState, CountingGate, ElasticWindow, TokenBucket};

use crate::steps::{Change, Kind};
use crate::switch::Switch;

#[derive(Clone)]
pub(crate) enum Made {
    Gate(Arc<CountingGate>),
    Bucket(Arc<TokenBucket>),
    Window(Arc<ElasticWindow>),
    Switch(Arc<Switch>),
}

impl Made {
    pub(crate) fn new(name: &str, kind: &Kind) -> Self {
        match kind {
            Kind::Gate(n) => Self::Gate(CountingGate::new(name, *n).expect("a capacity")),
            Kind::Bucket(limits) => Self::Bucket(TokenBucket::new(name, *limits).expect("limits")),
            Kind::Window(config) => {
                Self::Window(ElasticWindow::new(name, config.clone()).expect("a valid window"))
            }
            Kind::Switch(n) => Self::Switch(Arc::new(Switch::new(name, *n))),
        }
    }

    pub(crate) fn account(&self) -> Arc<dyn Account> {
        match self {
            Self::Gate(gate) => gate.clone(),
            Self::Bucket(bucket) => bucket.clone(),
            Self::Window(window) => window.clone(),
            Self::Switch(switch) => switch.clone(),
        }
    }

    /// Does what makes sense of a change to an account of this kind.
    pub(crate) fn change(&self, change: &Change) {
        match (self, change) {
            (Self::Gate(gate), Change::Resize(n)) => gate.resize(*n).expect("a capacity"),
            (Self::Bucket(bucket), Change::Limits(limits)) => {
                bucket.set_limits(*limits).expect("positive limits");
            }
            (Self::Bucket(bucket), Change::Success) => bucket.record_success(),
            (Self::Bucket(bucket), Change::Failure(failure)) => bucket.record_failure(failure),
            (Self::Bucket(bucket), Change::Pressure) => bucket.record_backpressure(2),
            (Self::Window(window), Change::Success) => window.record_success(),
            (Self::Window(window), Change::Failure(failure)) => window.record_failure(failure),
            (Self::Window(window), Change::Pressure) => window.record_advisory_pressure(),
            (Self::Switch(switch), Change::Turn(to)) => switch.turn(*to),
            _ => {}
        }
    }

    /// Whether it is a window whose circuit is open, or being tried.
    pub(crate) fn is_unwell(&self) -> bool {
        matches!(self, Self::Window(window) if window.status().circuit != CircuitState::Healthy)
    }
}
