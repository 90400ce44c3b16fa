//! Merkle trees as RFC 9162 (and RFC 6962 before it) hashes them, with SHA-256: leaves under 0x00, nodes under 0x01, so that a node
//! can not be passed off as a leaf.

use super::chain::Hash;

fn leaf(data: Hash) -> Hash {
    Hash::of_parts(&[&[0], &data.0])
}

fn node(left: Hash, right: Hash) -> Hash {
    Hash::of_parts(&[&[1], &left.0, &right.0])
}

/// The root over a row of hashes of which only the last one is at hand: it keeps one hash for each full subtree.
#[derive(Clone, Debug, Default)]
pub struct RootBuilder {
    /// Size and hash of the full subtrees, the largest first.
    subtrees: Vec<(u64, Hash)>,
}

impl RootBuilder {
    /// Adds the next one.
    pub fn push(&mut self, data: Hash) {
        self.push_leaf(leaf(data));
    }

    fn push_leaf(&mut self, mut hash: Hash) {
        let mut size = 1;
        while let Some((_, left)) = self.subtrees.pop_if(|(before, _)| *before == size) {
            hash = node(left, hash);
            size *= 2;
        }
        self.subtrees.push((size, hash));
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.subtrees.iter().map(|(size, _)| size).sum()
    }

    /// The root over all so far. Of none, it is the hash of nothing.
    #[must_use]
    pub fn root(&self) -> Hash {
        let mut hashes = self.subtrees.iter().rev().map(|(_, hash)| *hash);
        let last = hashes.next().unwrap_or_else(|| Hash::of_parts(&[]));
        hashes.fold(last, |right, left| node(left, right))
    }
}

/// A whole tree, for proofs.
#[derive(Clone, Debug)]
pub struct Tree {
    /// From the leaves up; the last one of an odd level goes up as it is, which is how the RFC splits.
    levels: Vec<Vec<Hash>>,
}

impl Tree {
    /// The tree over these.
    #[must_use]
    pub fn new(data: &[Hash]) -> Self {
        let mut levels = vec![data.iter().copied().map(leaf).collect::<Vec<_>>()];
        while let Some(below) = levels.last().filter(|it| it.len() > 1) {
            let above = below.chunks(2).map(|pair| if let [a, b] = pair { node(*a, *b) } else { pair[0] }).collect();
            levels.push(above);
        }
        Self { levels }
    }

    /// The path that proves the leaf at `index`: the hashes beside the way from it to the root, the lowest first.
    #[must_use]
    pub fn path(&self, index: usize) -> Vec<Hash> {
        let beside = self.levels.iter().enumerate().map(|(height, level)| level.get((index >> height) ^ 1));
        beside.flatten().copied().collect()
    }
}

/// The root that a path leads to from the leaf at `index` of `size` (RFC 9162, 2.1.3.2); `None` where the path does not fit.
#[must_use]
pub fn root_by_path(data: Hash, index: u64, size: u64, path: &[Hash]) -> Option<Hash> {
    let (mut at, mut last) = (index, size.checked_sub(1).filter(|last| index <= *last)?);
    let mut hash = leaf(data);
    for beside in path {
        if last == 0 {
            return None;
        }
        if at & 1 == 1 || at == last {
            hash = node(*beside, hash);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            hash = node(hash, *beside);
        }
        at >>= 1;
        last >>= 1;
    }
    (last == 0).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn root_of(data: &[Hash]) -> Hash {
        let mut builder = RootBuilder::default();
        data.iter().for_each(|it| builder.push(*it));
        assert_eq!(builder.size(), data.len() as u64);
        builder.root()
    }

    /// The definition of the RFC, word for word.
    fn by_definition(data: &[Hash]) -> Hash {
        match data {
            [] => Hash::of_parts(&[]),
            [one] => leaf(*one),
            many => {
                let mut split = 1;
                while split * 2 < many.len() {
                    split *= 2;
                }
                node(by_definition(&many[..split]), by_definition(&many[split..]))
            }
        }
    }

    /// The vectors that implementations of RFC 6962 share. Their leaves are of any length, so the tree is built from leaf hashes.
    #[test]
    fn roots_are_those_of_the_published_vectors() -> Result<(), hex::FromHexError> {
        let leaves =
            ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let mut builder = RootBuilder::default();
        for (data, root) in leaves.iter().zip(roots) {
            builder.push_leaf(Hash::of_parts(&[&[0], &hex::decode(data)?]));
            assert_eq!(builder.root().to_string(), root, "after {data:?}");
        }
        assert_eq!(
            RootBuilder::default().root().to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        Ok(())
    }

    #[test]
    fn every_leaf_of_every_tree_up_to_seventy_is_proven_and_nothing_else() {
        for size in 1..=70_usize {
            let data: Vec<Hash> = (0..size).map(|it| Hash::of_parts(&[&it.to_be_bytes()])).collect();
            let (tree, root) = (Tree::new(&data), root_of(&data));
            assert_eq!(root, by_definition(&data), "of {size}");
            for (index, it) in data.iter().enumerate() {
                let path = tree.path(index);
                let proven = |data, index: usize, size: usize, path: &[Hash]| {
                    root_by_path(data, index as u64, size as u64, path) == Some(root)
                };
                assert!(proven(*it, index, size, &path), "{index} of {size}");
                assert!(!proven(Hash::ZERO, index, size, &path));
                for other in [0, index.wrapping_sub(1), index + 1, size - 1, size].into_iter().filter(|it| *it != index)
                {
                    assert!(!proven(*it, other, size, &path), "{index} of {size} passed for {other}");
                }
                assert!(!proven(*it, index, size, &[&path[..], &[Hash::ZERO]].concat()));
                if let Some((_, shorter)) = path.split_last() {
                    assert!(!proven(*it, index, size, shorter));
                }
            }
        }
        assert_eq!(root_by_path(Hash::ZERO, 0, 0, &[]), None);
    }

    proptest! {
        #[test]
        fn a_changed_bit_anywhere_leads_elsewhere(size in 1..=70_usize, index: prop::sample::Index, bit in 0..256_usize,
                                                  step: prop::sample::Index) {
            let data: Vec<Hash> = (0..size).map(|it| Hash::of_parts(&[&it.to_be_bytes()])).collect();
            let (index, root) = (index.index(size), root_of(&data));
            let mut changed = data.clone();
            changed[index].0[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(root_of(&changed), root);
            let mut path = Tree::new(&data).path(index);
            prop_assert_ne!(root_by_path(changed[index], index as u64, size as u64, &path), Some(root));
            if !path.is_empty() {
                let step = step.index(path.len());
                path[step].0[bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(root_by_path(data[index], index as u64, size as u64, &path), Some(root));
            }
        }
    }
}
