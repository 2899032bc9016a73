//! Operations in JSON.

use crate::output::kernels;
use crate::output::redact::Redactor;
use nvcap_decode::decode::event::{Inline, Launch, Operation};

use super::form::{bool_member, hex_member, key, member, number, numbers, optional_member, to_vec};

/// Appends an operation as an object.
pub(super) fn operation(out: &mut Vec<u8>, op: &Operation, redact: Option<&Redactor>) {
    match (redact, op) {
        (None, Operation::Launch(l)) => launch(out, l),
        (None, Operation::Inline(i)) => inline(out, i),
        (None, op) => to_vec(out, op),
        (Some(redact), op) => to_vec(out, &hidden(op, redact)),
    }
}

/// An operation as a value, for an output that is no stream.
pub(in crate::output) fn value(op: &Operation, redact: Option<&Redactor>) -> serde_json::Value {
    match redact {
        Some(redact) => hidden(op, redact),
        None => with_kernel(op),
    }
}

/// An operation as serde writes it; a launch as [`launch`] does, with its kernel and arguments.
fn with_kernel(op: &Operation) -> serde_json::Value {
    if let Operation::Launch(l) = op {
        let mut out = Vec::new();
        launch(&mut out, l);
        return serde_json::from_slice(&out).unwrap_or_default();
    }
    serde_json::to_value(op).unwrap_or(serde_json::Value::Null)
}

/// Writes a launch, several times as fast as serde: most operations are launches and inline writes. The object is that of serde, with
/// the kernel's name (which serde skips) and the single arguments besides.
fn launch(out: &mut Vec<u8>, l: &Launch) {
    out.extend_from_slice(b"{\"op\":\"launch\"");
    key(out, "kind");
    to_vec(out, &l.kind);
    key(out, "how");
    to_vec(out, &l.how);
    key(out, "pcas");
    to_vec(out, &l.pcas);
    optional_member(out, "replay", l.replay);
    optional_member(out, "place", l.place);
    optional_member(out, "qmd", l.qmd);
    let version = l.qmd_version.map(|(a, b)| [u32::from(a), u32::from(b)]);
    numbers(
        out,
        "qmd_version",
        version.as_ref().map(<[u32; 2]>::as_slice),
    );
    key(out, "qmd_from");
    to_vec(out, &l.qmd_from);
    for (name, dimensions) in [
        ("grid", &l.grid),
        ("block", &l.block),
        ("cluster", &l.cluster),
    ] {
        numbers(out, name, dimensions.as_ref().map(<[u32; 3]>::as_slice));
    }
    bool_member(out, "cooperative", l.cooperative);
    optional_member(out, "registers", l.registers);
    optional_member(out, "shared_bytes", l.shared_bytes);
    optional_member(out, "shared_reserved_bytes", l.shared_reserved_bytes);
    optional_member(out, "local_bytes", l.local_bytes);
    optional_member(out, "barriers", l.barriers);
    optional_member(out, "program", l.program);
    if let Some(stand_in) = l.stand_in {
        member(out, "stand_in", stand_in.0);
    }
    optional_member(out, "program_bytes", l.program_bytes);
    kernel(out, l);
    key(out, "moves");
    to_vec(out, &l.moves);
    match &l.args {
        Some(args) => hex_member(out, "args", args),
        None => out.extend_from_slice(b",\"args\":null"),
    }
    arguments(out, l);
    key(out, "constant_banks");
    out.push(b'[');
    for (i, bank) in l.constant_banks.iter().enumerate() {
        out.extend_from_slice(if i > 0 {
            b",{\"index\":"
        } else {
            b"{\"index\":"
        });
        number(out, u64::from(bank.index));
        member(out, "address", bank.address.0);
        member(out, "size", u64::from(bank.size));
        out.push(b'}');
    }
    out.push(b']');
    key(out, "releases");
    to_vec(out, &l.releases);
    optional_member(out, "dependent", l.dependent);
    out.push(b'}');
}

/// The arguments of a launch one by one, where the kernel's parameters are known.
fn arguments(out: &mut Vec<u8>, l: &Launch) {
    key(out, "arguments");
    let Some(all) = kernels::arguments(l) else {
        out.extend_from_slice(b"null");
        return;
    };
    out.push(b'[');
    for (i, a) in all.iter().enumerate() {
        out.extend_from_slice(if i > 0 {
            b",{\"offset\":"
        } else {
            b"{\"offset\":"
        });
        number(out, u64::from(a.offset));
        member(out, "size", u64::from(a.size));
        key(out, "type");
        to_vec(out, &a.kind);
        key(out, "value");
        to_vec(out, &a.value);
        if let Some((_, memory)) = l.arg_memory.iter().find(|(at, _)| *at == a.offset) {
            key(out, "memory");
            to_vec(out, memory);
        }
        out.push(b'}');
    }
    out.push(b']');
}

/// Appends the kernel of a launch: its name in full, the name that the compiler wrote, and the evidence for it.
fn kernel(out: &mut Vec<u8>, l: &Launch) {
    let Some(kernel) = &l.kernel else {
        out.extend_from_slice(b",\"kernel\":null");
        return;
    };
    key(out, "kernel");
    to_vec(out, &kernels::name(kernel).full);
    key(out, "kernel_mangled");
    to_vec(out, &kernel.name);
    key(out, "kernel_from");
    to_vec(out, &kernel.by);
    bool_member(out, "kernel_certain", kernel.certain);
}

/// Writes an inline write, as [`launch`] a launch.
fn inline(out: &mut Vec<u8>, i: &Inline) {
    out.extend_from_slice(b"{\"op\":\"inline\"");
    member(out, "dst", i.dst.0);
    member(out, "bytes", i.bytes);
    member(out, "line_bytes", u64::from(i.line_bytes));
    member(out, "lines", u64::from(i.lines));
    key(out, "content");
    to_vec(out, &i.content);
    if !i.data.is_in_stream() {
        key(out, "data");
        to_vec(out, &i.data);
    }
    optional_member(out, "fill", i.fill);
    if let Some(src) = i.src {
        member(out, "src", src.0);
    }
    key(out, "direction");
    to_vec(out, &i.direction);
    hex_member(out, "head", &i.head);
    if let Some(memory) = &i.src_memory {
        key(out, "src_memory");
        to_vec(out, memory);
    }
    if let Some(memory) = &i.dst_memory {
        key(out, "dst_memory");
        to_vec(out, memory);
    }
    out.push(b'}');
}

/// An operation whose `args`, `head` and `pattern` are replaced by length and hash, and whose `fill`, `moves.value` and values of
/// `arguments` are `null`.
fn hidden(op: &Operation, redact: &Redactor) -> serde_json::Value {
    let mut value = with_kernel(op);
    let mut replace = |name: &str, bytes: &[u8]| {
        if let Some(slot) = value.get_mut(name)
            && !slot.is_null()
        {
            *slot = serde_json::to_value(redact.hide(bytes)).unwrap_or(serde_json::Value::Null);
        }
    };
    match op {
        Operation::Launch(l) => {
            replace("args", l.args.as_deref().unwrap_or(&[]));
            // The arguments hold the value that a memset writes.
            if let Some(moves) = value.get_mut("moves").and_then(|m| m.as_object_mut()) {
                moves.insert("value".into(), serde_json::Value::Null);
            }
            let arguments = value.get_mut("arguments").and_then(|a| a.as_array_mut());
            for argument in arguments.into_iter().flatten() {
                if let Some(argument) = argument.as_object_mut() {
                    argument.insert("value".into(), serde_json::Value::Null);
                    argument.remove("memory");
                }
            }
        }
        Operation::Inline(i) => {
            replace("head", &i.head);
            value["fill"] = serde_json::Value::Null;
        }
        Operation::Copy(c) => {
            let pattern = c.pattern.as_deref().unwrap_or(&[]);
            let bytes: Vec<u8> = pattern.iter().flat_map(|w| w.to_le_bytes()).collect();
            replace("pattern", &bytes);
        }
        Operation::Graph(_)
        | Operation::Load(_)
        | Operation::Semaphore(_)
        | Operation::Barrier(_)
        | Operation::Bind(_)
        | Operation::Draw(_)
        | Operation::Video(_)
        | Operation::Host(_) => {}
    }
    value
}
