//! A listing of code: each instruction with its control bits, and what a disassembler says of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::output::kernel_name::{demangled, parameters};
use nvcap_decode::cubin::{Cubin, Function, control::Control};
use nvcap_decode::record::Kernel;

/// A disassembler's answer for a place in the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Labels before the instruction.
    pub(crate) labels: Vec<String>,
    /// The instruction.
    pub(crate) text: String,
}

/// Code that is listed.
pub struct Listing<'a> {
    /// The function, and its image; none for code that was seen at an address.
    pub function: Option<(&'a Cubin, &'a Function)>,
    /// Kernel that named the function, where the function's address was asked for.
    pub named: Option<&'a Kernel>,
    /// Address of the code on the GPU, where that is what is known.
    pub address: Option<u64>,
    /// The architecture, where it is known.
    pub sm: Option<u32>,
    /// Bytes of the code.
    pub code: &'a [u8],
    /// The disassembler's answers by offset; empty without one.
    pub said: BTreeMap<u64, Said>,
}

/// An instruction.
struct Instruction<'a> {
    offset: u64,
    bytes: &'a [u8],
    control: Option<Control>,
    said: Option<&'a Said>,
}

impl Listing<'_> {
    fn instructions(&self) -> impl Iterator<Item = Instruction<'_>> {
        // Every architecture since sm_70 has instructions of 16 bytes; all that drivers since 2025 know are such.
        let sm = self.sm.unwrap_or(70);
        let len = if sm >= 70 { 16 } else { 8 };
        let pieces = self.code.chunks(len).zip((0..).step_by(len));
        pieces.map(move |(bytes, offset)| Instruction {
            offset,
            bytes,
            control: Control::of(sm, bytes),
            said: self.said.get(&offset),
        })
    }

    /// Returns the listing as text.
    pub fn text(&self) -> String {
        self.text_with("", &|_| String::new())
    }

    /// Returns the listing as text, with something in front of each instruction, by its offset; `head` is the line above the first.
    pub fn text_with(&self, head: &str, margin: &dyn Fn(u64) -> String) -> String {
        let mut out = String::new();
        if let Some((image, function)) = self.function {
            let full = demangled(&function.name);
            let _ = writeln!(out, "{full}");
            if full != function.name {
                let _ = writeln!(out, "  {}", function.name);
            }
            let _ = write!(out, "  {}, {} bytes", image.target(), self.code.len());
            if let Some(registers) = function.registers {
                let _ = write!(out, ", {registers} registers");
            }
            let at = function.code.start;
            let _ = write!(out, ", at {at:#x} of the image at {:#x}", image.at);
            if let Some(address) = self.address {
                let _ = write!(out, ", program {address:#x}");
            }
            out.push('\n');
            let types = parameters(&function.name).filter(|t| t.len() == function.params.len());
            let bank = function.bank.map_or(0, |bank| bank.offset);
            for (n, param) in function.params.iter().enumerate() {
                let kind = types.as_ref().and_then(|types| types.get(n));
                let kind = kind.map_or_else(String::new, |kind| format!(" {kind}"));
                let place = bank + param.offset;
                let _ = writeln!(
                    out,
                    "  parameter {}: c[0x0][{place:#x}], {} bytes{kind}",
                    param.ordinal, param.size
                );
            }
        } else if let Some(address) = self.address {
            let _ = writeln!(out, "{} bytes seen at {address:#x}", self.code.len());
        }
        out.push_str(head);
        for i in self.instructions() {
            for label in i.said.iter().flat_map(|said| &said.labels) {
                let _ = writeln!(out, "{label}");
            }
            let _ = write!(out, "{}  /*{:04x}*/  ", margin(i.offset), i.offset);
            if let Some(control) = i.control {
                let _ = write!(out, "{control}  ");
            }
            match i.said {
                Some(said) => out.push_str(&said.text),
                None => out.push_str(&words(i.bytes)),
            }
            out.push('\n');
        }
        out
    }

    /// Returns the listing as one object (docs/code.md has the members).
    pub fn json(&self) -> Value {
        let mut object = json!({
            "bytes": self.code.len(),
            "sm": self.sm,
        });
        if let Some((image, function)) = self.function {
            object["kernel"] = json!(demangled(&function.name));
            object["kernel_mangled"] = json!(function.name);
            object["image"] = json!(image.at);
            object["target"] = json!(image.target());
            object["offset"] = json!(function.code.start);
            object["registers"] = json!(function.registers);
            let params = function.params.iter();
            object["params"] = params
                .map(|p| json!({"ordinal": p.ordinal, "offset": p.offset, "size": p.size}))
                .collect();
            object["params_at"] = json!(function.bank.map(|bank| bank.offset));
        }
        if let Some(address) = self.address {
            object["program"] = json!(address);
        }
        if let Some(kernel) = self.named {
            object["kernel_from"] = json!(kernel.by.name());
            object["kernel_certain"] = json!(kernel.certain);
        }
        let instructions = self.instructions().map(|i| {
            let mut one = json!({ "offset": i.offset, "words": words(i.bytes) });
            if let Some(c) = i.control {
                one["control"] = json!({
                    "stall": c.stall,
                    "yield": c.yields,
                    "write_barrier": c.write_barrier,
                    "read_barrier": c.read_barrier,
                    "wait": c.waits().collect::<Vec<_>>(),
                    "reuse": c.reuse,
                });
            }
            if let Some(said) = i.said {
                one["text"] = json!(said.text);
                if !said.labels.is_empty() {
                    one["labels"] = json!(said.labels);
                }
            }
            one
        });
        object["instructions"] = instructions.collect();
        object
    }
}

/// Bytes as 64-bit words, as nvdisasm prints them.
fn words(bytes: &[u8]) -> String {
    let word = |bytes: &[u8]| {
        let digits: String = bytes.iter().rev().map(|b| format!("{b:02x}")).collect();
        format!("0x{digits}")
    };
    bytes.chunks(8).map(word).collect::<Vec<_>>().join(" ")
}
