//! Shapes as bytes: one version byte, the form, the number of types, and the types. There is one
//! encoding of each shape.

use super::model::{Body, Content, Field, Form, Named, Runs, Shape, Variant};

pub(super) const VERSION: u8 = 1;

// Scalars have the numbers below these.
pub(super) const OPAQUE: u8 = 0x40;
pub(super) const OPTION: u8 = 0x41;
pub(super) const SEQ: u8 = 0x42;
pub(super) const MAP: u8 = 0x43;
pub(super) const TUPLE: u8 = 0x44;
pub(super) const NAMED: u8 = 0x45;

pub(super) const STRUCT: u8 = 0;
pub(super) const TUPLE_STRUCT: u8 = 1;
pub(super) const ENUM: u8 = 2;

pub(super) const UNIT: u8 = 0;
pub(super) const ONE: u8 = 1;
pub(super) const SEVERAL: u8 = 2;
pub(super) const FIELDS: u8 = 3;

impl Shape {
    /// The shape for another program, of up to 64 KiB, without which fields are required.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode(true)
    }

    /// The bytes, with or without the names of types.
    pub(super) fn encode(&self, with_names: bool) -> Vec<u8> {
        let mut out = vec![VERSION];
        form(&mut out, &self.root);
        count(&mut out, self.types.len());
        for named in &self.types {
            text(&mut out, if with_names { &named.name } else { "" });
            body(&mut out, &named.body);
        }
        out
    }
}

/// The bytes of a type.
pub(super) fn named(named: &Named) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, &named.name);
    body(&mut out, &named.body);
    out
}

fn body(out: &mut Vec<u8>, body: &Body) {
    match body {
        Body::Struct(all) => {
            out.push(STRUCT);
            fields(out, all);
        }
        Body::Tuple(all) => {
            out.push(TUPLE_STRUCT);
            runs(out, all);
        }
        Body::Enum(all) => {
            out.push(ENUM);
            count(out, all.len());
            all.iter().for_each(|one| variant(out, one));
        }
    }
}

fn count(out: &mut Vec<u8>, count: usize) {
    let mut left = count as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    count(out, text.len());
    out.extend(text.as_bytes());
}

fn form(out: &mut Vec<u8>, of: &Form) {
    match of {
        Form::Scalar(scalar) => out.push(*scalar as u8),
        Form::Opaque(name) => {
            out.push(OPAQUE);
            text(out, name);
        }
        Form::Option(inner) => {
            out.push(OPTION);
            form(out, inner);
        }
        Form::Seq(inner) => {
            out.push(SEQ);
            form(out, inner);
        }
        Form::Map(entry) => {
            out.push(MAP);
            form(out, &entry.0);
            form(out, &entry.1);
        }
        Form::Tuple(all) => {
            out.push(TUPLE);
            runs(out, all);
        }
        Form::Named(number) => {
            out.push(NAMED);
            count(out, *number);
        }
    }
}

fn runs(out: &mut Vec<u8>, runs: &Runs) {
    count(out, runs.len());
    for (number, of) in runs {
        count(out, *number as usize);
        form(out, of);
    }
}

fn fields(out: &mut Vec<u8>, fields: &[Field]) {
    count(out, fields.len());
    for field in fields {
        count(out, field.names.len());
        field.names.iter().for_each(|name| text(out, name));
        form(out, &field.form);
    }
}

fn variant(out: &mut Vec<u8>, variant: &Variant) {
    text(out, &variant.name);
    match &variant.content {
        Content::Unit => out.push(UNIT),
        Content::One(of) => {
            out.push(ONE);
            form(out, of);
        }
        Content::Tuple(all) => {
            out.push(SEVERAL);
            runs(out, all);
        }
        Content::Struct(all) => {
            out.push(FIELDS);
            fields(out, all);
        }
    }
}
