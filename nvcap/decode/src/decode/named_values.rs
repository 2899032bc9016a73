//! Lists of named values: the enumeration of a field, or the constants of a class.

use crate::tables::{Run, Table, Text, row};

row!(Value = "values" { name: Text, value: u32 });

/// A list of named values: the enumeration of a field, or the constants of a class.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    values: &'static Table<Value>,
    run: Run<Value>,
}

impl Names {
    pub(super) fn new(values: &'static Table<Value>, run: Run<Value>) -> Self {
        Self { values, run }
    }

    /// Returns every name and its value, in the order of the header.
    pub fn iter(self) -> impl Iterator<Item = (&'static str, u32)> {
        self.values.run(self.run).map(|v| (v.name(), v.value()))
    }

    /// Returns the first name of `value`.
    pub fn name_of(self, value: u32) -> Option<&'static str> {
        self.iter().find(|(_, v)| *v == value).map(|(name, _)| name)
    }

    /// Returns the value of `name`.
    pub fn value_of(self, name: &str) -> Option<u32> {
        self.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value)
    }

    /// Tells whether there are no names.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the number of names.
    pub fn len(self) -> usize {
        self.run.len()
    }
}
