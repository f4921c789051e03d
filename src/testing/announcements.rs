//! An ear for what an account announces.

use crate::account::{AccountLink, Inbox, Marks};
use crate::sync::{Arc, Ordering, StaticU64};

/// Hears the announcements of one account, in the place of an admission.
#[derive(Debug)]
pub(crate) struct Announcements(Arc<Inbox>);

/// What was announced since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) grew: bool,
    pub(crate) may_refuse: bool,
}

#[cfg(test)]
impl Announced {
    pub(crate) const fn is_nothing(self) -> bool {
        !self.grew && !self.may_refuse
    }
}

impl Announcements {
    pub(crate) fn of(link: &AccountLink) -> Self {
        // Counted down from the top, so that no admission, counted up, has the same number.
        static NEXT: StaticU64 = StaticU64::new(u64::MAX);
        let inbox = Arc::new(Inbox::new(NEXT.fetch_sub(1, Ordering::Relaxed)));
        link.attach(&inbox);
        Self(inbox)
    }

    pub(crate) fn take(&self) -> Announced {
        let mut heard = Announced::default();
        self.0.take(|_, marks| {
            heard.grew |= marks.has(Marks::GREW);
            heard.may_refuse |= marks.has(Marks::MAY_REFUSE);
        });
        heard
    }
}
