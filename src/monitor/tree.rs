//! Trees of class fronts, in order of arrival, that know the least they hold.
//!
//! Each watched account has a tree: a treap keyed by the ticket of a class's front. A node holds the
//! least requests and the least units of everything below it. An account is monotone, so one that
//! says no to a node's least says no to everything below it, and the subtree is passed over. When
//! amounts differ in one dimension the least *is* somebody's amount, and the earliest front that
//! fits is found in a logarithmic number of questions; when they differ in both, it may be
//! nobody's, and a miss visits more.
//!
//! All trees share one arena, indexed by class: a class stands in at most one tree.

use tokio::time::Instant;

use crate::amount::Amount;

/// No node.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The ticket of the class's front.
    ticket: u64,
    /// What the front wants of the account.
    amount: Amount,
    /// The least of both counters here and below.
    least: Amount,
    left: u32,
    right: u32,
    /// A heap order by chance, drawn from the ticket: it keeps the tree shallow.
    weight: u32,
}

/// The arena of all trees.
#[derive(Debug, Default)]
pub(super) struct Forest {
    nodes: Vec<Node>,
}

/// One tree: its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree(u32);

impl Default for Tree {
    fn default() -> Self {
        Self(NIL)
    }
}

impl Tree {
    pub(super) const fn is_empty(self) -> bool {
        self.0 == NIL
    }
}

impl Forest {
    /// Puts a class into a tree. It must not stand in any.
    pub(super) fn insert(&mut self, tree: &mut Tree, class: u32, ticket: u64, amount: Amount) {
        let index = class as usize;
        let node =
            Node { ticket, amount, least: amount, left: NIL, right: NIL, weight: scatter(ticket) };
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, node);
        }
        self.nodes[index] = node;
        tree.0 = self.put(tree.0, class);
    }

    /// Takes the class whose front has this ticket out of a tree.
    pub(super) fn remove(&mut self, tree: &mut Tree, ticket: u64) {
        tree.0 = self.cut(tree.0, ticket);
    }

    /// The earliest front after `after` that the account says yes to.
    pub(super) fn first_fitting(
        &self,
        tree: Tree,
        after: u64,
        fits: &mut impl FnMut(u32, Amount) -> bool,
    ) -> Option<(u64, u32)> {
        self.search(tree.0, after, fits)
    }

    /// The earliest instant at which the account says yes to anybody in the tree.
    pub(super) fn soonest(
        &self,
        tree: Tree,
        when: &mut impl FnMut(u32, Amount) -> Option<Instant>,
    ) -> Option<Instant> {
        let mut best = None;
        if tree.0 != NIL
            && let Some(bound) = when(tree.0, self.nodes[tree.0 as usize].least)
        {
            self.bound(tree.0, bound, when, &mut best);
        }
        best
    }

    /// Forgets the nodes of classes from `len` on, which stand in no tree.
    pub(super) fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len);
        self.nodes.shrink_to_fit();
    }

    fn search(
        &self,
        at: u32,
        after: u64,
        fits: &mut impl FnMut(u32, Amount) -> bool,
    ) -> Option<(u64, u32)> {
        if at == NIL {
            return None;
        }
        let Node { ticket, amount, least, left, right, .. } = self.nodes[at as usize];
        if ticket <= after {
            return self.search(right, after, fits);
        }
        if !fits(at, least) {
            return None;
        }
        if let Some(found) = self.search(left, after, fits) {
            return Some(found);
        }
        if amount == least || fits(at, amount) {
            return Some((ticket, at));
        }
        self.search(right, after, fits)
    }

    /// Visits a subtree whose least fits at `bound` at the earliest, the more promising side first.
    fn bound(
        &self,
        at: u32,
        bound: Instant,
        when: &mut impl FnMut(u32, Amount) -> Option<Instant>,
        best: &mut Option<Instant>,
    ) {
        if best.is_some_and(|best| best <= bound) {
            return;
        }
        let Node { amount, least, left, right, .. } = self.nodes[at as usize];
        if amount == least {
            // Nobody below can be sooner than the least of all.
            *best = Some(bound);
            return;
        }
        if let Some(own) = when(at, amount) {
            *best = Some(best.map_or(own, |best| best.min(own)));
        }
        let mut side = |child: u32| {
            (child != NIL)
                .then(|| when(child, self.nodes[child as usize].least))
                .flatten()
                .map(|bound| (bound, child))
        };
        let mut sides = [side(left), side(right)];
        sides.sort_by_key(|side| side.map_or((true, None), |(bound, _)| (false, Some(bound))));
        for (bound, child) in sides.into_iter().flatten() {
            self.bound(child, bound, when, best);
        }
    }

    fn put(&mut self, root: u32, new: u32) -> u32 {
        if root == NIL {
            return new;
        }
        let (ticket, weight) = (self.nodes[new as usize].ticket, self.nodes[new as usize].weight);
        let node = self.nodes[root as usize];
        if weight > node.weight {
            let (left, right) = self.split(root, ticket);
            self.nodes[new as usize].left = left;
            self.nodes[new as usize].right = right;
            self.sum(new);
            return new;
        }
        if ticket < node.ticket {
            let left = self.put(node.left, new);
            self.nodes[root as usize].left = left;
        } else {
            let right = self.put(node.right, new);
            self.nodes[root as usize].right = right;
        }
        self.sum(root);
        root
    }

    fn cut(&mut self, root: u32, ticket: u64) -> u32 {
        if root == NIL {
            return NIL;
        }
        let node = self.nodes[root as usize];
        if ticket == node.ticket {
            return self.merge(node.left, node.right);
        }
        if ticket < node.ticket {
            let left = self.cut(node.left, ticket);
            self.nodes[root as usize].left = left;
        } else {
            let right = self.cut(node.right, ticket);
            self.nodes[root as usize].right = right;
        }
        self.sum(root);
        root
    }

    /// Everything before the ticket, and everything after.
    fn split(&mut self, root: u32, ticket: u64) -> (u32, u32) {
        if root == NIL {
            return (NIL, NIL);
        }
        let node = self.nodes[root as usize];
        if node.ticket < ticket {
            let (left, right) = self.split(node.right, ticket);
            self.nodes[root as usize].right = left;
            self.sum(root);
            (root, right)
        } else {
            let (left, right) = self.split(node.left, ticket);
            self.nodes[root as usize].left = right;
            self.sum(root);
            (left, root)
        }
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        if self.nodes[left as usize].weight > self.nodes[right as usize].weight {
            let below = self.merge(self.nodes[left as usize].right, right);
            self.nodes[left as usize].right = below;
            self.sum(left);
            left
        } else {
            let below = self.merge(left, self.nodes[right as usize].left);
            self.nodes[right as usize].left = below;
            self.sum(right);
            right
        }
    }

    /// Works out the least of a node from its children's.
    fn sum(&mut self, at: u32) {
        let Node { amount, left, right, .. } = self.nodes[at as usize];
        let mut least = amount;
        for child in [left, right] {
            if child != NIL {
                let below = self.nodes[child as usize].least;
                least.requests = least.requests.min(below.requests);
                least.units = least.units.min(below.units);
            }
        }
        self.nodes[at as usize].least = least;
    }
}

/// Bits that look drawn by chance (a multiply and shifts, after the usual finalisers).
const fn scatter(ticket: u64) -> u32 {
    let mut x = ticket.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn covers(free: Amount) -> impl FnMut(u32, Amount) -> bool {
        move |_, amount| free.covers(amount)
    }

    #[test]
    fn the_earliest_that_fits_is_found_in_few_questions_when_one_dimension_differs() {
        let mut forest = Forest::default();
        let mut tree = Tree::default();
        for class in 0..100_000_u32 {
            let units = u64::from(100_000 - class);
            forest.insert(&mut tree, class, u64::from(class) + 1, Amount::tokens(units));
        }
        let mut asked = 0;
        let found = forest.first_fitting(tree, 0, &mut |_, amount| {
            asked += 1;
            amount.units <= 20
        });
        assert_eq!(found, Some((99_981, 99_980)));
        assert!(asked < 150, "{asked} questions");
        asked = 0;
        let none = forest.first_fitting(tree, 0, &mut |_, amount| {
            asked += 1;
            amount.units == 0
        });
        assert_eq!((none, asked), (None, 1));
    }

    proptest! {
        #[test]
        fn a_forest_answers_as_a_walk_over_a_map_does(
            steps in prop::collection::vec((0_u8..4, 0_u32..40, 0_u32..6, 0_u64..60, any::<bool>()), 1..200),
        ) {
            let mut forest = Forest::default();
            let mut trees = [Tree::default(), Tree::default()];
            let mut maps = [BTreeMap::new(), BTreeMap::new()];
            let mut home: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
            let base = Instant::now();
            let mut ticket = 0;
            for (what, class, requests, units, second) in steps {
                let which = usize::from(second);
                match what {
                    0 | 1 => {
                        if let Some((old, at)) = home.remove(&class) {
                            forest.remove(&mut trees[old], at);
                            maps[old].remove(&at);
                        }
                        if what == 0 {
                            ticket += 1;
                            let amount = Amount { requests, units };
                            forest.insert(&mut trees[which], class, ticket, amount);
                            maps[which].insert(ticket, (class, amount));
                            home.insert(class, (which, ticket));
                        }
                    }
                    2 => {
                        let free = Amount { requests, units };
                        let after = u64::from(class);
                        let found = forest.first_fitting(trees[which], after, &mut covers(free));
                        let expected = maps[which]
                            .range(after + 1..)
                            .find(|(_, (_, amount))| free.covers(*amount))
                            .map(|(&ticket, &(class, _))| (ticket, class));
                        prop_assert_eq!(found, expected);
                    }
                    _ => {
                        // Requests come one a second, units three a second, more than 50 never.
                        let when = |amount: Amount| {
                            let secs = u64::from(amount.requests).max(amount.units.div_ceil(3));
                            (amount.units <= 50).then(|| base + Duration::from_secs(secs))
                        };
                        let found = forest.soonest(trees[which], &mut |_, amount| when(amount));
                        let expected =
                            maps[which].values().filter_map(|&(_, amount)| when(amount)).min();
                        prop_assert_eq!(found, expected);
                    }
                }
            }
        }
    }
}
