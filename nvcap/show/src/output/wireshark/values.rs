//! The members of an operation's JSON object, one by one: `grid.x`, `src_memory.handle`.

use serde_json::Value as Json;

use crate::output::json::operation_members;
use nvcap_decode::decode::event::{Context, Operation};
use nvcap_recording::recording::decoded::Value;

/// An operation's values that are known, named as in JSON.
pub(super) fn of(c: &Context, entry: u32, op: &Operation) -> Vec<Value> {
    let mut values = Vec::new();
    for (name, value) in operation_members(c, entry, op) {
        // The operation's name has a field of its own.
        if name != "op" {
            flat(&name, &value, &mut values);
        }
    }
    values
}

fn flat(name: &str, value: &Json, to: &mut Vec<Value>) {
    let mut push = |number: Option<u64>, text: Option<String>| {
        to.push(Value {
            name: name.to_owned(),
            number,
            text,
        });
    };
    match value {
        Json::Null => {}
        Json::Bool(set) => push(Some(u64::from(*set)), None),
        Json::Number(n) => match n.as_u64() {
            Some(n) => push(Some(n), None),
            None => push(None, Some(n.to_string())),
        },
        Json::String(text) => push(None, Some(text.clone())),
        Json::Object(members) => {
            for (member, value) in members {
                flat(&format!("{name}.{member}"), value, to);
            }
        }
        Json::Array(all) if all.iter().any(Json::is_object) => {
            for value in all {
                flat(name, value, to);
            }
        }
        Json::Array(all) => {
            let is_size = matches!(name, "grid" | "block" | "cluster");
            let text: Vec<String> = all.iter().map(plain).collect();
            let sign = if is_size { "x" } else { "," };
            if !text.is_empty() {
                push(None, Some(text.join(sign)));
            }
            for (axis, value) in ["x", "y", "z"].iter().zip(all).filter(|_| is_size) {
                flat(&format!("{name}.{axis}"), value, to);
            }
        }
    }
}

fn plain(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}
