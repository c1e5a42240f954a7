//! The record of a type, and the choices of a run.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::de::{self, Visitor};

use crate::shape::model::Scalar;
use crate::shape::name::{limited, short};

/// The place of parts that are not recorded: those of types that read another form each time.
pub(super) const VOID: usize = 0;
/// The place of the value itself.
pub(super) const ROOT: usize = 1;

/// Values that a place is tried with.
pub(super) const SAMPLES: u8 = 20;
/// Times that a variant is refused without a change of the record.
const ATTEMPTS: u8 = 12;
/// Steps of a run before which options are entered only to vary the value.
const VARIED_STEPS: u32 = 10_000;
const MAX_PLACES: usize = 8192;
/// Places within each other.
const MAX_LEVELS: usize = 64;
/// Places that are read in a run, and in all.
const RUN_STEPS: u32 = 200_000;
const ALL_STEPS: u32 = 1_000_000;
/// The distance of what is not to be reached.
const FAR: u32 = u32::MAX;

/// The end of a run.
#[derive(Debug, Default)]
pub(super) struct Stop {
    /// The field that was read twice.
    pub(super) duplicate: Option<&'static str>,
    /// The field that was not read.
    pub(super) missing: Option<&'static str>,
}

impl Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value is refused")
    }
}

impl std::error::Error for Stop {}

impl de::Error for Stop {
    fn custom<T: Display>(_: T) -> Self {
        Stop::default()
    }

    fn duplicate_field(field: &'static str) -> Self {
        Stop { duplicate: Some(field), missing: None }
    }

    fn missing_field(field: &'static str) -> Self {
        Stop { duplicate: None, missing: Some(field) }
    }
}

/// A part of the value.
pub(super) struct Place {
    pub(super) kind: Kind,
    /// Values that were refused.
    pub(super) failures: u8,
    /// No value was accepted.
    pub(super) is_refused: bool,
    has_panicked: bool,
    /// Times that it was read since then.
    pub(super) reads: u32,
    /// The name of its type.
    pub(super) name: &'static str,
    /// The last run that entered it.
    entered: u32,
    distance: u32,
}

/// The form of a place.
pub(super) enum Kind {
    Unknown,
    /// Another form each time.
    Several,
    Scalar(Scalar),
    Opaque(String),
    Option(usize),
    Seq(usize),
    /// Places of key and value, and the name of the type.
    Map(usize, usize, String),
    /// Places of elements, the last of which is that of all others.
    Tuple(Vec<usize>, usize),
    Type(usize),
}

/// A type with a name.
pub(super) struct Type {
    pub(super) name: &'static str,
    /// Its name in Rust, with its path and parameters.
    pub(super) rust_name: &'static str,
    pub(super) body: Body,
    /// Values of it that are being read.
    open: u32,
    entered: u32,
    distance: u32,
}

pub(super) enum Body {
    /// A group of fields.
    Struct(usize),
    Tuple(Vec<usize>),
    Enum(Vec<Variant>),
}

/// The fields of a struct or a variant.
pub(super) struct Group {
    pub(super) fields: Vec<Field>,
    /// The type reads no names.
    pub(super) by_position: bool,
    /// The field whose name was read last.
    pub(super) last: usize,
    /// Names that were read.
    pub(super) asked: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) place: usize,
    /// The field that this name is another one of.
    pub(super) alias_of: Option<usize>,
    /// The type refuses a value without the field.
    pub(super) is_required: bool,
    /// It is known whether the field is required, or cannot be known.
    pub(super) is_probed: bool,
    /// Values without the field that ended for another reason.
    pub(super) attempts: u8,
}

pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) content: Content,
    /// The type knows its number only.
    pub(super) by_number: bool,
    attempts: u8,
    /// Times that it was chosen before it was read to its end.
    tries: u32,
    is_done: bool,
    /// Steps to read it.
    cost: u32,
}

pub(super) enum Content {
    Unknown,
    Unit,
    One(usize),
    Tuple(Vec<usize>),
    Struct(usize),
}

/// The error of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    None,
    /// The place is tried again.
    Again,
    /// The place has refused all values.
    Refused,
}

pub(super) struct Record {
    pub(super) places: Vec<Place>,
    pub(super) types: Vec<Type>,
    pub(super) groups: Vec<Group>,
    keys: BTreeMap<(TypeId, &'static str), usize>,
    /// Places that are being read.
    path: Vec<usize>,
    /// The number of the value that scalars have here.
    pub(super) sample: u32,
    run: u32,
    steps: u32,
    all_steps: u32,
    pub(super) failure: Failure,
    /// Fields are left out, to see which of them are required.
    pub(super) is_probing: bool,
    /// Places that refuse all values.
    refused: u32,
    /// Runs without a change, the last ones.
    idle: u32,
    /// Changes of the record, and those before this run.
    pub(super) changes: u64,
    changes_before: u64,
    /// Some limit was reached.
    is_limited: bool,
    /// Bytes of stack of a run.
    most_stack: usize,
    /// A run has ended as it had no more stack.
    pub(super) is_out_of_stack: bool,
    /// Scalars that were read in this run.
    pub(super) scalars: u32,
}

impl Record {
    pub(super) fn new(most_stack: usize) -> Self {
        let mut record = Record {
            places: Vec::new(),
            types: Vec::new(),
            groups: Vec::new(),
            keys: BTreeMap::new(),
            path: Vec::new(),
            sample: 0,
            run: 0,
            steps: 0,
            all_steps: 0,
            failure: Failure::None,
            is_probing: false,
            refused: 0,
            idle: 0,
            changes: 0,
            changes_before: 0,
            is_limited: false,
            most_stack,
            is_out_of_stack: false,
            scalars: 0,
        };
        record.place();
        record.places[VOID].kind = Kind::Several;
        record.place();
        record
    }

    /// A new place, or [`VOID`] if there are too many.
    pub(super) fn place(&mut self) -> usize {
        if self.places.len() >= MAX_PLACES {
            self.is_limited = true;
            return VOID;
        }
        self.places.push(Place {
            kind: Kind::Unknown,
            failures: 0,
            is_refused: false,
            has_panicked: false,
            reads: 0,
            name: "",
            entered: 0,
            distance: FAR,
        });
        self.places.len() - 1
    }

    pub(super) fn begin(&mut self) {
        self.run += 1;
        self.steps = 0;
        self.sample = 0;
        self.scalars = 0;
        self.path.clear();
        self.failure = Failure::None;
        self.changes_before = self.changes;
        self.types.iter_mut().for_each(|known| known.open = 0);
        self.measure();
    }

    /// Returns whether this was the last run. Of siblings that refuse all values, each run reads another
    /// one.
    pub(super) fn is_finished(&mut self) -> bool {
        self.idle = if self.changes != self.changes_before { 0 } else { self.idle + 1 };
        self.idle > self.refused || self.all_steps >= ALL_STEPS
    }

    /// From now on fields are left out, one in each value.
    pub(super) fn begin_probes(&mut self) {
        self.is_probing = true;
        (self.idle, self.all_steps) = (0, 0);
    }

    /// The next field of a group that is left out.
    pub(super) fn probe_of(&self, group: usize) -> Option<usize> {
        let group = &self.groups[group];
        let is_probed = self.is_probing && !group.by_position;
        group.names().find(|i| is_probed && !group.fields[*i].is_probed)
    }

    /// Returns whether a limit was reached before all parts were read.
    pub(super) fn is_cut(&self) -> bool {
        let is_unknown = |place: &Place| matches!(place.kind, Kind::Unknown);
        let variants = self.types.iter().flat_map(|known| match &known.body {
            Body::Enum(variants) => &variants[..],
            _ => &[],
        });
        let mut contents = variants.map(|variant| &variant.content);
        self.is_limited
            && (self.places.len() >= MAX_PLACES
                || self.places.iter().any(is_unknown)
                || contents.any(|content| matches!(content, Content::Unknown)))
    }

    /// The run has ended by a panic of the type that was being read.
    pub(super) fn panicked(&mut self) {
        let place = self.path.last().copied().unwrap_or(ROOT);
        self.places[place].has_panicked = true;
        self.changes += 1;
    }

    /// Begins a place. An error is noted.
    pub(super) fn open(&mut self, place: usize) -> Result<(), Stop> {
        self.places[place].reads += u32::from(self.places[place].is_refused);
        if self.places[place].has_panicked {
            self.failure = Failure::Refused;
            self.refuse(place);
            return Err(Stop::default());
        }
        if self.enter(place).is_err() {
            self.blame(place);
            return Err(Stop::default());
        }
        self.sample += u32::from(self.places[place].failures);
        Ok(())
    }

    /// Ends a place.
    pub(super) fn close<T>(&mut self, place: usize, result: Result<T, Stop>) -> Result<T, Stop> {
        self.leave();
        match result {
            Ok(_) => self.failure = Failure::None,
            Err(_) => self.blame(place),
        }
        // A failure that was added above is not a part of the sum.
        self.sample = self.path.iter().map(|place| u32::from(self.places[*place].failures)).sum();
        result
    }

    /// Counts a step and a level, which [`Record::leave`] ends.
    pub(super) fn enter(&mut self, place: usize) -> Result<(), Stop> {
        self.steps += 1;
        self.all_steps += 1;
        if self.steps > RUN_STEPS || self.all_steps > ALL_STEPS {
            self.is_limited |= !self.is_probing;
            self.failure = Failure::Again;
            return Err(Stop::default());
        }
        let here = 0_u8;
        let used = std::ptr::from_ref(self).addr().abs_diff(std::ptr::from_ref(&here).addr());
        let is_out_of_stack = used > self.most_stack;
        self.is_out_of_stack |= is_out_of_stack;
        if self.path.len() >= MAX_LEVELS || is_out_of_stack {
            return Err(Stop::default());
        }
        self.path.push(place);
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.path.pop();
    }

    /// Notes the place of an error.
    fn blame(&mut self, place: usize) {
        match self.failure {
            Failure::None => {
                self.failure = Failure::Again;
                if self.places[place].failures < SAMPLES {
                    self.places[place].failures += 1;
                    self.changes += 1;
                } else {
                    self.failure = Failure::Refused;
                    self.refuse(place);
                }
            }
            Failure::Again => {}
            Failure::Refused => self.refuse(place),
        }
    }

    fn refuse(&mut self, place: usize) {
        if !std::mem::replace(&mut self.places[place].is_refused, true) {
            self.refused += 1;
            self.changes += 1;
        }
    }

    /// An error whose cause is known, so that it is no fault of a place.
    pub(super) fn excuse(&mut self) {
        self.failure = Failure::Again;
        self.changes += 1;
    }

    /// Notes the form of a place. Returns whether it is the one that is known.
    pub(super) fn is(&mut self, place: usize, kind: Kind) -> bool {
        use Kind::*;
        let is_same = match (&self.places[place].kind, &kind) {
            (Unknown, _) => {
                self.places[place].kind = kind;
                self.changes += 1;
                return true;
            }
            (Scalar(a), Scalar(b)) => a == b,
            (Opaque(_), Opaque(_)) | (Option(_), Option(_)) | (Seq(_), Seq(_)) => true,
            (Map(..), Map(..)) => true,
            (Tuple(_, a), Tuple(_, b)) => a == b,
            (Type(a), Type(b)) => a == b,
            (Several, _) => return false,
            _ => false,
        };
        if !is_same {
            self.places[place].kind = Several;
            self.changes += 1;
        }
        is_same
    }

    /// Names the place within an option of this name.
    pub(super) fn name_inner(&mut self, inner: usize, option: &'static str) {
        let name =
            option.strip_prefix("core::option::Option<").and_then(|name| name.strip_suffix('>'));
        self.places[inner].name = name.unwrap_or(option);
    }

    /// Notes a type that is known by its name only.
    pub(super) fn opaque<'de, V: Visitor<'de>>(&mut self, place: usize) {
        let name = self.name_of::<V>(place);
        self.is(place, Kind::Opaque(name));
    }

    /// The place within an option, or of the elements of a list.
    pub(super) fn inner(&mut self, place: usize, kind: fn(usize) -> Kind) -> usize {
        if matches!(self.places[place].kind, Kind::Unknown) {
            let inner = self.place();
            self.is(place, kind(inner));
            return inner;
        }
        if !self.is(place, kind(VOID)) {
            return VOID;
        }
        match self.places[place].kind {
            Kind::Option(inner) | Kind::Seq(inner) => inner,
            _ => VOID,
        }
    }

    /// Returns whether an option or a list is entered, in which this place is.
    pub(super) fn enters(&mut self, place: usize, inner: usize) -> bool {
        if inner == VOID {
            return false;
        }
        let of = &self.places[inner];
        let is_new = matches!(of.kind, Kind::Unknown) && !of.is_refused && !of.has_panicked;
        let is_first = self.places[place].entered != self.run;
        let enters = is_first && (is_new || of.distance != FAR);
        if enters {
            self.places[place].entered = self.run;
        }
        enters
    }

    /// Returns whether an option is entered to vary the value. Not within itself.
    pub(super) fn enters_again(&self, inner: usize) -> bool {
        let is_varied = self.sample % 2 == 1 && self.steps < VARIED_STEPS;
        is_varied && inner != VOID && !self.path.contains(&inner)
    }

    /// The type of a visitor, and its place.
    pub(super) fn type_of<'de, V: Visitor<'de>>(
        &mut self,
        place: usize,
        name: &'static str,
        body: impl FnOnce(&mut Self) -> Body,
    ) -> usize {
        let key = (typeid::of::<V>(), name);
        let number = match self.keys.get(&key) {
            Some(number) => *number,
            None => {
                let body = body(self);
                let rust_name = std::any::type_name::<V::Value>();
                self.types.push(Type { name, rust_name, body, open: 0, entered: 0, distance: FAR });
                let number = self.types.len() - 1;
                self.keys.insert(key, number);
                number
            }
        };
        self.is(place, Kind::Type(number));
        number
    }

    pub(super) fn group(&mut self, names: &[&'static str]) -> usize {
        let mut fields = Vec::new();
        for name in names {
            fields.push(Field {
                name,
                place: self.place(),
                alias_of: None,
                is_required: false,
                is_probed: false,
                attempts: 0,
            });
        }
        self.groups.push(Group { fields, by_position: false, last: 0, asked: 0 });
        self.groups.len() - 1
    }

    /// The variant to read.
    pub(super) fn choose(&mut self, number: usize) -> usize {
        let (run, sample) = (self.run, self.sample as usize);
        let distances: Vec<u32> = match &self.types[number].body {
            Body::Enum(variants) => variants.iter().map(|v| self.distance(&v.content)).collect(),
            _ => return 0,
        };
        let known = &mut self.types[number];
        let Body::Enum(variants) = &mut known.body else { return 0 };
        let least = |key: &dyn Fn(usize, &Variant) -> u32, is: &dyn Fn(&Variant) -> bool| {
            let all = variants.iter().enumerate().filter(|(_, variant)| is(variant));
            all.min_by_key(|(i, variant)| key(*i, variant)).map(|(i, _)| i)
        };
        let pending = least(&|_, v| v.tries, &Variant::is_pending);
        let cheapest = least(&|_, v| v.cost, &|v| v.is_done);
        let nearest = least(&|i, _| distances[i], &|v| v.is_done);
        let is_within = known.open > 0;
        let chosen = if is_within { cheapest.or(pending) } else { pending };
        if let Some(chosen) = chosen {
            variants[chosen].tries += u32::from(variants[chosen].is_pending());
            return chosen;
        }
        if !is_within
            && known.entered != run
            && let Some(nearest) = nearest
            && distances[nearest] != FAR
        {
            known.entered = run;
            return nearest;
        }
        // A type around it may refuse some variants.
        let mut done: Vec<usize> = (0..variants.len()).filter(|i| variants[*i].is_done).collect();
        done.sort_by_key(|i| variants[*i].cost);
        done.get(sample % done.len().max(1)).copied().unwrap_or(0)
    }

    /// Reads a value of an enum, and notes whether this variant ends.
    pub(super) fn variant<T>(
        &mut self,
        number: usize,
        variant: usize,
        read: impl FnOnce(&mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let (before, changes) = (self.steps, self.changes);
        self.types[number].open += 1;
        let result = read(self);
        self.types[number].open -= 1;
        let steps = self.steps - before;
        if let Some(variant) = self.types[number].variant(variant)
            && variant.is_pending()
        {
            // An attempt that changes the record is no last one.
            variant.attempts += u8::from(self.changes == changes);
            variant.is_done = result.is_ok();
            variant.cost = steps;
            self.changes += 1;
        }
        result
    }

    /// Measures how far each place is from a variant or a part that was not read.
    fn measure(&mut self) {
        self.places.iter_mut().for_each(|place| place.distance = FAR);
        self.types.iter_mut().for_each(|known| known.distance = FAR);
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for number in 0..self.types.len() {
                let distance = match &self.types[number].body {
                    Body::Struct(group) => self.of_group(*group),
                    Body::Tuple(places) => self.nearest(places),
                    Body::Enum(all) if all.iter().any(Variant::is_pending) => 0,
                    Body::Enum(all) => {
                        all.iter().map(|v| self.distance(&v.content)).min().unwrap_or(FAR)
                    }
                };
                has_changed |= distance < self.types[number].distance;
                self.types[number].distance = distance.min(self.types[number].distance);
            }
            // From the end, as places are behind those that contain them.
            for number in (0..self.places.len()).rev() {
                let nearest = match &self.places[number].kind {
                    Kind::Option(inner) | Kind::Seq(inner) => self.nearest(&[*inner]),
                    Kind::Map(key, value, _) => self.nearest(&[*key, *value]),
                    Kind::Tuple(places, _) => self.nearest(places),
                    Kind::Type(number) => self.types[*number].distance,
                    _ => FAR,
                };
                let distance = nearest.saturating_add(1);
                has_changed |= distance < self.places[number].distance;
                self.places[number].distance = distance.min(self.places[number].distance);
            }
        }
    }

    /// The distance of a place itself. One that was never begun is to be reached.
    fn of_place_alone(&self, place: usize) -> u32 {
        let of = &self.places[place];
        match of.name.is_empty() && matches!(of.kind, Kind::Unknown) {
            true => 0,
            false => of.distance,
        }
    }

    /// The least distance of parts that are read in this order, up to one that refuses all values.
    fn nearest(&self, places: &[usize]) -> u32 {
        let end = places.iter().position(|place| self.places[*place].is_refused);
        let reached = &places[..end.map_or(places.len(), |end| end + 1)];
        reached.iter().map(|place| self.of_place_alone(*place)).min().unwrap_or(FAR)
    }

    fn of_group(&self, group: usize) -> u32 {
        if self.probe_of(group).is_some() {
            return 0;
        }
        let group = &self.groups[group];
        let names = group.fields.iter().filter(|field| field.alias_of.is_none());
        let places: Vec<usize> = names.map(|field| field.place).collect();
        if group.by_position {
            return self.nearest(&places);
        }
        places.iter().map(|place| self.of_place_alone(*place)).min().unwrap_or(FAR)
    }

    fn distance(&self, content: &Content) -> u32 {
        match content {
            Content::Unknown | Content::Unit => FAR,
            Content::One(place) => self.nearest(&[*place]),
            Content::Tuple(places) => self.nearest(places),
            Content::Struct(group) => self.of_group(*group),
        }
    }
}

impl Group {
    /// The fields, without the aliases of others.
    pub(super) fn names(&self) -> impl Iterator<Item = usize> {
        (0..self.fields.len()).filter(|i| self.fields[*i].alias_of.is_none())
    }
}

impl Variant {
    pub(super) fn new(name: &'static str) -> Self {
        Variant {
            name,
            content: Content::Unknown,
            by_number: false,
            attempts: 0,
            tries: 0,
            is_done: false,
            cost: 0,
        }
    }

    fn is_pending(&self) -> bool {
        !self.is_done && self.attempts < ATTEMPTS
    }
}

impl Type {
    pub(super) fn variant(&mut self, number: usize) -> Option<&mut Variant> {
        match &mut self.body {
            Body::Enum(variants) => variants.get_mut(number),
            _ => None,
        }
    }
}

impl Record {
    /// The name of the type at a place, or of the type that a visitor makes and of the type around it if
    /// that is a helper of generated code.
    pub(super) fn name_of<'de, V: Visitor<'de>>(&self, place: usize) -> String {
        let own = short(self.places[place].name);
        if !is_helper(&own) {
            return own;
        }
        let made = short(std::any::type_name::<V::Value>());
        let all = self.path.iter().rev().map(|place| short(self.places[*place].name));
        match all.into_iter().find(|name| !is_helper(name)) {
            Some(outer) => limited(&format!("{made} of {outer}")),
            None => made,
        }
    }
}

/// Returns whether this is no name, or that of a type in generated code.
pub(super) fn is_helper(name: &str) -> bool {
    name.is_empty() || name.starts_with("__") || name.contains("<impl ")
}
