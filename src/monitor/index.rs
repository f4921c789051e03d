//! The index: who need not be looked at.
//!
//! Waiters with equal demands form a **class**, first come first served; only its front is ever
//! looked at. A class stands in one place:
//!
//! ```text
//!   Head            its front is the head of the line: looked at in every pass
//!   Filed(account)  that account refused its front; until the account's answer may have changed,
//!                   nobody of the class can go, whatever else happens
//!   Ready           no account is known to refuse its front: looked at in the next pass
//! ```
//!
//! An account somebody is filed under has a [`Watch`]: a tree of fronts, the instant at which the
//! clock alone may change its answer, and a mark when something else may have.
//!
//! # Invariants
//!
//! 7. Every waiter is in the class of its demand, and every class is in its place and no other.
//! 8. A class is filed only under an account that said no to its front, with the head's amounts set
//!    aside; if that answer may have become a yes, the account is marked, or its deadline is due, or
//!    an announcement is in the inbox.
//! 9. `deadlines` holds every watch's deadline. It is no later than the first instant at which the
//!    clock alone makes the account say yes to a front filed there; it may be earlier, after a take
//!    or a departure, which costs one look.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::line::{Chain, Key, Line};
use super::tree::{Forest, Tree};
use crate::account::AccountId;
use crate::amount::Amount;
use crate::demand::Demand;

/// Where a class stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Head,
    Ready,
    Filed(AccountId),
}

#[derive(Debug)]
struct Class {
    members: Chain,
    place: Place,
    /// What its front wants of the account it is filed under.
    amount: Amount,
}

/// An account somebody is filed under.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) tree: Tree,
    pub(super) deadline: Option<Instant>,
    pub(super) is_marked: bool,
    /// Its deadline came, and after how many changes it had been set.
    pub(super) was_due: bool,
    /// How often in a row it said no at an instant it had named itself.
    pub(super) breaches: u8,
    pub(super) named_after: u64,
}

/// What the last look at the head found.
#[derive(Debug)]
pub(super) struct HeadLook {
    pub(super) key: Key,
    /// The accounts it is short of: nobody else can go there either.
    pub(super) short: SmallVec<[AccountId; 4]>,
    /// When the clock alone lets it go.
    pub(super) at: Option<Instant>,
    /// When the accounts themselves said that, and after how many changes.
    pub(super) named: Option<(Instant, u64)>,
    pub(super) breaches: u8,
    /// An account that broke its word to it more than by chance.
    pub(super) suspect: Option<AccountId>,
}

/// Whose demands are equal: the same accounts with the same amounts.
#[derive(Clone)]
struct Alike(Demand);

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_like(&other.0)
    }
}

impl Eq for Alike {}

impl Hash for Alike {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for want in self.0.wants() {
            want.hash(state);
        }
    }
}

/// The classes, where they stand, and what is known of the accounts they stand under.
#[derive(Default)]
pub(super) struct Index {
    classes: Vec<Option<Class>>,
    free: Vec<u32>,
    alike: HashMap<Alike, u32>,
    forest: Forest,
    ready: BTreeMap<u64, u32>,
    watches: HashMap<AccountId, Watch>,
    deadlines: BTreeSet<(Instant, AccountId)>,
    /// The watches that are marked; until it is [tidied](Self::tidy), some that are no more.
    pub(super) marked: Vec<AccountId>,
    /// Accounts that may refuse outright: everybody who names one is to be asked.
    pub(super) refusing: HashSet<AccountId>,
    /// How far the asking of those has got, over the classes.
    pub(super) asked_up_to: usize,
    pub(super) head: Option<HeadLook>,
    /// A pass is worth making, the clock aside.
    pub(super) is_wanted: bool,
    /// Looks after which nobody left, since a pass last got through.
    pub(super) looks_in_vain: usize,
    /// Memory stopped somebody in this pass.
    pub(super) was_shut: bool,
    /// Memory stopped the last pass, or turned the last arrival away: until when. Marks are kept,
    /// and only memory's own instant counts.
    pub(super) closed: Option<Option<Instant>>,
}

impl Index {
    /// Puts a waiter into the class of its demand. Answers whether it is the first of it; the class
    /// is then in no place yet, and must be [placed](Self::place).
    pub(super) fn join(&mut self, line: &mut Line, key: Key, demand: &Demand) -> bool {
        let alike = Alike(demand.unlabelled());
        if let Some(&class) = self.alike.get(&alike) {
            let members = &mut self.classes[class as usize].as_mut().expect("a live class").members;
            line.join(key, class, members);
            return false;
        }
        let mut class = Class { members: Chain::EMPTY, place: Place::Head, amount: Amount::NONE };
        let id = self.free.pop().unwrap_or(self.classes.len() as u32);
        line.join(key, id, &mut class.members);
        if id as usize == self.classes.len() {
            self.classes.push(Some(class));
        } else {
            self.classes[id as usize] = Some(class);
        }
        self.alike.insert(alike, id);
        true
    }

    /// Whether somebody with an equal demand waits already.
    pub(super) fn has_class(&self, demand: &Demand) -> bool {
        self.alike.contains_key(&Alike(demand.unlabelled()))
    }

    /// Takes a waiter out of its class, before it leaves the line. What the class still holds is
    /// moved with it; answers the demand the class was known by, when nobody is left in it.
    pub(super) fn part(&mut self, line: &mut Line, key: Key) -> Option<Demand> {
        let id = line.class_of(key);
        let class = self.classes[id as usize].as_mut()?;
        let behind = line.behind(key);
        if !line.part(key, &mut class.members) {
            return None;
        }
        let (place, amount) = (class.place, class.amount);
        match line.front(&class.members) {
            // The head's equal comes next, and stands at the head then.
            Some(_) if place == Place::Head && line.front(&class.members) == behind => None,
            Some(front) => {
                // When the front was the head of the line, the next has not been looked at.
                let to = if place == Place::Head { Place::Ready } else { place };
                self.relocate(id, key.ticket(), front, to, amount);
                None
            }
            None => {
                self.unplace(place, key.ticket());
                self.classes[id as usize] = None;
                self.free.push(id);
                let demand = &line.waiter(key)?.demand;
                let known_by = self.alike.remove_entry(&Alike(demand.unlabelled()));
                self.shrink();
                known_by.map(|(alike, _)| alike.0)
            }
        }
    }

    /// Puts a class that is in no place into one.
    pub(super) fn place(&mut self, id: u32, front: Key, place: Place, amount: Amount) {
        if let Some(class) = self.classes[id as usize].as_mut() {
            class.place = place;
            class.amount = amount;
        }
        match place {
            Place::Head => {}
            Place::Ready => {
                self.ready.insert(front.ticket(), id);
            }
            Place::Filed(account) => {
                let watch = self.watches.entry(account).or_default();
                self.forest.insert(&mut watch.tree, id, front.ticket(), amount);
            }
        }
    }

    /// Moves a class, whose front is `front`, to another place.
    pub(super) fn shift(&mut self, id: u32, front: Key, place: Place, amount: Amount) {
        self.relocate(id, front.ticket(), front, place, amount);
    }

    /// Moves a class from where it stands by `ticket` to where it is to stand by its front.
    ///
    /// What is known of an account outlasts a move under it: its deadline may be the only thing
    /// that gets a class looked at again, even if nobody else is filed there.
    fn relocate(&mut self, id: u32, ticket: u64, front: Key, to: Place, amount: Amount) {
        let Some(class) = self.classes[id as usize].as_mut() else { return };
        if let Place::Filed(account) = to
            && class.place == to
            && let Some(watch) = self.watches.get_mut(&account)
        {
            class.amount = amount;
            self.forest.remove(&mut watch.tree, ticket);
            self.forest.insert(&mut watch.tree, id, front.ticket(), amount);
            return;
        }
        let from = class.place;
        self.unplace(from, ticket);
        self.place(id, front, to, amount);
    }

    fn unplace(&mut self, place: Place, ticket: u64) {
        match place {
            Place::Head => {}
            Place::Ready => {
                self.ready.remove(&ticket);
            }
            Place::Filed(account) => {
                if let Some(watch) = self.watches.get_mut(&account) {
                    self.forest.remove(&mut watch.tree, ticket);
                    if watch.tree.is_empty() {
                        self.unwatch(account);
                    }
                }
            }
        }
    }

    /// Nobody is filed under an account any more.
    fn unwatch(&mut self, account: AccountId) {
        let Some(watch) = self.watches.remove(&account) else { return };
        if let Some(at) = watch.deadline {
            self.deadlines.remove(&(at, account));
        }
    }

    /// Leaves of the marked accounts those that are still watched, each once.
    ///
    /// A watch that goes does not look for its mark: thousands may be marked, and go, in one pass.
    pub(super) fn tidy(&mut self) {
        let watches = &self.watches;
        self.marked.retain(|account| watches.get(account).is_some_and(|watch| watch.is_marked));
        self.marked.sort_unstable();
        self.marked.dedup();
    }

    /// Everybody who names the account is to be asked whether it refuses them.
    pub(super) fn suspect(&mut self, account: AccountId) {
        self.refusing.insert(account);
        // Those asked already were not asked about this one, or not since it said so again.
        self.asked_up_to = 0;
    }

    /// Makes the class of the head stand at the head.
    pub(super) fn seat(&mut self, line: &Line, head: Key) {
        let id = line.class_of(head);
        if self.classes[id as usize].as_ref().is_some_and(|class| class.place != Place::Head) {
            self.shift(id, head, Place::Head, Amount::NONE);
        }
    }

    pub(super) fn front(&self, line: &Line, class: u32) -> Option<Key> {
        line.front(&self.classes.get(class as usize)?.as_ref()?.members)
    }

    /// How many classes there may be: the bound of their numbers.
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Whether nobody behind the head is to be looked at.
    pub(super) fn is_quiet(&self) -> bool {
        self.marked.is_empty() && self.ready.is_empty()
    }

    /// The first class after `after` that no account is known to refuse.
    pub(super) fn first_ready(&self, after: u64) -> Option<(u64, u32)> {
        self.ready.range(after + 1..).next().map(|(&ticket, &class)| (ticket, class))
    }

    pub(super) fn watch(&self, account: AccountId) -> Option<&Watch> {
        self.watches.get(&account)
    }

    pub(super) fn watch_mut(&mut self, account: AccountId) -> Option<&mut Watch> {
        self.watches.get_mut(&account)
    }

    pub(super) const fn forest(&self) -> &Forest {
        &self.forest
    }

    /// Sets the deadline of a watch.
    pub(super) fn set_deadline(&mut self, account: AccountId, at: Option<Instant>) {
        let Some(watch) = self.watches.get_mut(&account) else { return };
        if let Some(old) = std::mem::replace(&mut watch.deadline, at) {
            self.deadlines.remove(&(old, account));
        }
        self.deadlines.extend(at.map(|at| (at, account)));
    }

    /// An account's answer may have changed, for a reason other than the clock. Where nobody is
    /// filed and the head is not short, that changes nothing.
    pub(super) fn mark(&mut self, account: AccountId) {
        if let Some(watch) = self.watches.get_mut(&account) {
            self.is_wanted = true;
            if !std::mem::replace(&mut watch.is_marked, true) {
                self.enlist(account);
            }
        } else if self.head.as_ref().is_none_or(|head| head.short.contains(&account)) {
            self.is_wanted = true;
        }
    }

    /// Marks the watches whose deadline has come.
    pub(super) fn mark_due(&mut self, now: Instant) {
        while let Some(&(at, account)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(watch) = self.watches.get_mut(&account) {
                watch.deadline = None;
                watch.was_due = true;
                if !std::mem::replace(&mut watch.is_marked, true) {
                    self.enlist(account);
                }
            }
        }
    }

    /// Keeps a mark for the next pass that looks behind the head.
    ///
    /// While memory lets nobody go there is none, and watches come and go: what is left of them must
    /// not add up.
    fn enlist(&mut self, account: AccountId) {
        const SPARE: usize = 64;
        self.marked.push(account);
        if self.marked.len() > 2 * self.watches.len() + SPARE {
            self.tidy();
        }
    }

    /// When the clock alone makes a pass worth while.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.closed {
            Some(memory) => memory,
            None => {
                let watched = self.deadlines.first().map(|&(at, _)| at);
                let head = self.head.as_ref().and_then(|head| head.at);
                [watched, head].into_iter().flatten().min()
            }
        }
    }

    /// Nobody waits.
    pub(super) fn rest(&mut self) {
        self.marked.clear();
        self.refusing.clear();
        self.asked_up_to = 0;
        self.head = None;
        self.is_wanted = false;
        self.closed = None;
    }

    /// Gives back what a long line needed, now and then. Numbers of classes do not change, so only
    /// free ones at the end can go.
    fn shrink(&mut self) {
        const BLOCK: usize = 1_024;
        let (len, free) = (self.classes.len(), self.free.len());
        let is_time = self.alike.is_empty() || (free % BLOCK == 0 && free > len / 2);
        if len < BLOCK || !is_time {
            return;
        }
        let kept = self.classes.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.classes.truncate(kept);
        self.free.retain(|&id| (id as usize) < kept);
        self.forest.truncate(kept);
        self.classes.shrink_to_fit();
        self.free.shrink_to_fit();
        self.alike.shrink_to_fit();
        self.watches.shrink_to_fit();
    }

    /// Asserts invariants 7 to 9, as far as they can be read off the state.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self, line: &Line) {
        let mut members = 0;
        let mut filed: HashMap<AccountId, usize> = HashMap::new();
        let mut ready = 0;
        for (id, class) in self.classes.iter().enumerate() {
            let Some(class) = class else { continue };
            let mut last = 0;
            let front = line.front(&class.members).expect("7: a class has a front");
            let alike = Alike(line.waiter(front).expect("a waiter").demand.unlabelled());
            assert_eq!(self.alike.get(&alike), Some(&(id as u32)), "7: a class is found");
            for key in line.members(&class.members) {
                assert_eq!(line.class_of(key), id as u32, "7: a member knows its class");
                assert!(key.ticket() > last, "7: a class stands in order of arrival");
                let demand = &line.waiter(key).expect("7: members wait").demand;
                assert!(Alike(demand.clone()) == alike, "7: members want the same");
                last = key.ticket();
                members += 1;
            }
            match class.place {
                Place::Head => assert_eq!(line.head(), Some(front), "7: the head's class"),
                Place::Ready => {
                    ready += 1;
                    assert_eq!(self.ready.get(&front.ticket()), Some(&(id as u32)), "7: ready");
                }
                Place::Filed(account) => {
                    *filed.entry(account).or_default() += 1;
                    let tree = self.watches.get(&account).expect("7: filed under a watch").tree;
                    let after = front.ticket() - 1;
                    let found = self.forest.first_fitting(tree, after, &mut |_, _| true);
                    assert_eq!(found, Some((front.ticket(), id as u32)), "7: filed by its front");
                }
            }
        }
        assert_eq!(members, line.len(), "7: every waiter is in a class");
        assert_eq!(ready, self.ready.len(), "7: what is ready is a class");
        assert_eq!(filed.len(), self.watches.len(), "7: nobody watches for nobody");
        let deadlines = self.watches.values().filter(|watch| watch.deadline.is_some()).count();
        assert_eq!(deadlines, self.deadlines.len(), "9: every deadline is a watch's");
    }
}
