//! A map from business keys that is cheap to clone and cheap to change while clones of it exist.
//!
//! Keys are never forgotten, so the map of a busy account grows for years, and every decision works on a clone of it. A shared
//! `BTreeMap` would be copied whole at each posting. This is a trie over the hash of the key: a posting copies the few nodes on
//! its way, and shares the rest.
//!
//! What came out of a snapshot is a sorted list under the trie: it is made in a fraction of the time, and never changes.

use serde::{Serialize, Serializer};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

const BITS: u32 = 4;
const FAN_OUT: usize = 1 << BITS;

type Slot<K, V> = Option<Arc<Node<K, V>>>;

/// Which nodes there are depends on the keys alone, not on the order in which they came: equal maps are equal trees.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node<K, V> {
    /// All entries with one hash (in practice one), by key.
    Leaf { hash: u64, entries: Vec<(K, V)> },
    /// Two hashes at least, by their next bits.
    Branch(Box<[Slot<K, V>; FAN_OUT]>),
}

#[derive(Clone, Debug)]
pub(super) struct Keyed<K, V> {
    /// What came out of a snapshot, in the order of the keys.
    base: Option<Arc<Vec<(K, V)>>>,
    /// What was put in since. It goes over the base.
    recent: Slot<K, V>,
}

impl<K, V> Default for Keyed<K, V> {
    fn default() -> Self {
        Self { base: None, recent: None }
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Keyed<K, V> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.base, &other.base) {
            (None, None) => self.recent == other.recent,
            _ => self.sorted() == other.sorted(),
        }
    }
}

impl<K: Ord, V: Eq> Eq for Keyed<K, V> {}

/// A map in the order of the keys.
impl<K: Ord + Serialize, V: Serialize> Serialize for Keyed<K, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.sorted())
    }
}

impl<K: Ord, V> Keyed<K, V> {
    /// Takes entries in the order of their keys; `None` where they are not, or a key is there twice.
    pub(super) fn from_sorted(entries: Vec<(K, V)>) -> Option<Self> {
        entries.is_sorted_by(|one, next| one.0 < next.0).then(|| Self { base: Some(Arc::new(entries)), recent: None })
    }

    /// All entries, in the order of the keys.
    pub(super) fn sorted(&self) -> BTreeMap<&K, &V> {
        let mut all: BTreeMap<&K, &V> = self.base.iter().flat_map(|it| it.iter()).map(|(k, v)| (k, v)).collect();
        collect(self.recent.as_ref(), &mut all);
        all
    }
}

fn collect<'a, K: Ord, V>(slot: Option<&'a Arc<Node<K, V>>>, all: &mut BTreeMap<&'a K, &'a V>) {
    match slot.map(|it| &**it) {
        None => {}
        Some(Node::Leaf { entries, .. }) => all.extend(entries.iter().map(|(key, value)| (key, value))),
        Some(Node::Branch(children)) => children.iter().for_each(|it| collect(it.as_ref(), all)),
    }
}

impl<K: Ord + Hash + Clone, V: Clone> Keyed<K, V> {
    pub(super) fn get<Q: Ord + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_recent(key).or_else(|| {
            let base = self.base.as_ref()?;
            base.binary_search_by(|entry| entry.0.borrow().cmp(key)).ok().map(|at| &base[at].1)
        })
    }

    fn get_recent<Q: Ord + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (hash, mut shift, mut slot) = (hash(key), 0, &self.recent);
        loop {
            match slot.as_deref()? {
                Node::Branch(children) => slot = &children[place(hash, shift)],
                Node::Leaf { hash: other, .. } if *other != hash => return None,
                Node::Leaf { entries, .. } => return entries.iter().find(|it| it.0.borrow() == key).map(|it| &it.1),
            }
            shift += BITS;
        }
    }

    /// Puts a value in, and returns the one that was there.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.base.as_ref().and_then(|_| self.get(&key)).cloned();
        insert(&mut self.recent, hash(&key), 0, key, value).or(before)
    }
}

fn insert<K: Ord + Clone, V: Clone>(slot: &mut Slot<K, V>, hash: u64, shift: u32, key: K, value: V) -> Option<V> {
    let Some(node) = slot else {
        *slot = Some(Arc::new(Node::Leaf { hash, entries: vec![(key, value)] }));
        return None;
    };
    if let Node::Leaf { hash: other, .. } = &**node
        && *other != hash
    {
        let mut children: [Slot<K, V>; FAN_OUT] = Default::default();
        children[place(*other, shift)] = Some(Arc::clone(node));
        *node = Arc::new(Node::Branch(Box::new(children)));
    }
    match Arc::make_mut(node) {
        Node::Branch(children) => insert(&mut children[place(hash, shift)], hash, shift + BITS, key, value),
        Node::Leaf { entries, .. } => match entries.binary_search_by(|it| it.0.cmp(&key)) {
            Ok(at) => Some(std::mem::replace(&mut entries[at].1, value)),
            Err(at) => {
                entries.insert(at, (key, value));
                None
            }
        },
    }
}

/// Two hashes that differ do so before their bits run out.
const fn place(hash: u64, shift: u32) -> usize {
    (hash >> shift) as usize % FAN_OUT
}

/// The standard hasher without a random seed: the same in every run. Nothing that is stored or seen depends on it.
fn hash(key: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{Hash, Keyed};
    use std::collections::BTreeMap;
    use std::hash::Hasher;

    #[test]
    fn a_clone_does_not_see_what_is_put_in_later() {
        let mut map = Keyed::<String, u32>::default();
        for n in 0..1_000 {
            assert_eq!(map.insert(n.to_string(), n), None);
        }
        let before = map.clone();
        assert_eq!(map.insert("7".to_owned(), 70), Some(7));
        assert_eq!((before.get("7"), map.get("7"), map.get("1000")), (Some(&7), Some(&70), None));
        assert_ne!(before, map);
        assert_eq!(map.insert("7".to_owned(), 7), Some(70));
        assert_eq!(before, map);
    }

    #[test]
    fn the_order_of_insertion_does_not_matter() {
        let (mut up, mut down, mut plain) = (Keyed::default(), Keyed::default(), BTreeMap::new());
        for n in 0_u32..500 {
            up.insert(n, n * 2);
            down.insert(499 - n, (499 - n) * 2);
            plain.insert(n, n * 2);
        }
        assert_eq!(up, down);
        assert!((0..600).all(|n| up.get(&n) == plain.get(&n)));
    }

    #[test]
    fn what_a_snapshot_brought_is_found_shadowed_and_listed_once() {
        let mut plain = Keyed::default();
        for n in 0_u32..100 {
            plain.insert(n, n);
        }
        let even = (0_u32..50).map(|n| (n * 2, n * 2)).collect();
        let mut map = Keyed::from_sorted(even).expect("they are in order");
        assert_eq!((map.get(&4), map.get(&5)), (Some(&4), None));
        assert_eq!((map.insert(4, 40), map.insert(4, 4), map.insert(5, 5)), (Some(4), Some(40), None));
        assert_ne!(map, plain);
        for n in (1..100).step_by(2) {
            map.insert(n, n);
        }
        assert_eq!(map, plain);
        assert_eq!(plain, map);
        assert!(map.sorted().into_iter().eq(plain.sorted()));
        assert_eq!(map.sorted().len(), 100);
        for wrong in [vec![(2_u32, 0), (1, 0)], vec![(1, 0), (1, 0)]] {
            assert!(Keyed::from_sorted(wrong).is_none());
        }
    }

    /// Keys that all have one hash.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Same(u32);

    impl Hash for Same {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write_u8(0);
        }
    }

    #[test]
    fn keys_with_one_hash_are_told_apart() {
        let (mut up, mut down) = (Keyed::default(), Keyed::default());
        for n in 0..9 {
            assert_eq!(up.insert(Same(n), n), None);
            assert_eq!(down.insert(Same(8 - n), 8 - n), None);
        }
        assert_eq!(up, down);
        assert_eq!((up.get(&Same(3)), up.get(&Same(9))), (Some(&3), None));
        assert_eq!(up.insert(Same(3), 4), Some(3));
    }
}
