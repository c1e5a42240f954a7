//! Statistics as JSON, without a library for it: objects of numbers and short texts.

use std::fmt::Write;

use courser_buf::stats::{Sample, Stats};

/// A JSON object that is being written.
#[derive(Debug)]
pub(super) struct Object(String);

/// Writes a text with its quotes.
fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
}

impl Object {
    pub(super) fn new() -> Self {
        Object("{".to_owned())
    }

    fn key(&mut self, key: &str) -> &mut String {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        quoted(key, &mut self.0);
        self.0.push(':');
        &mut self.0
    }

    pub(super) fn text(mut self, key: &str, text: &str) -> Self {
        quoted(text, self.key(key));
        self
    }

    pub(super) fn number(mut self, key: &str, number: Option<u64>) -> Self {
        let out = self.key(key);
        match number {
            Some(number) => _ = write!(out, "{number}"),
            None => out.push_str("null"),
        }
        self
    }

    pub(super) fn object(mut self, key: &str, object: Object) -> Self {
        let object = object.end();
        self.key(key).push_str(&object);
        self
    }

    pub(super) fn list(mut self, key: &str, objects: impl Iterator<Item = Object>) -> Self {
        let objects: Vec<_> = objects.map(Object::end).collect();
        let out = self.key(key);
        let _ = write!(out, "[{}]", objects.join(","));
        self
    }

    /// The numbers of declared statistics, by name. An array is an object of the elements that are not 0.
    pub(super) fn stats(mut self, stats: &impl Stats) -> Self {
        let mut elements: Option<(&str, Object)> = None;
        stats.visit(&mut |Sample { field, label, value }| {
            if elements.as_ref().is_some_and(|(name, _)| label.is_none() || *name != field.name)
                && let Some((name, object)) = elements.take()
            {
                self.add_object(name, object);
            }
            match label {
                None => self.add_number(field.name, value),
                Some(label) => {
                    let (_, object) = elements.get_or_insert((field.name, Object::new()));
                    if value != Some(0) {
                        object.add_number(label.name, value);
                    }
                }
            }
        });
        if let Some((name, object)) = elements {
            self.add_object(name, object);
        }
        self
    }

    fn add_number(&mut self, key: &str, number: Option<u64>) {
        let this = std::mem::replace(self, Object(String::new()));
        *self = this.number(key, number);
    }

    fn add_object(&mut self, key: &str, object: Object) {
        let this = std::mem::replace(self, Object(String::new()));
        *self = this.object(key, object);
    }

    pub(super) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use courser_proto::EndpointStats;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_number_is_in_the_object_and_a_parser_reads_it() {
        let mut stats = EndpointStats { calls: 7, ..EndpointStats::default() };
        stats.drops[1] = 3;
        let inner = Object::new().text("a \"text\"\n", "\\ \u{1}");
        let list = [Object::new().number("n", None)].into_iter();
        let text = Object::new().stats(&stats).object("inner", inner).list("list", list).end();
        let value: Value = serde_json::from_str(&text).expect("JSON");
        for field in EndpointStats::GROUP.fields {
            assert!(value.get(field.name).is_some(), "{}", field.name);
        }
        assert_eq!((&value["calls"], &value["drops"]), (&json!(7), &json!({ "version": 3 })));
        assert_eq!(value["inner"], json!({ "a \"text\"\n": "\\ \u{1}" }));
        assert_eq!(value["list"], json!([{ "n": null }]));
    }
}
