//! Parameters: the macro [`parameters!`] makes the settings of an experiment from one declaration of
//! each, which is also its option on the command line, its range and its key in JSON.

pub(crate) mod field;
pub(crate) mod measure;

use std::ops::RangeInclusive;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::{Map, Value, json};

pub(crate) use self::field::{Field, Named, named};
use self::measure::Measure;
pub(crate) use self::measure::Notation;
use super::error::ScenarioError;

/// Settings that are made by [`parameters!`].
pub(crate) trait Declared: Clone + Default + 'static {
    /// The parameters, in the order of the command line.
    fn parameters() -> Vec<Parameter<Self>>;
}

/// The declaration of a parameter beside its field.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    measure: Measure,
    range: RangeInclusive<u64>,
    option: Option<&'static str>,
    /// The default of an option that takes several values, each for a run of its own.
    each: Option<&'static str>,
    reported: bool,
}

const ANY: RangeInclusive<u64> = 0..=u64::MAX;

impl Spec {
    const fn of(measure: Measure, range: RangeInclusive<u64>) -> Spec {
        Spec { measure, range, option: None, each: None, reported: false }
    }

    /// The option of the command line. Without one the parameter has its default there.
    pub(crate) fn option(self, name: &'static str) -> Spec {
        Spec { option: Some(name), ..self }
    }

    /// The option takes several values, by default these, and each is a run of its own, whose result
    /// has the value.
    pub(crate) fn each(self, default: &'static str) -> Spec {
        Spec { each: Some(default), reported: true, ..self }
    }

    /// The range of its numbers.
    pub(crate) fn within(self, range: RangeInclusive<u64>) -> Spec {
        Spec { range, ..self }
    }

    /// Every result has the value.
    pub(crate) fn reported(self) -> Spec {
        Spec { reported: true, ..self }
    }
}

/// A number.
pub(crate) fn count(range: RangeInclusive<u64>) -> Spec {
    Spec::of(Measure::Count, range)
}

/// A time, ns.
pub(crate) fn time(range: RangeInclusive<u64>) -> Spec {
    Spec::of(Measure::Time, range)
}

/// A size, bytes.
pub(crate) fn bytes(range: RangeInclusive<u64>) -> Spec {
    Spec::of(Measure::Bytes, range)
}

/// A rate, bit/s; the option is in Gbit/s.
pub(crate) fn rate(range: RangeInclusive<u64>) -> Spec {
    Spec::of(Measure::Rate, range)
}

/// A share, parts per million.
pub(crate) fn chance(range: RangeInclusive<u64>) -> Spec {
    Spec::of(Measure::Chance, range)
}

/// A value with a notation of its own.
pub(crate) fn written(notation: &'static Notation) -> Spec {
    Spec::of(Measure::Own(notation), ANY)
}

/// A switch that is off by default.
pub(crate) fn flag() -> Spec {
    Spec::of(Measure::Flag, 0..=1)
}

/// One of some names.
pub(crate) fn name<T: Named>() -> Spec {
    Spec::of(Measure::Name(T::NAMES), ANY)
}

/// A parameter of settings `S`.
pub(crate) struct Parameter<S> {
    /// The field, which is its key in JSON.
    pub(crate) field: &'static str,
    help: &'static str,
    spec: Spec,
    is_list: bool,
    get: Get<S>,
    set: Set<S>,
}

type Get<S> = Box<dyn Fn(&S) -> Vec<u64>>;
type Set<S> = Box<dyn Fn(&mut S, &[u64])>;

/// The second half of a field's declaration: a [`Spec`], or [`Nested`].
pub(crate) trait Declares<T> {
    fn parameters<S: 'static>(
        self,
        field: &'static str,
        help: &'static str,
        get: fn(&S) -> &T,
        get_mut: fn(&mut S) -> &mut T,
    ) -> Vec<Parameter<S>>;
}

/// A field whose parameters are parameters of the whole.
pub(crate) struct Nested;

impl<T: Field + 'static> Declares<T> for Spec {
    fn parameters<S: 'static>(
        self,
        field: &'static str,
        help: &'static str,
        get: fn(&S) -> &T,
        get_mut: fn(&mut S) -> &mut T,
    ) -> Vec<Parameter<S>> {
        vec![Parameter {
            field,
            help,
            spec: self,
            is_list: T::IS_LIST,
            get: Box::new(move |all| get(all).read()),
            set: Box::new(move |all, values| get_mut(all).write(values)),
        }]
    }
}

impl<T: Declared> Declares<T> for Nested {
    fn parameters<S: 'static>(
        self,
        _: &'static str,
        _: &'static str,
        get: fn(&S) -> &T,
        get_mut: fn(&mut S) -> &mut T,
    ) -> Vec<Parameter<S>> {
        let within =
            |Parameter { field, help, spec, is_list, get: inner, set }: Parameter<T>| Parameter {
                field,
                help,
                spec,
                is_list,
                get: Box::new(move |all: &S| inner(get(all))),
                set: Box::new(move |all: &mut S, values: &[u64]| set(get_mut(all), values)),
            };
        T::parameters().into_iter().map(within).collect()
    }
}

/// Makes settings: a struct, its defaults, and its parameters. A field is its documentation, which is the
/// help of its option, and
///
/// ```text
/// NAME: TYPE = DEFAULT, SPEC;
/// ```
///
/// where `SPEC` is a [`Spec`] or [`Nested`]. A field without one is no parameter.
macro_rules! parameters {
    (
        $(#[$meta:meta])*
        $visible:vis struct $struct:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty = $default:expr $(, $spec:expr)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Debug)]
        $visible struct $struct { $( $(#[doc = $doc])* $visible $field: $type, )* }

        impl Default for $struct {
            fn default() -> Self {
                $struct { $( $field: $default, )* }
            }
        }

        impl $crate::declare::parameter::Declared for $struct {
            fn parameters() -> Vec<$crate::declare::parameter::Parameter<Self>> {
                let mut all = Vec::new();
                $(
                    let help = concat!($($doc),*).trim_ascii();
                    $( all.extend($crate::declare::parameter::Declares::parameters(
                        $spec,
                        stringify!($field),
                        help,
                        |all: &$struct| &all.$field,
                        |all: &mut $struct| &mut all.$field,
                    )); )?
                    let _ = help;
                )*
                all
            }
        }

        impl serde::Serialize for $struct {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::declare::parameter::object(self).serialize(to)
            }
        }
    };
}
pub(crate) use parameters;

/// All parameters as a JSON object.
pub(crate) fn object<S: Declared>(settings: &S) -> Map<String, Value> {
    S::parameters().iter().map(|p| (p.field.to_owned(), p.json(settings))).collect()
}

/// The parameters whose values every result has, as JSON.
pub(crate) fn reported<S: Declared>(settings: &S) -> Map<String, Value> {
    let mut all = Map::new();
    for p in S::parameters().iter().filter(|p| p.spec.reported) {
        all.insert(p.field.to_owned(), p.json(settings));
        if p.field == "control" {
            all.insert("default".to_owned(), json!(p.json(settings) == "default"));
        }
    }
    all
}

/// An error for the first parameter that is out of its range. A list is not empty unless its default is.
///
/// # Errors
/// There is one.
pub(crate) fn check<S: Declared>(settings: &S) -> Result<(), ScenarioError> {
    for p in S::parameters() {
        let values = (p.get)(settings);
        if p.is_list && values.is_empty() && !(p.get)(&S::default()).is_empty() {
            let range = "one or more".into();
            return Err(ScenarioError::Setting { name: p.field, value: "none".to_owned(), range });
        }
        if let Some(&value) = values.iter().find(|&value| !p.spec.range.contains(value)) {
            let (value, range) = (p.spec.measure.show(value), p.range().into());
            return Err(ScenarioError::Setting { name: p.field, value, range });
        }
    }
    Ok(())
}

/// Sets a parameter by the name of its field.
pub(crate) fn set<S: Declared>(settings: &mut S, field: &str, value: u64) {
    if let Some(p) = S::parameters().iter().find(|p| p.field == field) {
        (p.set)(settings, &[value]);
    }
}

/// The parameters whose options are on the command line: the field and its values.
pub(crate) fn given<S: Declared>(
    settings: &S,
    arguments: &ArgMatches,
) -> Vec<(&'static str, Vec<u64>)> {
    let is_given = |p: &Parameter<S>| {
        let source = p.spec.option.and_then(|option| arguments.value_source(option));
        source == Some(ValueSource::CommandLine)
    };
    let all = S::parameters().into_iter().filter(is_given);
    all.map(|p| (p.field, (p.get)(settings))).collect()
}

/// Settings of each run that the command line asks for: every combination of the values of options
/// that take several. The last option varies fastest.
pub(crate) fn of_arguments<S: Declared>(arguments: &ArgMatches) -> Vec<S> {
    let mut all = vec![S::default()];
    for p in S::parameters() {
        let Some(option) = p.spec.option else { continue };
        let values: Vec<u64> = match p.spec.measure {
            Measure::Flag => vec![u64::from(arguments.get_flag(option))],
            _ => arguments.get_many(option).map_or_else(Vec::new, |v| v.copied().collect()),
        };
        if p.spec.each.is_none() {
            all.iter_mut().for_each(|settings| (p.set)(settings, &values));
            continue;
        }
        let with = |settings: &S| {
            let of = |&value: &u64| {
                let mut settings = settings.clone();
                (p.set)(&mut settings, &[value]);
                settings
            };
            values.iter().map(of).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// Characters of a default that help shows in one line.
const HELP_WIDTH: usize = 50;

impl<S: Declared> Parameter<S> {
    /// Its option on the command line.
    pub(crate) fn argument(&self) -> Option<Arg> {
        let option = self.spec.option?;
        let arg = Arg::new(option).long(option).help(self.help);
        if let Measure::Flag = self.spec.measure {
            return Some(arg.action(ArgAction::SetTrue));
        }
        let several = self.spec.each.is_some() || self.is_list;
        let name = self.spec.measure.value_name();
        let default = match self.spec.each {
            Some(default) => default.to_owned(),
            None => self.text(&S::default()),
        };
        let arg = arg.value_parser(self.spec.measure.parser());
        let arg = match default.split(',').collect::<Vec<_>>()[..] {
            [""] => arg,
            // A long list is one word, which help cannot wrap.
            [first, .., last] if default.len() > HELP_WIDTH => {
                let help = format!("{}. Default {first} to {last}", self.help);
                arg.help(help).hide_default_value(true).default_value(default)
            }
            _ => arg.default_value(default),
        };
        Some(match several {
            true => {
                let arg = arg.value_delimiter(',').action(ArgAction::Append);
                arg.value_name(format!("{name},.."))
            }
            false => arg.value_name(name),
        })
    }

    /// The value as it is written on the command line.
    fn text(&self, settings: &S) -> String {
        let values = (self.get)(settings);
        values.iter().map(|&value| self.spec.measure.show(value)).collect::<Vec<_>>().join(",")
    }

    fn json(&self, settings: &S) -> Value {
        let values: Vec<Value> =
            (self.get)(settings).into_iter().map(|value| self.spec.measure.json(value)).collect();
        match values.first() {
            _ if self.is_list => Value::Array(values),
            Some(value) => value.clone(),
            None => Value::Null,
        }
    }

    fn range(&self) -> String {
        let (low, high) = (*self.spec.range.start(), *self.spec.range.end());
        let show = |value| self.spec.measure.show(value);
        match (low, high) {
            (0, high) => format!("at most {}", show(high)),
            (low, u64::MAX) => format!("at least {}", show(low)),
            _ => format!("{} to {}", show(low), show(high)),
        }
    }
}

#[cfg(test)]
mod tests;
