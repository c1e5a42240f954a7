//! Rules by which a reader's shape fits a writer's.

#[cfg(feature = "prost")]
use std::collections::{BTreeMap, btree_map::Entry};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use super::model::{Body, Content, Field, Form, Runs, Scalar, Shape, Variant};
#[cfg(feature = "prost")]
use super::scalars::fits;
use super::scalars::is_wider;
use super::text;

/// Parts that are compared. Each pair of types is compared once, so only shapes that were made for it
/// have more.
const MAX_STEPS: u32 = 1 << 18;
/// Characters of a path, and of the text of each side.
const MAX_PATH: usize = 200;
const MAX_TEXT: usize = 120;

/// The text of a field without a default, which the writer does not have.
const REQUIRED: &str = "a required field (it is not with `#[serde(default)]`, or as an `Option`)";

/// Why a reader's type does not fit a writer's: the first place where they differ.
///
/// ```
/// use courser::service::Shape;
///
/// #[derive(serde::Deserialize)]
/// struct Old {
///     count: i32,
/// }
///
/// #[derive(serde::Deserialize)]
/// struct New {
///     count: u32,
/// }
///
/// let difference = Shape::of::<New>().reads(&Shape::of::<Old>()).unwrap_err();
/// assert_eq!((difference.reader(), difference.writer()), ("u32", "i32"));
/// assert!(difference.path().ends_with("count"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    path: String,
    reader: String,
    writer: String,
}

impl Difference {
    /// The place: the type's name, and fields, elements and variants from there, as `Row.kind::B`.
    /// Empty for the value itself.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The reader's shape at this place.
    pub fn reader(&self) -> &str {
        &self.reader
    }

    /// The writer's shape at this place.
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// The difference, with names of both sides: `Row.b: the server has i32, the client u32`.
    pub fn between(&self, reader: &str, writer: &str) -> String {
        let Difference { path, reader: reads, writer: writes } = self;
        let colon = if path.is_empty() { "" } else { ": " };
        format!("{path}{colon}the {reader} has {reads}, the {writer} {writes}")
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.between("reader", "writer"))
    }
}

impl Shape {
    /// Returns whether a value of the shape `writer` is read as the same value by a codec without
    /// names, such as Postcard. Fields and variants have the same names and order, and all integers the
    /// same type. The names of types have no meaning, nor has a newtype. A field of two names (an alias)
    /// is the same as a field of one of them. Opaque types, and parts that are not known, are the same as
    /// others of their name.
    ///
    /// # Errors
    /// The first difference.
    pub fn same(&self, writer: &Shape) -> Result<(), Difference> {
        Comparison::new(Rule::Same, self, writer).run()
    }

    /// Returns whether values of the shape `writer` are read by a codec with names, such as `Named`: as
    /// the same value, or as an error of decoding if the reader lacks a variant, or a required field is
    /// missing of which this is not known.
    ///
    /// - Fields are found by the name that the writer has, which is a name or an alias of the reader's, in
    ///   any order. Either side may have more, and one is common if both have fields. The writer has all
    ///   fields that the reader requires: see [`Shape::of`].
    /// - Variants are found by name, in any order. Either side may have more, and one is common.
    /// - An integer may become one that has all its values: `u32` to `u64` or `i64`; `f32` to `f64`.
    /// - `T` may become `Option<T>`, unless `T` is `()`, or itself an option.
    /// - All else is the same, as for [`Shape::same`].
    ///
    /// # Errors
    /// The first difference.
    pub fn reads(&self, writer: &Shape) -> Result<(), Difference> {
        Comparison::new(Rule::Names, self, writer).run()
    }

    /// Returns whether values of the shape `writer` are read by the codec `Prost`. An absent part has its
    /// default, so a tuple may be longer or shorter, and nothing is an empty message. The names of
    /// messages have no meaning. Fields that are known are compared by their numbers.
    #[cfg(feature = "prost")]
    pub(crate) fn reads_messages(&self, writer: &Shape) -> Result<(), Difference> {
        Comparison::new(Rule::Messages, self, writer).run()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Same,
    Names,
    #[cfg_attr(not(feature = "prost"), allow(dead_code))]
    Messages,
}

struct Comparison<'s> {
    rule: Rule,
    reader: &'s Shape,
    writer: &'s Shape,
    /// The place that is compared.
    path: String,
    /// Pairs of types that are to be compared, with their paths. A list in place of recursion: types
    /// refer to each other in chains of any length.
    queue: VecDeque<(usize, usize, String)>,
    seen: BTreeSet<(usize, usize)>,
    steps: u32,
}

type Compared = Result<(), Difference>;

impl<'s> Comparison<'s> {
    fn new(rule: Rule, reader: &'s Shape, writer: &'s Shape) -> Self {
        let (queue, seen) = (VecDeque::new(), BTreeSet::new());
        Comparison { rule, reader, writer, path: String::new(), queue, seen, steps: 0 }
    }

    fn run(mut self) -> Compared {
        self.form(&self.reader.root, &self.writer.root)?;
        while let Some((a, b, path)) = self.queue.pop_front() {
            self.path = path;
            let (a, b) = (&self.reader.types[a], &self.writer.types[b]);
            if self.path.is_empty() {
                self.path.extend(text::printable(&a.name).chars().take(MAX_PATH));
            }
            self.body(&a.body, &b.body)?;
        }
        Ok(())
    }

    fn differ(&self, reader: String, writer: String) -> Compared {
        Err(Difference { path: self.path.clone(), reader, writer })
    }

    fn forms_differ(&self, a: &Form, b: &Form) -> Compared {
        let mut texts = (text::of(self.reader, a, MAX_TEXT), text::of(self.writer, b, MAX_TEXT));
        if texts.0 == texts.1 {
            // They differ in something that has no text, or behind its end.
            texts.0.push_str(" of another form");
        }
        self.differ(texts.0, texts.1)
    }

    /// Compares a part of the value.
    fn within(&mut self, segment: &str, compare: impl FnOnce(&mut Self) -> Compared) -> Compared {
        let len = self.path.len();
        if len < MAX_PATH {
            self.path.extend(text::printable(segment).chars().take(MAX_PATH - len));
        }
        compare(self)?;
        self.path.truncate(len);
        Ok(())
    }

    /// Returns whether a rule for messages allows the two, neither of which has parts to compare.
    fn are_messages(&self, a: &Form, b: &Form) -> bool {
        use Form::{Opaque, Scalar as Of};
        self.rule == Rule::Messages
            && match (a, b) {
                (Of(Scalar::Never), _) | (_, Of(Scalar::Never)) => false,
                // Nothing is read, or a message whose fields have their defaults. A number or a text that
                // was not sent would be read as 0.
                (Of(Scalar::Unit), _) => true,
                (Of(_), Of(Scalar::Unit)) => false,
                (_, Of(Scalar::Unit)) => true,
                // The fields of one of them are not known.
                (Opaque(_), Opaque(_) | Form::Named(_)) | (Form::Named(_), Opaque(_)) => true,
                (Of(to), Of(from)) => to.integer().is_some() && is_wider(*to, *from),
                _ => false,
            }
    }

    fn form(&mut self, a: &'s Form, b: &'s Form) -> Compared {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return self
                .differ("a shape".to_owned(), "one that is too large to compare".to_owned());
        }
        match (a, b) {
            (Form::Scalar(a), Form::Scalar(b)) if a == b => Ok(()),
            (Form::Scalar(to), Form::Scalar(from))
                if self.rule == Rule::Names && is_wider(*to, *from) =>
            {
                Ok(())
            }
            (Form::Opaque(a), Form::Opaque(b)) if a == b => Ok(()),
            (a, b) if self.are_messages(a, b) => Ok(()),
            (Form::Option(a), Form::Option(b)) => self.form(a, b),
            (Form::Option(a), b) if self.rule == Rule::Names && !may_be_nothing(b) => {
                self.form(a, b)
            }
            (Form::Seq(a), Form::Seq(b)) => self.within("[]", |this| this.form(a, b)),
            (Form::Map(a), Form::Map(b)) => {
                self.within("[key]", |this| this.form(&a.0, &b.0))?;
                self.within("[]", |this| this.form(&a.1, &b.1))
            }
            (Form::Named(a), Form::Named(b)) => {
                if self.seen.insert((*a, *b)) {
                    self.queue.push_back((*a, *b, self.path.clone()));
                }
                Ok(())
            }
            _ => match (self.reader.elements(a), self.writer.elements(b)) {
                (Some(a), Some(b)) => self.runs(a, b),
                _ => self.forms_differ(a, b),
            },
        }
    }

    fn body(&mut self, a: &'s Body, b: &'s Body) -> Compared {
        match (a, b) {
            (Body::Struct(a), Body::Struct(b)) => self.fields(a, b),
            (Body::Tuple(a), Body::Tuple(b)) => self.runs(a, b),
            (Body::Enum(a), Body::Enum(b)) => self.variants(a, b),
            _ => self.differ(kind(a).to_owned(), kind(b).to_owned()),
        }
    }

    /// Compares elements of tuples, run by run.
    fn runs(&mut self, a: &'s Runs, b: &'s Runs) -> Compared {
        let len = |runs: &Runs| runs.iter().map(|(count, _)| u64::from(*count)).sum::<u64>();
        if len(a) != len(b) && self.rule != Rule::Messages {
            return self.differ(number(len(a), "element"), number(len(b), "element"));
        }
        let (mut a, mut b) = (a.iter(), b.iter());
        let (mut one, mut other) = (a.next(), b.next());
        // Elements of both runs that were compared, and the place of the next one.
        let (mut done_a, mut done_b, mut at) = (0, 0, 0_u64);
        while let (Some((len_a, form_a)), Some((len_b, form_b))) = (one, other) {
            self.within(&format!(".{at}"), |this| this.form(form_a, form_b))?;
            let both = (len_a - done_a).min(len_b - done_b);
            (done_a, done_b, at) = (done_a + both, done_b + both, at + u64::from(both));
            if done_a == *len_a {
                (one, done_a) = (a.next(), 0);
            }
            if done_b == *len_b {
                (other, done_b) = (b.next(), 0);
            }
        }
        Ok(())
    }

    fn fields(&mut self, a: &'s [Field], b: &'s [Field]) -> Compared {
        #[cfg(feature = "prost")]
        if self.rule == Rule::Messages {
            return self.message_fields(a, b);
        }
        if self.rule == Rule::Names {
            // A writer sends a field by its name. Its aliases are names that it would read.
            let (mut is_common, mut missing) = (a.is_empty() || b.is_empty(), None);
            for field in a {
                let sent = |other: &&Field| field.names.iter().any(|name| **name == *other.name());
                let Some(other) = b.iter().find(sent) else {
                    missing = missing.or(field.is_required.then_some(field));
                    continue;
                };
                is_common = true;
                self.field(field, other)?;
            }
            let all = |of: &[Field]| names(of.iter().map(Field::name));
            return match missing {
                _ if !is_common => self.differ(all(a), all(b)),
                Some(field) => self.is_missing(field),
                None => Ok(()),
            };
        }
        if a.len() != b.len() || !a.iter().zip(b).all(|(a, b)| a.is(b)) {
            return self.differ(names(a.iter().map(Field::name)), names(b.iter().map(Field::name)));
        }
        a.iter().zip(b).try_for_each(|(a, b)| self.field(a, b))
    }

    /// A field that the reader requires, and the writer does not have.
    #[cold]
    fn is_missing(&mut self, field: &Field) -> Compared {
        self.within(&format!(".{}", field.name()), |this| {
            this.differ(REQUIRED.into(), "none".into())
        })
    }

    fn field(&mut self, a: &'s Field, b: &'s Field) -> Compared {
        self.within(&format!(".{}", a.name()), |this| this.form(&a.form, &b.form))
    }

    fn variants(&mut self, a: &'s [Variant], b: &'s [Variant]) -> Compared {
        let all = |of: &[Variant]| names(of.iter().map(|variant| &*variant.name));
        if self.rule == Rule::Names {
            let mut is_common = false;
            for variant in a {
                let Some(other) = b.iter().find(|b| b.name == variant.name) else { continue };
                is_common = true;
                self.variant(variant, other)?;
            }
            let fits = is_common || a.is_empty() && b.is_empty();
            return if fits { Ok(()) } else { self.differ(all(a), all(b)) };
        }
        if a.len() != b.len() || !a.iter().zip(b).all(|(a, b)| a.name == b.name) {
            return self.differ(all(a), all(b));
        }
        a.iter().zip(b).try_for_each(|(a, b)| self.variant(a, b))
    }

    fn variant(&mut self, a: &'s Variant, b: &'s Variant) -> Compared {
        self.within(&format!("::{}", a.name), |this| match (&a.content, &b.content) {
            (Content::Unit, Content::Unit) => Ok(()),
            (Content::One(a), Content::One(b)) => this.form(a, b),
            (Content::Tuple(a), Content::Tuple(b)) => this.runs(a, b),
            (Content::Struct(a), Content::Struct(b)) => this.fields(a, b),
            (a, b) => this.differ(content(a).to_owned(), content(b).to_owned()),
        })
    }
}

/// Fields of messages of Protocol Buffers are found by number, and either side may have more. The rule is stricter
/// than "compatible" there, by which some values are read as others: a number keeps its type, or gets one with all
/// values of the old one in the same encoding.
#[cfg(feature = "prost")]
impl<'s> Comparison<'s> {
    fn message_fields(&mut self, a: &'s [Field], b: &'s [Field]) -> Compared {
        let sent: BTreeMap<&str, &Field> = b.iter().map(|field| (tag(field), field)).collect();
        // The writer's oneof of the first field of each of the reader's.
        let mut oneofs: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        for field in a {
            let Some(other) = sent.get(tag(field)) else { continue };
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
#[cfg(feature = "prost")]
fn tag(field: &Field) -> &str {
    field.name().rsplit(" = ").next().unwrap_or_default()
}

/// The oneof that a field is in.
#[cfg(feature = "prost")]
fn oneof(field: &Field) -> Option<&str> {
    field.names.get(1).map(|name| &**name)
}

impl Field {
    fn name(&self) -> &str {
        self.names.first().map_or("", |name| name)
    }

    /// Returns whether the fields have a name in common.
    fn is(&self, other: &Field) -> bool {
        self.names.iter().any(|name| other.names.contains(name))
    }
}

impl Shape {
    /// The elements of a tuple, or of a tuple with a name.
    fn elements<'s>(&'s self, form: &'s Form) -> Option<&'s Runs> {
        match form {
            Form::Tuple(runs) => Some(runs),
            Form::Named(number) => match &self.types.get(*number)?.body {
                Body::Tuple(runs) => Some(runs),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns whether a value may be encoded as nothing, which an option reads as `None`.
fn may_be_nothing(form: &Form) -> bool {
    matches!(form, Form::Scalar(Scalar::Unit) | Form::Option(_) | Form::Opaque(_))
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Struct(_) => "a struct",
        Body::Tuple(_) => "a tuple",
        Body::Enum(_) => "an enum",
    }
}

fn content(content: &Content) -> &'static str {
    match content {
        Content::Unit => "nothing",
        Content::One(_) => "one value",
        Content::Tuple(_) => "a tuple",
        Content::Struct(_) => "fields",
    }
}

fn number(count: u64, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// The names of fields or variants: `{ a, b }`.
fn names<'s>(names: impl Iterator<Item = &'s str>) -> String {
    let mut list = String::from("{");
    for (i, name) in names.enumerate() {
        if list.len() > MAX_TEXT {
            list.push_str(", …");
            break;
        }
        list.push_str(if i == 0 { " " } else { ", " });
        list.extend(text::printable(name).chars().take(MAX_TEXT));
    }
    list.push_str(" }");
    list
}
