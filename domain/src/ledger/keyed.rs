//! A map from business keys that is cheap to clone and cheap to change while clones of it exist.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

type Shard<K, V> = Arc<BTreeMap<K, V>>;

/// Keys are never forgotten, so the map of a busy account grows for years, and every decision works on a clone of it. One
/// shared map would be copied whole at each posting; of 256 shared shards one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keyed<K: Ord, V>(Arc<BTreeMap<u8, Shard<K, V>>>);

impl<K: Ord, V> Default for Keyed<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Ord + Hash + Clone, V: Clone> Keyed<K, V> {
    pub(super) fn get<Q: Ord + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.0.get(&shard(key))?.get(key)
    }

    /// Puts a value in, and returns the one that was there.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let shard = Arc::make_mut(&mut self.0).entry(shard(&key)).or_default();
        Arc::make_mut(shard).insert(key, value)
    }
}

/// The standard hasher without a random seed: the same in every run. Nothing that is stored or seen depends on it.
fn shard(key: &(impl Hash + ?Sized)) -> u8 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish().to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::Keyed;

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
}
