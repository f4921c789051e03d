//! What the spend gates have set aside for one attempt.

use super::plan::Plan;
use super::spend::{Reservation, SpendGate, SpendRefusal};
use crate::money::Cost;
use crate::sync::Arc;

/// The reservations of one attempt. Dropped, they are taken back: the work never happened.
pub(super) struct Bill {
    reservations: Vec<Reservation>,
}

impl Bill {
    /// Asks every gate in turn; where one refuses, what the earlier ones set aside is taken back.
    ///
    /// Gates are not asked about a job without models: it spends nothing.
    pub(super) fn ask(gates: &[Arc<dyn SpendGate>], plan: &Plan) -> Result<Self, SpendRefusal> {
        let gates = if plan.priced.is_empty() { &[] } else { gates };
        let mut bill = Self { reservations: Vec::with_capacity(gates.len()) };
        for gate in gates {
            bill.reservations.push(gate.admit(&plan.job, &plan.priced)?);
        }
        Ok(bill)
    }

    /// Replaces what was set aside by what was spent.
    pub(super) fn settle(self, actual: &Cost) {
        for reservation in self.reservations {
            reservation.settle(actual);
        }
    }
}
