//! What clients rely on in a schema, and what breaks it. Follows the "breaking" and the argument part of the "dangerous" changes of
//! graphql-js. New enum values and new fields break nobody who follows `docs/graphql.md`.

use anyhow::{Context, Result};
use async_graphql::Positioned;
use async_graphql::parser::parse_schema;
use async_graphql::parser::types::{
    BaseType, FieldDefinition, InputValueDefinition, Type, TypeDefinition, TypeKind, TypeSystemDefinition,
};
use std::collections::{BTreeMap, BTreeSet};

/// A schema by names.
#[derive(Debug)]
pub struct Contract {
    roots: BTreeMap<&'static str, String>,
    types: BTreeMap<String, Shape>,
    directives: BTreeMap<String, BTreeMap<String, Input>>,
    /// Everything without a description, by its place.
    pub undescribed: Vec<String>,
}

#[derive(Debug, Default)]
struct Shape {
    kind: &'static str,
    interfaces: BTreeSet<String>,
    /// Of objects and interfaces.
    fields: BTreeMap<String, Field>,
    /// Of input objects.
    inputs: BTreeMap<String, Input>,
    /// Values of enums, members of unions.
    words: BTreeSet<String>,
}

#[derive(Debug)]
struct Field {
    ty: Type,
    arguments: BTreeMap<String, Input>,
}

#[derive(Debug)]
struct Input {
    ty: Type,
    default: Option<String>,
}

impl Input {
    fn is_required(&self) -> bool {
        !self.ty.nullable && self.default.is_none()
    }
}

impl Contract {
    pub fn read(sdl: &str) -> Result<Self> {
        let document = parse_schema(sdl).context("the schema can not be parsed")?;
        let mut contract = Self {
            roots: BTreeMap::new(),
            types: BTreeMap::new(),
            directives: BTreeMap::new(),
            undescribed: Vec::new(),
        };
        for definition in document.definitions {
            match definition {
                TypeSystemDefinition::Schema(schema) => {
                    let schema = schema.node;
                    let roots =
                        [("query", schema.query), ("mutation", schema.mutation), ("subscription", schema.subscription)];
                    let named = roots.into_iter().filter_map(|(root, name)| Some((root, name?.node.to_string())));
                    contract.roots.extend(named);
                }
                TypeSystemDefinition::Type(definition) => contract.add(definition.node),
                TypeSystemDefinition::Directive(directive) => {
                    let arguments = inputs(&directive.node.arguments);
                    contract.directives.insert(directive.node.name.node.to_string(), arguments);
                }
            }
        }
        Ok(contract)
    }

    fn add(&mut self, definition: TypeDefinition) {
        let name = definition.name.node.to_string();
        self.describe(&name, definition.description.as_ref());
        let mut shape = Shape { kind: kind(&definition.kind), ..Shape::default() };
        match definition.kind {
            TypeKind::Scalar => {}
            TypeKind::Object(object) => {
                shape.interfaces = names(&object.implements);
                shape.fields = self.fields(&name, &object.fields);
            }
            TypeKind::Interface(interface) => {
                shape.interfaces = names(&interface.implements);
                shape.fields = self.fields(&name, &interface.fields);
            }
            TypeKind::Union(union) => shape.words = names(&union.members),
            TypeKind::Enum(values) => {
                for value in values.values {
                    let value = value.node;
                    self.describe(&format!("{name}.{}", value.value.node), value.description.as_ref());
                    shape.words.insert(value.value.node.to_string());
                }
            }
            TypeKind::InputObject(input) => {
                self.describe_inputs(&name, &input.fields);
                shape.inputs = inputs(&input.fields);
            }
        }
        self.types.insert(name, shape);
    }

    fn fields(&mut self, owner: &str, fields: &[Positioned<FieldDefinition>]) -> BTreeMap<String, Field> {
        let mut read = BTreeMap::new();
        for field in fields.iter().map(|field| &field.node) {
            let place = format!("{owner}.{}", field.name.node);
            self.describe(&place, field.description.as_ref());
            self.describe_inputs(&place, &field.arguments);
            let arguments = inputs(&field.arguments);
            read.insert(field.name.node.to_string(), Field { ty: field.ty.node.clone(), arguments });
        }
        read
    }

    fn describe(&mut self, place: &str, description: Option<&Positioned<String>>) {
        if description.is_none_or(|text| text.node.trim().is_empty()) {
            self.undescribed.push(place.to_owned());
        }
    }

    fn describe_inputs(&mut self, owner: &str, inputs: &[Positioned<InputValueDefinition>]) {
        for input in inputs {
            self.describe(&format!("{owner}({})", input.node.name.node), input.node.description.as_ref());
        }
    }

    /// Every member of every type, as `Type.member`.
    pub fn members(&self) -> Vec<String> {
        let of = |(name, shape): (&String, &Shape)| {
            let members = shape.fields.keys().chain(shape.inputs.keys()).chain(&shape.words);
            members.map(|member| format!("{name}.{member}")).collect::<Vec<_>>()
        };
        self.types.iter().flat_map(of).collect()
    }

    /// The same without one member.
    pub fn without(mut self, member: &str) -> Self {
        if let Some((owner, member)) = member.split_once('.')
            && let Some(shape) = self.types.get_mut(owner)
        {
            shape.fields.remove(member);
            shape.inputs.remove(member);
            shape.words.remove(member);
        }
        self
    }
}

const fn kind(kind: &TypeKind) -> &'static str {
    match kind {
        TypeKind::Scalar => "scalar",
        TypeKind::Object(_) => "type",
        TypeKind::Interface(_) => "interface",
        TypeKind::Union(_) => "union",
        TypeKind::Enum(_) => "enum",
        TypeKind::InputObject(_) => "input",
    }
}

fn names<T: ToString>(names: &[Positioned<T>]) -> BTreeSet<String> {
    names.iter().map(|name| name.node.to_string()).collect()
}

fn inputs(inputs: &[Positioned<InputValueDefinition>]) -> BTreeMap<String, Input> {
    let read = |input: &Positioned<InputValueDefinition>| {
        let input = &input.node;
        let default = input.default_value.as_ref().map(|value| value.node.to_string());
        (input.name.node.to_string(), Input { ty: input.ty.node.clone(), default })
    };
    inputs.iter().map(read).collect()
}

/// Whether whoever reads values of `old` can read those of `new`: null may go, never come.
fn readable(old: &Type, new: &Type) -> bool {
    (old.nullable || !new.nullable) && same_base(old, new, readable)
}

/// Whether whoever writes values of `old` may go on where `new` is taken: null may come, never go.
fn writable(old: &Type, new: &Type) -> bool {
    (new.nullable || !old.nullable) && same_base(old, new, writable)
}

fn same_base(old: &Type, new: &Type, items: fn(&Type, &Type) -> bool) -> bool {
    match (&old.base, &new.base) {
        (BaseType::Named(old), BaseType::Named(new)) => old == new,
        (BaseType::List(old), BaseType::List(new)) => items(old, new),
        _ => false,
    }
}

/// What a client of `old` can no longer rely on in `new`, one line each.
pub fn breaking(old: &Contract, new: &Contract) -> BTreeSet<String> {
    let mut broken = BTreeSet::new();
    for (root, name) in &old.roots {
        if new.roots.get(root) != Some(name) {
            broken.insert(format!("the root of {root} is no longer {name}"));
        }
    }
    for (name, arguments) in &old.directives {
        match new.directives.get(name) {
            None => _ = broken.insert(format!("@{name} removed")),
            Some(now) => broken.extend(broken_inputs(&format!("@{name}"), arguments, now)),
        }
    }
    for (name, before) in &old.types {
        match new.types.get(name) {
            None => _ = broken.insert(format!("{name} removed")),
            Some(now) if now.kind != before.kind => {
                broken.insert(format!("{name} was of kind {} and is of kind {}", before.kind, now.kind));
            }
            Some(now) => broken.extend(broken_shape(name, before, now)),
        }
    }
    broken
}

fn broken_shape(name: &str, old: &Shape, new: &Shape) -> Vec<String> {
    let mut broken: Vec<String> = Vec::new();
    broken.extend(old.words.difference(&new.words).map(|word| format!("{name}.{word} removed")));
    let lost = old.interfaces.difference(&new.interfaces);
    broken.extend(lost.map(|interface| format!("{name} no longer implements {interface}")));
    for (field, before) in &old.fields {
        let place = format!("{name}.{field}");
        let Some(now) = new.fields.get(field) else {
            broken.push(format!("{place} removed"));
            continue;
        };
        if !readable(&before.ty, &now.ty) {
            broken.push(format!("{place} was {} and is {}", before.ty, now.ty));
        }
        broken.extend(broken_inputs(&place, &before.arguments, &now.arguments));
    }
    broken.extend(broken_inputs(name, &old.inputs, &new.inputs));
    broken
}

/// Of arguments, or of an input object's fields.
fn broken_inputs(owner: &str, old: &BTreeMap<String, Input>, new: &BTreeMap<String, Input>) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, before) in old {
        let place = format!("{owner}({name})");
        match new.get(name) {
            None => broken.push(format!("{place} removed")),
            Some(now) if !writable(&before.ty, &now.ty) => {
                broken.push(format!("{place} was {} and is {}", before.ty, now.ty));
            }
            Some(now) if before.default.is_some() && before.default != now.default => {
                broken.push(format!("{place} has another default"));
            }
            Some(_) => {}
        }
    }
    let required = new.iter().filter(|(name, input)| !old.contains_key(*name) && input.is_required());
    broken.extend(required.map(|(name, _)| format!("{owner}({name}) is new and required")));
    broken
}

/// The name of the type in all its lists.
fn named(ty: &Type) -> &str {
    match &ty.base {
        BaseType::Named(name) => name,
        BaseType::List(items) => named(items),
    }
}

/// For tests that ask for everything.
impl Contract {
    /// The fields of an object type with the names of their types; of anything else none.
    pub fn fields_of(&self, owner: &str) -> Vec<(&str, &str)> {
        let object = self.types.get(owner).filter(|shape| shape.kind == "type");
        let fields = object.into_iter().flat_map(|shape| &shape.fields);
        fields.map(|(name, field)| (name.as_str(), named(&field.ty))).collect()
    }

    /// The object types behind a name: itself, or those that implement it.
    pub fn objects_of(&self, name: &str) -> Vec<&str> {
        let is = |(object, shape): &(&String, &Shape)| {
            shape.kind == "type" && (object.as_str() == name || shape.interfaces.contains(name))
        };
        self.types.iter().filter(is).map(|(object, _)| object.as_str()).collect()
    }

    /// `Type.field` of all object types.
    pub fn fields_of_all(&self) -> BTreeSet<String> {
        let of = |object: &String| {
            let fields = self.fields_of(object).into_iter();
            fields.map(|(field, _)| format!("{object}.{field}")).collect::<Vec<_>>()
        };
        self.types.keys().flat_map(of).collect()
    }

    /// A selection of everything below an object type, each type once on every way down; empty for what has no fields.
    pub fn everything_of(&self, name: &str, above: &[&str]) -> String {
        let objects = self.objects_of(name);
        let below: Vec<&str> = above.iter().copied().chain([name]).collect();
        let selection = |object: &str| {
            let fields = self.fields_of(object).into_iter();
            let fields = fields.filter(|(_, ty)| !below.contains(ty) && !above.contains(&object));
            let select = |(field, ty): (&str, &str)| format!("{field} {}", self.everything_of(ty, &below));
            fields.map(select).collect::<Vec<_>>().join(" ")
        };
        match objects.as_slice() {
            [] => String::new(),
            [object] if *object == name => format!("{{ __typename {} }}", selection(object)),
            several => {
                let part = |object: &&str| format!("... on {object} {{ {} }}", selection(object));
                format!("{{ __typename {} }}", several.iter().map(part).collect::<Vec<_>>().join(" "))
            }
        }
    }
}
