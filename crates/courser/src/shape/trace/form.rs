//! The shape of what was recorded.

use super::record::{Body, Content, Field, Kind, ROOT, Record};
use crate::shape::model::{self as shape, Form, Named, Runs, Scalar, Shape};

/// The name of parts that are not known.
const UNKNOWN: &str = "?";

impl Record {
    pub(super) fn shape(&self) -> Shape {
        let types = self.types.iter().map(|known| Named {
            name: known.name.into(),
            body: match &known.body {
                Body::Struct(group) => shape::Body::Struct(self.of_fields(*group)),
                Body::Tuple(places) => shape::Body::Tuple(self.of_places(places, places.len())),
                Body::Enum(variants) => {
                    let variants = variants.iter().map(|variant| shape::Variant {
                        name: variant.name.into(),
                        content: self.of_content(&variant.content),
                    });
                    shape::Body::Enum(variants.collect())
                }
            },
        });
        Shape { types: types.collect(), root: self.of_place(ROOT) }.merged()
    }

    fn of_place(&self, place: usize) -> Form {
        match &self.places[place].kind {
            Kind::Unknown | Kind::Several => Form::Opaque(UNKNOWN.into()),
            Kind::Scalar(scalar) => Form::Scalar(*scalar),
            Kind::Opaque(name) => Form::Opaque(name.as_str().into()),
            Kind::Option(inner) => Form::Option(Box::new(self.of_place(*inner))),
            Kind::Seq(inner) => match self.of_place(*inner) {
                Form::Scalar(Scalar::U8) => Form::Scalar(Scalar::Bytes),
                inner => Form::Seq(Box::new(inner)),
            },
            Kind::Map(key, value, name) => match self.of_place(*key) {
                // Fields with names that are not listed.
                Form::Opaque(_) => Form::Opaque(name.as_str().into()),
                key => Form::Map(Box::new((key, self.of_place(*value)))),
            },
            Kind::Tuple(places, len) => Form::Tuple(self.of_places(places, *len)),
            Kind::Type(number) => Form::Named(*number),
        }
    }

    /// Elements of a tuple, of which one place may stand for all.
    fn of_places(&self, places: &[usize], len: usize) -> Runs {
        if let [one] = places
            && len > 1
        {
            return vec![(u32::try_from(len).unwrap_or(u32::MAX), self.of_place(*one))];
        }
        let mut runs = Runs::new();
        places.iter().for_each(|place| shape::push(&mut runs, 1, self.of_place(*place)));
        runs
    }

    fn of_fields(&self, group: usize) -> Vec<shape::Field> {
        let all = &self.groups[group].fields;
        let of = |i: usize, field: &Field| {
            let aliases = all.iter().filter(|other| other.alias_of == Some(i));
            let names = std::iter::once(field.name).chain(aliases.map(|alias| alias.name));
            shape::Field {
                names: names.map(Into::into).collect(),
                form: self.of_place(field.place),
            }
        };
        let named = all.iter().enumerate().filter(|(_, field)| field.alias_of.is_none());
        named.map(|(i, field)| of(i, field)).collect()
    }

    fn of_content(&self, content: &Content) -> shape::Content {
        match content {
            Content::Unknown => shape::Content::One(Form::Opaque(UNKNOWN.into())),
            Content::Unit => shape::Content::Unit,
            Content::One(place) => shape::Content::One(self.of_place(*place)),
            Content::Tuple(places) => shape::Content::Tuple(self.of_places(places, places.len())),
            Content::Struct(group) => shape::Content::Struct(self.of_fields(*group)),
        }
    }
}
