//! How a future and its grant keep hold of their admission and their demand.

use super::face::Shared;
use super::handle::Handle;
use crate::demand::Demand;
use crate::sync::Arc;

/// How a future and its grant keep hold of their admission and their demand: as [`Owned`] or as
/// [`Borrowed`].
///
/// Implemented for these two and for nothing else.
pub trait Keep: sealed::Kept {}

impl Keep for Owned {}
impl Keep for Borrowed<'_> {}

/// Owns both: what [`admit`](crate::Admission::admit) works with, and may be sent anywhere.
#[derive(Debug)]
pub struct Owned {
    handle: Arc<Handle>,
    demand: Demand,
}

/// Borrows both: what [`admit_ref`](crate::Admission::admit_ref) works with, and costs less.
#[derive(Debug)]
pub struct Borrowed<'a> {
    shared: &'a Shared,
    demand: &'a Demand,
}

impl Owned {
    #[inline]
    pub(super) const fn new(handle: Arc<Handle>, demand: Demand) -> Self {
        Self { handle, demand }
    }
}

impl<'a> Borrowed<'a> {
    #[inline]
    pub(super) const fn new(shared: &'a Shared, demand: &'a Demand) -> Self {
        Self { shared, demand }
    }
}

mod sealed {
    use super::{Borrowed, Demand, Handle, Owned, Shared};

    pub trait Kept: Unpin {
        /// Whether it owns the admission, and is to be counted with its owners.
        const OWNS: bool;

        fn shared(&self) -> &Shared;

        fn demand(&self) -> &Demand;

        /// The demand for the line: until [`landed`](Self::landed), it may be gone from here.
        fn lend(&mut self) -> Demand;

        /// The demand comes back from the line.
        fn landed(&mut self, demand: Demand);

        /// A future has become one of so many grants.
        fn has_become_grant(&self, grants: usize);

        /// A future ends, and became no grant.
        fn let_go(self);
    }

    impl Kept for Owned {
        const OWNS: bool = true;

        #[inline]
        fn shared(&self) -> &Shared {
            self.handle.shared()
        }

        #[inline]
        fn demand(&self) -> &Demand {
            &self.demand
        }

        fn lend(&mut self) -> Demand {
            std::mem::take(&mut self.demand)
        }

        fn landed(&mut self, demand: Demand) {
            self.demand = demand;
        }

        #[inline]
        fn has_become_grant(&self, grants: usize) {
            self.handle.has_become_grant(grants);
        }

        fn let_go(self) {
            Handle::let_go(self.handle);
        }
    }

    // The admission is borrowed, so there is a handle for as long as this is there: it need not be
    // one, nor can it be the last. One that is leaked keeps nothing running either.
    impl Kept for Borrowed<'_> {
        const OWNS: bool = false;

        #[inline]
        fn shared(&self) -> &Shared {
            self.shared
        }

        #[inline]
        fn demand(&self) -> &Demand {
            self.demand
        }

        fn lend(&mut self) -> Demand {
            self.demand.clone()
        }

        fn landed(&mut self, _: Demand) {}

        #[inline]
        fn has_become_grant(&self, _: usize) {}

        fn let_go(self) {}
    }
}
