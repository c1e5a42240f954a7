//! The shape of what was recorded.

use super::record::{Body, Content, Field, Kind, ROOT, Record, is_helper};
use crate::shape::model::{self as shape, Form, Named, Runs, Scalar, Shape};
use crate::shape::name::{limited, short};

/// A part that is not known, by the name of its type or of the type that it is a part of.
fn unknown(of: &str) -> Form {
    Form::Opaque(limited(&format!("? of {of}")).into())
}

impl Record {
    pub(super) fn shape(&self) -> Shape {
        let types = self.types.iter().map(|known| {
            let within = &short(known.rust_name);
            let body = match &known.body {
                Body::Struct(group) => shape::Body::Struct(self.of_fields(*group, within)),
                Body::Tuple(all) => shape::Body::Tuple(self.of_places(all, all.len(), within)),
                Body::Enum(variants) => {
                    let variants = variants.iter().map(|variant| shape::Variant {
                        name: variant.name.into(),
                        content: self.of_content(&variant.content, within),
                    });
                    shape::Body::Enum(variants.collect())
                }
            };
            Named { name: known.name.into(), body }
        });
        Shape { types: types.collect(), root: self.of_place(ROOT, "") }.merged()
    }

    /// The form of a place within a value of a type of this name.
    fn of_place(&self, place: usize, within: &str) -> Form {
        let own = match short(self.places[place].name) {
            name if is_helper(&name) => within.to_owned(),
            name => name,
        };
        match &self.places[place].kind {
            Kind::Unknown | Kind::Several => unknown(&own),
            Kind::Scalar(scalar) => Form::Scalar(*scalar),
            Kind::Opaque(name) => Form::Opaque(name.as_str().into()),
            Kind::Option(inner) => Form::Option(Box::new(self.of_place(*inner, &own))),
            Kind::Seq(inner) => match self.of_place(*inner, &own) {
                Form::Scalar(Scalar::U8) => Form::Scalar(Scalar::Bytes),
                inner => Form::Seq(Box::new(inner)),
            },
            Kind::Map(key, value, name) => match self.of_place(*key, &own) {
                // Fields with names that are not listed.
                Form::Opaque(_) => Form::Opaque(name.as_str().into()),
                key => Form::Map(Box::new((key, self.of_place(*value, &own)))),
            },
            Kind::Tuple(places, len) => Form::Tuple(self.of_places(places, *len, &own)),
            Kind::Type(number) => Form::Named(*number),
        }
    }

    /// Elements of a tuple, of which one place may stand for all.
    fn of_places(&self, places: &[usize], len: usize, within: &str) -> Runs {
        if let [one] = places
            && len > 1
        {
            return vec![(u32::try_from(len).unwrap_or(u32::MAX), self.of_place(*one, within))];
        }
        let mut runs = Runs::new();
        for place in places {
            shape::push(&mut runs, 1, self.of_place(*place, within));
        }
        runs
    }

    fn of_fields(&self, group: usize, within: &str) -> Vec<shape::Field> {
        let all = &self.groups[group].fields;
        let of = |i: usize, field: &Field| {
            let aliases = all.iter().filter(|other| other.alias_of == Some(i));
            let names = std::iter::once(field.name).chain(aliases.map(|alias| alias.name));
            shape::Field {
                names: names.map(Into::into).collect(),
                form: self.of_place(field.place, within),
                is_required: field.is_required,
            }
        };
        let named = all.iter().enumerate().filter(|(_, field)| field.alias_of.is_none());
        named.map(|(i, field)| of(i, field)).collect()
    }

    fn of_content(&self, content: &Content, within: &str) -> shape::Content {
        match content {
            Content::Unknown => shape::Content::One(unknown(within)),
            Content::Unit => shape::Content::Unit,
            Content::One(place) => shape::Content::One(self.of_place(*place, within)),
            Content::Tuple(all) => shape::Content::Tuple(self.of_places(all, all.len(), within)),
            Content::Struct(group) => shape::Content::Struct(self.of_fields(*group, within)),
        }
    }
}
