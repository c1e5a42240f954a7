//! Numbers of the types of a shape.

use std::collections::BTreeMap;

use super::model::Shape;
use super::write;

impl Shape {
    /// Makes one of types with one name and one structure, and numbers them in order. Types are divided
    /// into classes, and classes again, until all types of a class refer to the same classes.
    pub(super) fn merged(mut self) -> Self {
        let mut classes = vec![0; self.types.len()];
        let mut number = 0;
        loop {
            let mut known = BTreeMap::new();
            let divided = self.types.iter().zip(&classes).map(|(named, class)| {
                let mut named = named.clone();
                named.body.renumber(&mut |number| classes[number]);
                let len = known.len();
                *known.entry((*class, write::named(&named))).or_insert(len)
            });
            let divided = divided.collect();
            classes = divided;
            if known.len() == number {
                break;
            }
            number = known.len();
        }
        let first =
            |old: usize| classes.iter().position(|class| *class == classes[old]).unwrap_or(old);
        for number in (0..self.types.len()).filter(|number| first(*number) != *number) {
            self.require_less(first(number), number);
        }
        self.root.renumber(&mut |number| first(number));
        self.types.iter_mut().for_each(|named| named.body.renumber(&mut |number| first(number)));
        self.ordered()
    }

    /// Numbers the types in the order in which they are referred to, without those that are not.
    pub(super) fn ordered(mut self) -> Self {
        let mut order = Order { numbers: vec![None; self.types.len()], types: Vec::new() };
        self.root.renumber(&mut |number| order.number(number));
        let mut types: Vec<_> = self.types.into_iter().map(Some).collect();
        let mut ordered = Vec::new();
        while let Some(number) = order.types.get(ordered.len()) {
            let Some(mut named) = types[*number].take() else { break };
            named.body.renumber(&mut |number| order.number(number));
            ordered.push(named);
        }
        Shape { root: self.root, types: ordered }
    }
}

/// New numbers of types.
struct Order {
    numbers: Vec<Option<usize>>,
    /// The old numbers, in the new order.
    types: Vec<usize>,
}

impl Order {
    fn number(&mut self, old: usize) -> usize {
        *self.numbers[old].get_or_insert_with(|| {
            self.types.push(old);
            self.types.len() - 1
        })
    }
}
