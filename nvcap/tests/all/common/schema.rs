//! The JSON schemas of docs/, and what output is held against: a validator of JSON Schema 2020-12 (the crate
//! `jsonschema`). Such a validator passes over keywords that it does not know; here one of those is a failure, so that a
//! misspelt keyword does not leave something unchecked.

use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

pub struct Schema {
    root: Value,
    validator: Validator,
}

/// The keywords that the schemas of docs/ use.
const KEYWORDS: [&str; 13] = [
    "$schema",
    "$ref",
    "title",
    "description",
    "type",
    "const",
    "enum",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "pattern",
    "required",
];

impl Schema {
    pub fn of_output() -> Self {
        Self::of("output")
    }

    /// That of docs/NAME.schema.json.
    pub fn of(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/{name}.schema.json"));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let root: Value = serde_json::from_str(&text).unwrap();
        jsonschema::meta::validate(&root).unwrap_or_else(|e| panic!("{name}: {e}"));
        known_keywords(&root);
        let validator = jsonschema::draft202012::new(&root).unwrap();
        Self { root, validator }
    }

    /// The part of a schema that has one definition alone.
    fn part(&self, name: &str) -> Validator {
        let root = json!({"$ref": format!("#/$defs/{name}"), "$defs": self.root["$defs"].clone()});
        jsonschema::draft202012::new(&root).unwrap()
    }

    /// Checks one object of output.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.validator.validate(value).map_err(|e| e.to_string())
    }

    /// Like [`Schema::check`] but against the one definition, for a message that says what is wrong.
    pub fn explain(&self, value: &Value) -> String {
        let name = match value["type"].as_str() {
            Some("operation") => value["op"].as_str().unwrap_or("?"),
            Some(t) => t,
            None => "?",
        };
        if self.root["$defs"].get(name).is_none() {
            return format!("no definition {name}");
        }
        let wrong: Vec<String> = self
            .part(name)
            .iter_errors(value)
            .map(|e| format!("{}: {e}", e.instance_path()))
            .collect();
        match wrong.as_slice() {
            [] => format!("fits {name} but more than one definition"),
            all => format!("{name}: {}", all.join("; ")),
        }
    }
}

/// Every keyword of a schema is one that is meant.
fn known_keywords(schema: &Value) {
    let Some(object) = schema.as_object() else {
        assert!(schema.is_boolean(), "{schema} is no schema");
        return;
    };
    for (keyword, value) in object {
        match keyword.as_str() {
            "$defs" | "properties" => value.as_object().unwrap().values().for_each(known_keywords),
            "allOf" | "oneOf" => value.as_array().unwrap().iter().for_each(known_keywords),
            "items" | "additionalProperties" | "unevaluatedProperties" => known_keywords(value),
            keyword => assert!(KEYWORDS.contains(&keyword), "keyword {keyword}"),
        }
    }
}
