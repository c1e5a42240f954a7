//! The messages of the methods of a service, as a constant from which the library makes their shapes.

use std::collections::BTreeMap;
use std::fmt::Write;

use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use protox::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
};

/// The messages of all files, by their full names with a `.` before them.
#[derive(Default)]
pub(crate) struct Messages(BTreeMap<String, DescriptorProto>);

impl Messages {
    pub(crate) fn new(set: &FileDescriptorSet) -> Self {
        let mut all = Messages::default();
        for file in &set.file {
            let package = match file.package() {
                "" => String::new(),
                package => format!(".{package}"),
            };
            file.message_type.iter().for_each(|message| all.add(&package, message));
        }
        all
    }

    fn add(&mut self, outer: &str, message: &DescriptorProto) {
        let name = format!("{outer}.{}", message.name());
        message.nested_type.iter().for_each(|nested| self.add(&name, nested));
        self.0.insert(name, message.clone());
    }
}

/// The messages that a service uses, in the order in which they are found.
struct Used<'a> {
    all: &'a Messages,
    krate: &'a str,
    names: Vec<String>,
}

/// A method: its name on the network, and the messages that it takes and returns, by their full names.
pub(crate) type Types<'a> = (String, &'a str, &'a str);

/// Writes the constant `name`.
pub(crate) fn write(
    all: &Messages,
    (krate, name): (&str, &str),
    methods: &[Types<'_>],
    out: &mut String,
) {
    let mut used = Used { all, krate, names: Vec::new() };
    let mut table = String::new();
    for (method, takes, returns) in methods {
        let (takes, returns) = (used.root(takes), used.root(returns));
        let _ = writeln!(table, "        ({method:?}, {takes}, {returns}),");
    }
    let mut types = String::new();
    let mut next = 0;
    // Fields add the types that they have.
    while let Some(message) = used.names.get(next).cloned() {
        let fields = used.fields(&message);
        let name = message.trim_start_matches('.');
        let _ = writeln!(types, "        ({name:?}, &[{fields}]),");
        next += 1;
    }
    let _ = write!(
        out,
        "#[allow(dead_code, non_upper_case_globals)]\n\
         const {name}: {krate}::service::Messages = {krate}::service::Messages {{\n    \
         types: &[\n{types}    ],\n    methods: &[\n{table}    ],\n}};\n"
    );
}

impl Used<'_> {
    fn wire(&self, variant: &str) -> String {
        format!("{}::service::Wire::{variant}", self.krate)
    }

    /// The number of a message.
    fn number(&mut self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    fn message(&mut self, variant: &str, name: &str) -> String {
        let number = self.number(name);
        self.wire(&format!("{variant}({number})"))
    }

    /// The message that a method takes or returns. prost has types of Rust for some.
    fn root(&mut self, name: &str) -> String {
        let of_rust = match name.strip_prefix(".google.protobuf.").unwrap_or_default() {
            "Empty" => "Empty",
            "BoolValue" => "Bool",
            "Int32Value" => "Int32",
            "Int64Value" => "Int64",
            "UInt32Value" => "Uint32",
            "UInt64Value" => "Uint64",
            "FloatValue" => "Float",
            "DoubleValue" => "Double",
            "StringValue" => "String",
            "BytesValue" => "Bytes",
            _ => return self.message("Message", name),
        };
        self.wire(of_rust)
    }

    fn fields(&mut self, message: &str) -> String {
        let all = self.all;
        let Some(message) = all.0.get(message) else { return String::new() };
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let mut text = String::new();
        for field in fields {
            let (name, number, wire) = (field.name(), field.number(), self.field(field));
            let oneof = match oneof(message, field) {
                Some(name) => format!("::core::option::Option::Some({name:?})"),
                None => "::core::option::Option::None".to_owned(),
            };
            let _ = write!(text, "({name:?}, {number}, {oneof}, {wire}), ");
        }
        text
    }

    fn field(&mut self, field: &FieldDescriptorProto) -> String {
        let is_list = field.label() == Label::Repeated;
        let one = match field.r#type() {
            Type::Double => self.wire("Double"),
            Type::Float => self.wire("Float"),
            Type::Int64 => self.wire("Int64"),
            Type::Uint64 => self.wire("Uint64"),
            Type::Int32 => self.wire("Int32"),
            Type::Fixed64 => self.wire("Fixed64"),
            Type::Fixed32 => self.wire("Fixed32"),
            Type::Bool => self.wire("Bool"),
            Type::String => self.wire("String"),
            Type::Bytes => self.wire("Bytes"),
            Type::Uint32 => self.wire("Uint32"),
            Type::Enum => self.wire("Enum"),
            Type::Sfixed32 => self.wire("Sfixed32"),
            Type::Sfixed64 => self.wire("Sfixed64"),
            Type::Sint32 => self.wire("Sint32"),
            Type::Sint64 => self.wire("Sint64"),
            Type::Group => self.message("Group", field.type_name()),
            Type::Message => match self.entry(field) {
                Some(map) => return map,
                None => self.message("Message", field.type_name()),
            },
        };
        if is_list { self.wire(&format!("List(&{one})")) } else { one }
    }

    /// The type of a map.
    fn entry(&mut self, field: &FieldDescriptorProto) -> Option<String> {
        let all = self.all;
        let entry = all.0.get(field.type_name())?;
        if !entry.options.as_ref().is_some_and(|options| options.map_entry()) {
            return None;
        }
        let [key, value] = &entry.field[..] else { return None };
        let (key, value) = (self.field(key), self.field(value));
        Some(self.wire(&format!("Map(&{key}, &{value})")))
    }
}

/// The oneof that a field is in. An `optional` field of proto3 is alone in one, which has no meaning.
fn oneof<'m>(message: &'m DescriptorProto, field: &FieldDescriptorProto) -> Option<&'m str> {
    if field.proto3_optional() {
        return None;
    }
    let number = usize::try_from(field.oneof_index?).ok()?;
    Some(message.oneof_decl.get(number)?.name())
}
