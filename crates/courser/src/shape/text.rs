//! A shape as an engineer writes it, in one line.

use std::fmt::{self, Display, Write};

use super::model::{Body, Content, Field, Form, Runs, Shape, Variant};

/// Characters of the text of a shape.
const MAX: usize = 400;
/// Elements of a tuple that are written one by one.
const SINGLE: u32 = 4;

/// A writer that ends at some length.
struct Line {
    text: String,
    left: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

/// A name without characters that change how the line is shown.
pub(super) fn printable(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars().take(MAX) {
        match c {
            '\'' | '"' => text.push(c),
            c => text.extend(c.escape_debug()),
        }
    }
    text
}

struct Printer<'s> {
    shape: &'s Shape,
    /// Types that were written with their fields. Later they are written by their names.
    known: Vec<bool>,
    line: Line,
}

/// The text of a part of a shape.
pub(super) fn of(shape: &Shape, form: &Form, most: usize) -> String {
    printed(shape, most, |printer| printer.form(form))
}

fn printed(
    shape: &Shape,
    most: usize,
    write: impl FnOnce(&mut Printer<'_>) -> fmt::Result,
) -> String {
    let line = Line { text: String::new(), left: most };
    let mut printer = Printer { shape, known: vec![false; shape.types.len()], line };
    let ended = write(&mut printer);
    let mut text = printer.line.text;
    if ended.is_err() {
        text.push('…');
    }
    text
}

/// The text of the parameters of a method: `from: u64, to: u64`. Without names: `u64, u64`.
pub(super) fn parameters(arguments: &Shape, names: &[Box<str>]) -> String {
    let forms = match &arguments.root {
        Form::Tuple(runs) => &runs[..],
        _ => &[],
    };
    let count: u64 = forms.iter().map(|(count, _)| u64::from(*count)).sum();
    if count == 0 || count != names.len() as u64 {
        let all = arguments.to_string();
        let inner = all.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        return inner.map_or(all.clone(), str::to_owned);
    }
    let forms = forms.iter().flat_map(|(count, form)| vec![form; *count as usize]);
    let named: Vec<_> = names.iter().zip(forms).collect();
    printed(arguments, MAX, |printer| {
        printer.list(&named, |printer, (name, form)| {
            printer.name(name)?;
            printer.line.write_str(": ")?;
            printer.form(form)
        })
    })
}

impl Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&of(self, &self.root, MAX))
    }
}

impl Printer<'_> {
    /// Writes a name, which may come from the network.
    fn name(&mut self, name: &str) -> fmt::Result {
        self.line.write_str(&printable(name))
    }

    fn form(&mut self, form: &Form) -> fmt::Result {
        match form {
            Form::Scalar(scalar) => self.line.write_str(scalar.name()),
            Form::Opaque(name) => self.name(name),
            Form::Option(inner) => self.generic("Option<", &[inner]),
            Form::Seq(inner) => self.generic("Vec<", &[inner]),
            Form::Map(entry) => self.generic("Map<", &[&entry.0, &entry.1]),
            Form::Tuple(runs) => match &runs[..] {
                [(count, form)] if *count > SINGLE => {
                    self.line.write_char('[')?;
                    self.form(form)?;
                    write!(self.line, "; {count}]")
                }
                _ => self.runs(runs),
            },
            Form::Named(number) => self.named(*number),
        }
    }

    fn generic(&mut self, open: &str, parts: &[&Form]) -> fmt::Result {
        self.line.write_str(open)?;
        self.list(parts, |printer, part| printer.form(part))?;
        self.line.write_char('>')
    }

    fn list<T>(
        &mut self,
        items: &[T],
        write: impl Fn(&mut Self, &T) -> fmt::Result,
    ) -> fmt::Result {
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.line.write_str(", ")?;
            }
            write(self, item)?;
        }
        Ok(())
    }

    fn runs(&mut self, runs: &Runs) -> fmt::Result {
        self.line.write_char('(')?;
        self.list(runs, |printer, (count, form)| match *count {
            count if count > SINGLE => {
                printer.line.write_str("..")?;
                printer.form(&Form::Tuple(vec![(count, form.clone())]))
            }
            count => {
                let each = vec![form; count as usize];
                printer.list(&each, |printer, form| printer.form(form))
            }
        })?;
        self.line.write_char(')')
    }

    fn named(&mut self, number: usize) -> fmt::Result {
        let shape = self.shape;
        let Some(named) = shape.types.get(number) else { return Err(fmt::Error) };
        if std::mem::replace(&mut self.known[number], true) {
            return self.name(&named.name);
        }
        match &named.body {
            Body::Struct(fields) => {
                self.name(&named.name)?;
                self.fields(fields)
            }
            Body::Tuple(runs) => {
                self.name(&named.name)?;
                self.runs(runs)
            }
            Body::Enum(variants) => {
                self.line.write_str("enum ")?;
                self.name(&named.name)?;
                self.line.write_str(" { ")?;
                self.list(variants, Self::variant)?;
                self.line.write_str(" }")
            }
        }
    }

    fn variant(&mut self, variant: &Variant) -> fmt::Result {
        self.name(&variant.name)?;
        match &variant.content {
            Content::Unit => Ok(()),
            Content::One(form) => {
                self.line.write_char('(')?;
                self.form(form)?;
                self.line.write_char(')')
            }
            Content::Tuple(runs) => self.runs(runs),
            Content::Struct(fields) => self.fields(fields),
        }
    }

    fn fields(&mut self, fields: &[Field]) -> fmt::Result {
        if fields.is_empty() {
            return self.line.write_str(" {}");
        }
        self.line.write_str(" { ")?;
        self.list(fields, |printer, field| {
            if let Some(name) = field.names.first() {
                printer.name(name)?;
            }
            printer.line.write_str(": ")?;
            printer.form(&field.form)
        })?;
        self.line.write_str(" }")
    }
}
