//! Measures a parsed request before anything looks closer at it, and spreads its fragments out.
//!
//! The library visits a fragment as often as it is spread, and prices what is in a named one by the type around it: thirty fragments
//! that spread each other three times are more visits than anybody has time for, and a list in a fragment on `Node` costs nothing. Here
//! each fragment is measured once; what is small enough has its fragments put where they are spread, each under its own type.

use async_graphql::parser::types::{
    DocumentOperations, ExecutableDocument, FragmentDefinition, InlineFragment, OperationDefinition, OperationType,
    Selection, SelectionSet,
};
use async_graphql::{Name, Positioned};
use std::collections::{HashMap, HashSet};

/// Most fields of a request, each fragment counted as often as it is spread, `__typename` included.
const MAX_SELECTIONS: u64 = 5_000;
/// Most root fields of an operation: each costs what a request costs, however many are sent in one.
const MAX_ROOTS: u64 = 20;
/// Most root fields of a mutation.
const MAX_MUTATIONS: u64 = 10;
/// How deep fragments and fields may nest; the library has its own limits below this.
const MAX_DEPTH: usize = 128;
/// How often a list of the schema's own types may lie within another: each one multiplies the answer.
const MAX_LISTS: u32 = 3;
/// The lists that lead from one type of the schema to others.
const LISTS: [&str; 4] = ["fields", "inputFields", "interfaces", "possibleTypes"];

/// A request that is not looked at any closer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooLarge {
    #[error("the query asks for too much: at most 5000 fields, fragments spread out")]
    Selections,
    #[error("the query nests too deeply, or a fragment spreads itself")]
    Depth,
    #[error("a request holds at most 20 root fields")]
    Roots,
    #[error("a request holds at most ten mutations")]
    Mutations,
    #[error("lists of the schema's types are nested too often")]
    Introspection,
}

#[derive(Clone, Copy, Default)]
struct Size {
    selections: u64,
    roots: u64,
    /// Lists of the schema's types within each other.
    lists: u32,
}

type Fragments = HashMap<Name, Positioned<FragmentDefinition>>;

struct Scale<'a> {
    fragments: &'a Fragments,
    /// `None`: being measured.
    known: HashMap<&'a Name, Option<Size>>,
}

/// Refuses what is too large, and spreads out the fragments of what is not.
pub(crate) fn spread_out(document: &mut ExecutableDocument) -> Result<(), TooLarge> {
    let mut scale = Scale { fragments: &document.fragments, known: HashMap::new() };
    for (_, operation) in document.operations.iter() {
        let size = scale.set(&operation.node.selection_set.node, 0)?;
        check(size, operation.node.ty)?;
    }
    if document.fragments.is_empty() {
        return Ok(());
    }
    let mut used = HashSet::new();
    let fragments = std::mem::take(&mut document.fragments);
    for operation in operations(&mut document.operations) {
        put(&mut operation.selection_set.node, &fragments, &mut used);
    }
    // One that nobody uses is an error, which the library reports.
    document.fragments = fragments.into_iter().filter(|(name, _)| !used.contains(name)).collect();
    Ok(())
}

fn check(size: Size, ty: OperationType) -> Result<(), TooLarge> {
    if size.selections > MAX_SELECTIONS {
        return Err(TooLarge::Selections);
    }
    if ty == OperationType::Mutation && size.roots > MAX_MUTATIONS {
        return Err(TooLarge::Mutations);
    }
    if size.roots > MAX_ROOTS {
        return Err(TooLarge::Roots);
    }
    if size.lists > MAX_LISTS {
        return Err(TooLarge::Introspection);
    }
    Ok(())
}

fn operations(operations: &mut DocumentOperations) -> Vec<&mut OperationDefinition> {
    match operations {
        DocumentOperations::Single(operation) => vec![&mut operation.node],
        DocumentOperations::Multiple(named) => named.values_mut().map(|operation| &mut operation.node).collect(),
    }
}

impl<'a> Scale<'a> {
    fn set(&mut self, set: &'a SelectionSet, depth: usize) -> Result<Size, TooLarge> {
        if depth > MAX_DEPTH {
            return Err(TooLarge::Depth);
        }
        let mut sum = Size::default();
        for selection in &set.items {
            let size = match &selection.node {
                Selection::Field(field) => {
                    let inside = self.set(&field.node.selection_set.node, depth + 1)?;
                    let is_list = LISTS.contains(&field.node.name.node.as_str());
                    Size {
                        selections: inside.selections.saturating_add(1),
                        roots: 1,
                        lists: inside.lists.saturating_add(u32::from(is_list)),
                    }
                }
                Selection::InlineFragment(fragment) => self.set(&fragment.node.selection_set.node, depth + 1)?,
                Selection::FragmentSpread(spread) => self.fragment(&spread.node.fragment_name.node, depth + 1)?,
            };
            sum.selections = sum.selections.saturating_add(size.selections);
            sum.roots = sum.roots.saturating_add(size.roots);
            sum.lists = sum.lists.max(size.lists);
        }
        Ok(sum)
    }

    fn fragment(&mut self, name: &'a Name, depth: usize) -> Result<Size, TooLarge> {
        match self.known.get(name) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(TooLarge::Depth),
            None => {}
        }
        // One that does not exist is an error, which the library reports.
        let Some(fragment) = self.fragments.get(name) else { return Ok(Size::default()) };
        self.known.insert(name, None);
        let size = self.set(&fragment.node.selection_set.node, depth)?;
        self.known.insert(name, Some(size));
        Ok(size)
    }
}

/// Puts each fragment where it is spread. What was measured is small enough for that.
fn put(set: &mut SelectionSet, fragments: &Fragments, used: &mut HashSet<Name>) {
    for selection in &mut set.items {
        if let Selection::FragmentSpread(spread) = &selection.node
            && let Some(fragment) = fragments.get(&spread.node.fragment_name.node)
        {
            used.insert(spread.node.fragment_name.node.clone());
            let mut directives = spread.node.directives.clone();
            directives.extend(fragment.node.directives.iter().cloned());
            let fragment = InlineFragment {
                type_condition: Some(fragment.node.type_condition.clone()),
                directives,
                selection_set: fragment.node.selection_set.clone(),
            };
            selection.node = Selection::InlineFragment(Positioned::new(fragment, spread.pos));
        }
        match &mut selection.node {
            Selection::Field(field) => put(&mut field.node.selection_set.node, fragments, used),
            Selection::InlineFragment(fragment) => put(&mut fragment.node.selection_set.node, fragments, used),
            Selection::FragmentSpread(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_graphql::parser::parse_query;

    fn measured(query: &str) -> Result<ExecutableDocument, TooLarge> {
        let mut document = parse_query(query).expect("a document");
        spread_out(&mut document).map(|()| document)
    }

    #[test]
    fn fragments_that_multiply_are_refused_at_once() {
        let bomb = |times: usize, depth: usize| {
            let spread = |next: usize| format!("...F{next} ").repeat(times);
            let fragments =
                (1..depth).map(|n| format!("fragment F{n} on Query {{ {} }} ", spread(n + 1))).collect::<String>();
            format!("{{ ...F1 }} {fragments} fragment F{depth} on Query {{ __typename }}")
        };
        assert_eq!(measured(&bomb(3, 30)).err(), Some(TooLarge::Selections));
        assert_eq!(measured(&bomb(1, 2_000)).err(), Some(TooLarge::Depth));
        assert_eq!(
            measured("{ ...A } fragment A on Query { ...B } fragment B on Query { ...A }").err(),
            Some(TooLarge::Depth)
        );
        assert!(measured(&bomb(2, 4)).is_ok_and(|document| document.fragments.is_empty()));
        let names = "__typename ".repeat(5_000);
        assert_eq!(measured(&format!("{{ models {{ {names} }} }}")).err(), Some(TooLarge::Selections));
    }

    #[test]
    fn roots_count_wherever_they_stand() {
        let many = (0..21).map(|n| format!("a{n}: models {{ name }} ")).collect::<String>();
        assert_eq!(measured(&format!("{{ {many} }}")).err(), Some(TooLarge::Roots));
        let eleven = (0..11).map(|n| format!("a{n}: x ")).collect::<String>();
        for mutation in [
            format!("mutation {{ {eleven} }}"),
            format!("mutation {{ ... on Mutation {{ {eleven} }} }}"),
            format!("mutation {{ ...F }} fragment F on Mutation {{ {eleven} }}"),
        ] {
            assert_eq!(measured(&mutation).err(), Some(TooLarge::Mutations), "{mutation}");
        }
    }

    #[test]
    fn the_schema_is_not_multiplied_by_itself() {
        let deep = "{ __schema { types { interfaces { possibleTypes { interfaces { possibleTypes { name } } } } } } }";
        assert_eq!(measured(deep).err(), Some(TooLarge::Introspection));
        let hidden = "{ __schema { types { ...A } } } fragment A on __Type { fields { type { ...B } } }
                      fragment B on __Type { fields { type { fields { type { possibleTypes { name } } } } } }";
        assert_eq!(measured(hidden).err(), Some(TooLarge::Introspection));
    }
}
