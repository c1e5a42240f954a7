//! Fields of messages of Protocol Buffers: the rule by which a reader's fits a writer's.
//!
//! Fields are found by number, and either side may have more. It is stricter than "compatible" of Protocol
//! Buffers, by which some values are read as others: a number keeps its type, or gets one with all values of
//! the old one in the same encoding.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{Compared, Comparison, MAX_STEPS, is_wider};
use crate::shape::model::{Field, Form, Scalar};

impl<'s> Comparison<'s> {
    pub(super) fn message_fields(&mut self, a: &'s [Field], b: &'s [Field]) -> Compared {
        let sent: BTreeMap<&str, &Field> = b.iter().map(|field| (number(field), field)).collect();
        // The writer's oneof of the first field of each of the reader's.
        let mut oneofs: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        for field in a {
            let Some(other) = sent.get(number(field)) else { continue };
            let segment = format!(".{}", field.name());
            self.within(&segment, |this| this.message_form(&field.form, &other.form))?;
            let (Some(own), theirs) = (oneof(field), oneof(other)) else { continue };
            match oneofs.entry(own) {
                Entry::Vacant(entry) => _ = entry.insert(theirs),
                // All but the last one would be lost.
                Entry::Occupied(first) if theirs.is_none() || *first.get() != theirs => {
                    let one = format!("one of the fields of `{own}`");
                    return self.differ(one, "fields that are set together".to_owned());
                }
                Entry::Occupied(_) => {}
            }
        }
        Ok(())
    }

    fn message_form(&mut self, a: &'s Form, b: &'s Form) -> Compared {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return self.differ("a shape".to_owned(), "one that is too large".to_owned());
        }
        match (a, b) {
            (Form::Scalar(to), Form::Scalar(from)) if to == from || fits(*to, *from) => Ok(()),
            (Form::Seq(a), Form::Seq(b)) => self.within("[]", |this| this.message_form(a, b)),
            (Form::Map(a), Form::Map(b)) => {
                self.within("[key]", |this| this.message_form(&a.0, &b.0))?;
                self.within("[]", |this| this.message_form(&a.1, &b.1))
            }
            (Form::Named(_), Form::Named(_)) => self.form(a, b),
            // Groups.
            (Form::Tuple(own), Form::Tuple(theirs)) => match (&own[..], &theirs[..]) {
                ([(1, a @ Form::Named(_))], [(1, b @ Form::Named(_))]) => self.form(a, b),
                _ => self.forms_differ(a, b),
            },
            _ => self.forms_differ(a, b),
        }
    }
}

/// The number of a field, which follows its name: `text = 2`.
fn number(field: &Field) -> &str {
    field.name().rsplit(" = ").next().unwrap_or_default()
}

/// The oneof that a field is in.
fn oneof(field: &Field) -> Option<&str> {
    field.names.get(1).map(|name| &**name)
}

/// Returns whether a field of one type is read as the same value from another one, or as an error.
fn fits(to: Scalar, from: Scalar) -> bool {
    use Scalar::{Bytes, Enum, I32, I64, Sint32, Sint64, Text};
    match (to, from) {
        // Values of enums are `int32`, also those that the reader has no name for.
        (I32 | I64, Enum) | (Enum, I32) => true,
        (Sint64, Sint32) | (Text, Bytes) | (Bytes, Text) => true,
        _ => to.integer().is_some() && is_wider(to, from),
    }
}
