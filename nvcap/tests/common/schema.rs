//! A validator for the part of JSON Schema 2020-12 that docs/output.schema.json uses. A keyword it does not know is
//! a failure, so that nothing in the schema goes unchecked.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

pub struct Schema {
    root: Value,
}

type Outcome = Result<HashSet<String>, String>;

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
        Self {
            root: serde_json::from_str(&text).unwrap(),
        }
    }

    /// Checks one line of output.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.validate(&self.root, value).map(|_| ())
    }

    /// Like [`Schema::check`] but against the one definition, for a message that says what is wrong.
    pub fn explain(&self, value: &Value) -> String {
        let name = match value["type"].as_str() {
            Some("operation") => value["op"].as_str().unwrap_or("?"),
            Some(t) => t,
            None => "?",
        };
        match self.validate(&self.root["$defs"][name], value) {
            Ok(_) => format!("fits {name} but more than one definition"),
            Err(e) => format!("{name}: {e}"),
        }
    }

    /// The property names that were looked at, or what is wrong.
    fn validate(&self, schema: &Value, value: &Value) -> Outcome {
        let mut seen = HashSet::new();
        let object = schema.as_object().ok_or("a schema is an object")?;
        for (keyword, wanted) in object {
            match keyword.as_str() {
                "$schema"
                | "title"
                | "description"
                | "$defs"
                | "unevaluatedProperties"
                | "additionalProperties" => {}
                "$ref" => {
                    let name = wanted.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    let schema = &self.root["$defs"][name];
                    assert!(schema.is_object(), "no definition {name}");
                    seen.extend(self.validate(schema, value)?);
                }
                "type" => {
                    let types: Vec<&str> = match wanted {
                        Value::String(t) => vec![t],
                        list => list
                            .as_array()
                            .unwrap()
                            .iter()
                            .filter_map(Value::as_str)
                            .collect(),
                    };
                    let fits = types.iter().any(|t| match *t {
                        "null" => value.is_null(),
                        "boolean" => value.is_boolean(),
                        "integer" => value.is_u64() || value.is_i64(),
                        "number" => value.is_number(),
                        "string" => value.is_string(),
                        "array" => value.is_array(),
                        "object" => value.is_object(),
                        t => panic!("type {t}"),
                    });
                    if !fits {
                        return Err(format!("{value} is not {types:?}"));
                    }
                }
                "const" if value != wanted => return Err(format!("{value} is not {wanted}")),
                "enum" if !wanted.as_array().unwrap().contains(value) => {
                    return Err(format!("{value} is not among {wanted}"));
                }
                "const" | "enum" => {}
                "minimum" => {
                    if value.as_i64().is_some_and(|n| n < wanted.as_i64().unwrap()) {
                        return Err(format!("{value} is below {wanted}"));
                    }
                }
                "maximum" => {
                    if value.as_u64().is_some_and(|n| n > wanted.as_u64().unwrap()) {
                        return Err(format!("{value} is above {wanted}"));
                    }
                }
                "minItems" | "maxItems" => {
                    let (n, limit) = (
                        value.as_array().map(Vec::len),
                        wanted.as_u64().unwrap() as usize,
                    );
                    let wrong = n.is_some_and(|n| {
                        if keyword == "minItems" {
                            n < limit
                        } else {
                            n > limit
                        }
                    });
                    if wrong {
                        return Err(format!("{value} has not {keyword} {limit}"));
                    }
                }
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.validate(wanted, item)?;
                    }
                }
                "required" => {
                    for name in wanted.as_array().unwrap() {
                        let name = name.as_str().unwrap();
                        if value.is_object() && value.get(name).is_none() {
                            return Err(format!("{name} is missing"));
                        }
                    }
                }
                "properties" => {
                    for (name, schema) in wanted.as_object().unwrap() {
                        if let Some(value) = value.get(name) {
                            self.validate(schema, value)
                                .map_err(|e| format!("{name}: {e}"))?;
                            seen.insert(name.clone());
                        }
                    }
                }
                "allOf" => {
                    for schema in wanted.as_array().unwrap() {
                        seen.extend(self.validate(schema, value)?);
                    }
                }
                "oneOf" => {
                    let outcomes: Vec<Outcome> = wanted
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|s| self.validate(s, value))
                        .collect();
                    let fits = outcomes.iter().filter(|o| o.is_ok()).count();
                    if fits != 1 {
                        return Err(format!("fits {fits} of the {} forms", outcomes.len()));
                    }
                    seen.extend(outcomes.into_iter().flatten().flatten());
                }
                keyword => panic!("the schema uses {keyword}, which this validator does not know"),
            }
        }
        if let Some(members) = value.as_object() {
            for (name, member) in members {
                if seen.contains(name) {
                    continue;
                }
                if let Some(schema) = object.get("additionalProperties") {
                    self.validate(schema, member)?;
                } else if object.get("unevaluatedProperties") == Some(&Value::Bool(false)) {
                    return Err(format!("{name} is not in the schema"));
                }
            }
        }
        Ok(seen)
    }
}
