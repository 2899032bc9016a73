//! Faults of the GPU in words and as JSON: the event, and what the verdict says of it.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Value, json};

use nvcap_decode::hang::{
    Xid,
    xid::{self, Access},
};
use nvcap_decode::ledger::{Blame, Ledger};
use nvcap_decode::record::{ChannelId, Fault, MemoryNear, Suspect, SuspectKind};

use super::kernels;
use super::names::token_name;
use super::plural::plural_of;
use super::style::Plain;
use super::units;

/// The most suspects that are named.
const NAMED: usize = 3;
/// Bytes of the page that a message names.
const PAGE: u64 = 4096;
/// The most faults that a verdict names.
const BLAMES: usize = 3;

/// Describes work that had not ended: a kernel by its name, where that is certain.
fn suspect(s: &Suspect) -> String {
    match (s.kind, &s.kernel, s.program) {
        (SuspectKind::Copy, ..) => "a copy".to_owned(),
        (_, Some(kernel), _) if kernel.certain => Plain(&kernels::name(kernel).full).to_string(),
        (_, _, Some(program)) => format!("the kernel at {program:#x}"),
        (_, _, None) => "a kernel that is not known".to_owned(),
    }
}

/// Describes the only work that can have caused a fault; none where several kinds of work may have.
pub(crate) fn cause(fault: &Fault) -> Option<String> {
    let mut names: Vec<String> = fault.suspects.iter().map(suspect).collect();
    names.dedup();
    (fault.only_these && names.len() == 1).then(|| names.remove(0))
}

/// Returns words, behind a verdict, on processes whose error notifiers were not read at their end and of which no fault is told; empty where there
/// are none.
pub(crate) fn unread(ledger: &Ledger) -> String {
    let (kept, count) = ledger.unread_notifiers();
    let is_told = |pid: &u32| ledger.faults().iter().any(|f| f.at.pid == *pid);
    let told = kept.iter().filter(|pid| is_told(pid)).count() as u64;
    let mut others = kept.iter().filter(|pid| !is_told(pid));
    match (others.next(), count - told) {
        (Some(pid), 1) => format!(
            "; a fault at the end of process {pid} is not told: it was gone before its error notifiers were read"
        ),
        (_, 0) => String::new(),
        (_, n) => format!(
            "; a fault at the end of {n} processes is not told: they were gone before their error notifiers were read"
        ),
    }
}

/// The names of suspects, each once.
fn names_of<'a>(all: impl Iterator<Item = &'a &'a Suspect>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all.map(|s| suspect(s)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Describes suspects: ` in f(int)`, ` in one of: f(int), g(), or work that is not known`; empty where there are none. A suspect that alone had not
/// ended on the channels that were `stopped` comes before those of other channels. `only_these`: no other work can have caused the fault.
fn suspects(all: &[&Suspect], stopped: &[ChannelId], only_these: bool) -> String {
    let mut names = names_of(all.iter());
    match (&names[..], only_these) {
        ([], _) => return String::new(),
        ([one], true) => return format!(" in {one}"),
        _ => {}
    }
    let mut text = " in ".to_owned();
    let likely = names_of(all.iter().filter(|s| stopped.contains(&s.channel)));
    if let ([likely], true) = (&likely[..], names.len() > 1) {
        names.retain(|name| name != likely);
        let of = match stopped {
            [_] => "of the stopped channel",
            _ => "of the stopped channels",
        };
        let _ = write!(text, "{likely} ({of}), or ");
    }
    // One more takes no more room than its name.
    let shown = if names.len() <= NAMED + 1 {
        names.len()
    } else {
        NAMED
    };
    let more = names.len() - shown;
    names.truncate(shown);
    match &names[..] {
        [one] => text.push_str(one),
        _ => {
            let _ = write!(text, "one of: {}", names.join(", "));
        }
    }
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    if !only_these {
        text.push_str(", or work that is not known");
    }
    text
}

fn channels(all: &[ChannelId]) -> String {
    let numbers: Vec<String> = all.iter().take(NAMED).map(|c| c.0.to_string()).collect();
    match (all.len(), all.len() - numbers.len()) {
        (0, _) => String::new(),
        (1, _) => format!(" on channel {}", numbers.join("")),
        (_, 0) => format!(" on channels {}", numbers.join(", ")),
        (_, more) => format!(" on channels {} and {more} more", numbers.join(", ")),
    }
}

/// Returns one blame as text: `Xid 31 in bad(float*, int)`.
fn blame(b: &Blame<'_>, names_process: bool) -> String {
    let mut text = match b.pci {
        Some(pci) => format!("GPU {} had Xid {} of no known process", Plain(pci), b.code),
        None => format!("Xid {}", b.code),
    };
    match suspects(&b.suspects, &b.channels, b.only_these).as_str() {
        "" => text.push_str(&channels(&b.channels)),
        suspects => text.push_str(suspects),
    }
    if let Some(access) = &b.access {
        let _ = write!(text, ", {access}");
    }
    if let Some(exception) = b.exception {
        let _ = write!(text, ", {}", Plain(exception));
    }
    if names_process {
        let _ = write!(text, " (process {})", b.pid);
    }
    text
}

/// Describes a fault in a few words: `Xid 31 in bad(float*, int), a write to the page at 0x10000, where nothing is mapped`.
#[must_use]
pub fn in_short(fault: &Fault) -> String {
    let mut text = blame(&Blame::of(fault), false);
    let message = fault.message.as_ref();
    // Without an access or an exception the number needs words.
    if message.is_none_or(|m| m.access().is_none() && m.exception().is_none()) {
        let _ = write!(text, ", {}", xid::meaning(fault.code));
    }
    text
}

/// Returns the part of the verdict about faults: `, and the GPU faulted: Xid 31 in bad(float*, int)`; empty where there were none.
pub(super) fn verdict(ledger: &Ledger) -> String {
    let (of_gpus, blames): (Vec<_>, Vec<_>) =
        { ledger.blames().into_iter() }.partition(|b| b.pci.is_some());
    let mut text = of_processes(ledger, &blames);
    for of_gpu in of_gpus.iter().take(BLAMES) {
        let lead = if text.is_empty() { ", and" } else { ";" };
        let _ = write!(text, "{lead} {}", blame(of_gpu, false));
    }
    text
}

/// Returns the part of the verdict about faults of processes.
fn of_processes(ledger: &Ledger, blames: &[Blame<'_>]) -> String {
    if blames.is_empty() {
        return String::new();
    }
    let mut pids: Vec<u32> = ledger.channels().map(|(_, c)| c.pid).collect();
    pids.extend(blames.iter().map(|b| b.pid));
    pids.sort_unstable();
    pids.dedup();
    let named = blames.iter().take(BLAMES);
    let named: Vec<String> = named.map(|b| blame(b, pids.len() > 1)).collect();
    let more = match (blames.len() - named.len()) as u64 {
        0 => String::new(),
        n => format!("; and {}", plural_of(n, "fault more", "faults more")),
    };
    format!(", and the GPU faulted: {}{more}", named.join("; "))
}

/// The line of a fault.
pub(crate) fn line(f: &Fault) -> String {
    let mut text = format!("FAULT Xid {}", f.code);
    if let Some(pci) = f.of_gpu() {
        let _ = write!(text, " of no known process on GPU {}", Plain(pci));
    }
    if let Some(channel) = f.channel {
        let _ = write!(text, " on channel {}", channel.0);
    }
    match (f.token, f.assumed) {
        (Some(_), true) => {
            let _ = write!(
                text,
                " (token {}, by the order of error notifiers)",
                token_name(f.token)
            );
        }
        (Some(_), false) => {
            let _ = write!(text, " (token {})", token_name(f.token));
        }
        (None, _) => {}
    }
    if !f.group.is_empty() {
        let others = plural_of(f.group.len() as u64, "other channel", "other channels");
        let _ = write!(text, ", with {others}");
    }
    let _ = write!(text, ": {}", xid::meaning(f.code));
    let all: Vec<&Suspect> = f.suspects.iter().collect();
    let stopped: Vec<ChannelId> = { f.channel.iter() }.chain(&f.group).copied().collect();
    text.push_str(&suspects(&all, &stopped, f.only_these));
    if let Some(access) = f.message.as_ref().and_then(|m| m.access()) {
        let _ = write!(text, "; {access}");
        if let Some(memory) = &f.memory {
            let _ = write!(text, ": {}", place(memory, access.page, f.at.time_ns));
        }
        text.push_str(&near(&f.suspects, access.page));
    }
    if let Some(exception) = f.message.as_ref().and_then(|m| m.exception()) {
        let _ = write!(text, "; {}", Plain(exception));
    }
    if let Some(message) = &f.message {
        let _ = write!(text, "; kernel log: {}", Plain(&message.text));
    }
    text
}

/// Describes the place of a page in memory that the process has or had, or beside it: `8.0 GiB behind 4.0 MiB at 0x7f1002800000`.
fn place(memory: &MemoryNear, page: u64, now: u64) -> String {
    let size = units::Bytes(memory.bytes as f64);
    let there = format!("{size} at {:#x}", memory.start);
    let end = memory.start.saturating_add(memory.bytes);
    match memory.freed_ns {
        Some(at) => {
            let ago = units::Nanoseconds(now.saturating_sub(at));
            format!("in {there}, freed {ago} before")
        }
        None if page < memory.start => {
            format!(
                "{} before {there}",
                units::Bytes((memory.start - page) as f64)
            )
        }
        None if page < end => format!("in {there}"),
        None if page == end => format!("just behind {there}"),
        None => format!("{} behind {there}", units::Bytes((page - end) as f64)),
    }
}

/// Describes the argument that points nearest to a page, where only one suspect has such an argument.
fn near(suspects: &[Suspect], page: u64) -> String {
    let mut all = suspects.iter().filter_map(|s| s.near);
    let (Some(near), None) = (all.next(), all.next()) else {
        return String::new();
    };
    let bytes = units::Bytes(page.abs_diff(near.value) as f64);
    let place = match near.value.cmp(&page) {
        Ordering::Less => format!("{bytes} before it"),
        Ordering::Equal => "its first byte".to_owned(),
        Ordering::Greater if near.value - page < PAGE => "in it".to_owned(),
        Ordering::Greater => format!("{bytes} behind it"),
    };
    format!(
        "; the nearest argument, at +{:#x}, is {:#x}, {place}",
        near.offset, near.value
    )
}

/// A suspect as JSON.
fn suspect_json(s: &Suspect) -> Value {
    let kernel = s.kernel.as_ref();
    json!({
        "channel": s.channel.0,
        "index": s.index,
        "kind": s.kind,
        "program": s.program.map(|p| p.0),
        "kernel": kernel.map(|k| kernels::name(k).full.clone()),
        "kernel_mangled": kernel.map(|k| k.name.as_str()),
        "kernel_certain": kernel.map(|k| k.certain),
        "grid": (s.kind == SuspectKind::Kernel).then_some(s.grid),
        "block": (s.kind == SuspectKind::Kernel).then_some(s.block),
        "near": s.near,
    })
}

/// A failed access as JSON; null where none is known.
fn access_json(access: Option<&Access>) -> Value {
    access.map_or(
        Value::Null,
        |a| json!({"page": a.page, "kind": a.kind, "reason": a.reason, "unit": a.unit}),
    )
}

/// The members of a fault's object, behind those that all objects have.
#[must_use]
pub fn members(f: &Fault) -> Vec<(&'static str, Value)> {
    let suspects: Vec<Value> = f.suspects.iter().map(suspect_json).collect();
    vec![
        ("channel", f.channel.map(|c| c.0).into()),
        ("group", f.group.iter().map(|c| c.0).collect()),
        ("source", f.source.name().into()),
        ("xid", f.code.into()),
        ("symbol", symbol(f.code).into()),
        ("meaning", xid::meaning(f.code).into()),
        ("assumed", f.assumed.into()),
        ("notification", json!(f.notification)),
        ("message", json!(f.message)),
        (
            "access",
            access_json(f.message.as_ref().and_then(|m| m.access()).as_ref()),
        ),
        ("memory", json!(f.memory)),
        (
            "exception",
            f.message.as_ref().and_then(|m| m.exception()).into(),
        ),
        ("suspects", suspects.into()),
        ("only_these", f.only_these.into()),
    ]
}

/// NVIDIA's name for a number.
fn symbol(code: u32) -> Option<&'static str> {
    let xid = Xid {
        code,
        ..Xid::default()
    };
    xid.symbol()
}

/// Returns the faults of the ledger as JSON.
pub(super) fn blames_json(ledger: &Ledger) -> Value {
    let one = |b: &Blame<'_>| {
        json!({
            "pid": (b.pid != 0).then_some(b.pid),
            "pci": b.pci,
            "xid": b.code,
            "symbol": symbol(b.code),
            "meaning": xid::meaning(b.code),
            "channels": b.channels.iter().map(|c| c.0).collect::<Vec<_>>(),
            "suspects": b.suspects.iter().map(|s| suspect_json(s)).collect::<Vec<_>>(),
            "only_these": b.only_these,
            "access": access_json(b.access.as_ref()),
            "exception": b.exception,
            "text": blame(b, false),
        })
    };
    ledger.blames().iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use nvcap_decode::record::{At, Kernel, Record};
    use nvcap_decode::wire::GpuVa;

    fn kernel(program: u64, name: &str, certain: bool) -> Suspect {
        let at = At::of_process(1, 7);
        let named = Kernel {
            certain,
            ..Kernel::called(at, program, name)
        };
        Suspect {
            channel: ChannelId(2),
            index: 3,
            kind: SuspectKind::Kernel,
            program: Some(GpuVa(program)),
            grid: [1; 3],
            block: [32, 1, 1],
            near: None,
            kernel: (!name.is_empty()).then(|| Arc::new(named)),
        }
    }

    fn said(pid: u32, suspects: Vec<Suspect>, only_these: bool) -> String {
        let fault = Fault {
            channel: Some(ChannelId(2)),
            token: Some(0xb),
            suspects,
            only_these,
            ..Fault::of_notifier(At::of_process(5, pid), 31)
        };
        let mut ledger = Ledger::new();
        ledger.record(&Record::Fault(Box::new(fault)));
        verdict(&ledger)
    }

    #[test]
    fn the_place_of_a_page_is_said() {
        let memory = |freed_ns| MemoryNear {
            start: 0x40_0000,
            bytes: 0x40_0000,
            freed_ns,
        };
        for (page, freed_ns, wanted) in [
            (0x50_0000, None, "in 4.0 MiB at 0x400000"),
            (0x80_0000, None, "just behind 4.0 MiB at 0x400000"),
            (0x80_1000, None, "4.0 KiB behind 4.0 MiB at 0x400000"),
            (0x20_0000, None, "2.0 MiB before 4.0 MiB at 0x400000"),
            (
                0x50_0000,
                Some(3_000_000),
                "in 4.0 MiB at 0x400000, freed 2.00 ms before",
            ),
        ] {
            assert_eq!(place(&memory(freed_ns), page, 5_000_000), wanted);
        }
    }

    #[test]
    fn an_error_of_no_known_process_is_its_gpu_s() {
        let message = "NVRM: Xid (PCI:0000:35:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Illegal Instruction Parameter";
        let fault = Fault {
            message: Xid::parse(message).map(Box::new),
            only_these: false,
            ..Fault::of_notifier(At::of_process(5, 0), 13)
        };
        let mut ledger = Ledger::new();
        ledger.record(&Record::Fault(Box::new(fault.clone())));
        let said = "GPU 0000:35:00 had Xid 13 of no known process, Illegal Instruction Parameter";
        assert_eq!(verdict(&ledger), format!(", and {said}"));
        assert_eq!(in_short(&fault), said);
        let begin = "FAULT Xid 13 of no known process on GPU 0000:35:00: ";
        assert!(super::line(&fault).starts_with(begin));
        let json = blames_json(&ledger);
        assert_eq!(
            (&json[0]["pid"], &json[0]["pci"]),
            (&Value::Null, &json!("0000:35:00"))
        );
        // Beside a fault of a process, which alone is the trace's.
        let own = Fault::of_notifier(At::of_process(6, 7), 31);
        ledger.record(&Record::Fault(Box::new(own)));
        let both = format!(", and the GPU faulted: Xid 31; {said}");
        assert_eq!(verdict(&ledger), both);
    }

    #[test]
    fn a_kernel_is_named_where_no_other_can_have_faulted() {
        const BAD: &str = "_Z3badPfi";
        let after = |text: &str| format!(", and the GPU faulted: Xid 31{text}");
        assert_eq!(verdict(&Ledger::new()), "");
        assert_eq!(
            said(7, vec![kernel(0x100, BAD, true)], true),
            after(" in bad(float*, int)")
        );
        assert_eq!(
            said(7, vec![kernel(0x100, BAD, true)], false),
            after(" in bad(float*, int), or work that is not known")
        );
        // A name that is a guess is none.
        assert_eq!(
            said(7, vec![kernel(0x100, BAD, false)], true),
            after(" in the kernel at 0x100")
        );
        let others = (2..6).map(|n| kernel(n * 0x100, "", true));
        let all = std::iter::once(kernel(0x100, BAD, true)).chain(others);
        assert_eq!(
            said(7, all.collect(), true),
            after(
                " in one of: bad(float*, int), the kernel at 0x200, the kernel at 0x300 and 2 more"
            )
        );
        // The channel is concluded, and others may be meant.
        let elsewhere = |n: u64| Suspect {
            channel: ChannelId(4),
            ..kernel(n * 0x100, "", true)
        };
        let with = |others: std::ops::Range<u64>| {
            let bad = std::iter::once(kernel(0x100, BAD, true));
            bad.chain(others.map(elsewhere)).collect()
        };
        let bad = " in bad(float*, int) (of the stopped channel), or ";
        let one = format!("{bad}the kernel at 0x200");
        assert_eq!(said(7, with(2..3), true), after(&one));
        let four = format!(
            "{bad}one of: the kernel at 0x200, the kernel at 0x300, the kernel at 0x400, the kernel at 0x500, or work that is not known"
        );
        assert_eq!(said(7, with(2..6), false), after(&four));
        assert_eq!(said(7, vec![], true), after(" on channel 2"));
        assert_eq!(said(7, vec![], false), after(" on channel 2"));
    }
}
