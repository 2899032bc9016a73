//! `nvcap explain`: the meaning of a number in the stream.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use nvcap_decode::decode::classes::{self, Class};
use nvcap_decode::decode::explain::{self, Field};
use nvcap_decode::driver::names;
use nvcap_decode::hang::xid;
use nvcap_show::output::filter;
use nvcap_show::output::gpu_time::verdicts::VERDICTS;
use nvcap_show::output::plural::plural;

use super::usage::bail_usage;

const EXAMPLES: &str = "\
Examples:
  nvcap explain c8b5 0300 00000182    a method write: class, method, data
  nvcap explain c8b5 0300             a method, its fields and their values
  nvcap explain c8b5 LAUNCH           the methods of a class with this in their name
  nvcap explain c8b5                  a class and all its methods
  nvcap explain qmd FILE              a QMD of 256 or 384 bytes, binary; - for standard input
  nvcap explain qmd FILE cbc0         the same, of a class: tells layouts apart that share a version
  nvcap explain control 20801218      an RM control command
  nvcap explain status 0x57           an RM status
  nvcap explain class 2080            any class that RM can allocate
  nvcap explain xid 31                an error of the kernel log, and its causes
  nvcap explain xid                   all of them
  nvcap explain GPU-bound             a verdict of nvcap time, and what to look at next
  nvcap explain HANG                  a state of nvcap dump
  nvcap explain verdict               all of them
  nvcap explain filter                the fields of filter expressions (-e)

Numbers are hexadecimal, with or without 0x; that of an Xid is decimal, as the kernel log has it.";

/// Arguments of `nvcap explain`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "help, in which brackets are no links"
    )]
    /// CLASS [METHOD [DATA]], or `qmd FILE [CLASS]`, `control NUMBER`, `status NUMBER`, `class NUMBER`, `xid [NUMBER]`, `filter`, `verdict`, or a verdict
    #[arg(required = true, num_args = 1..=3, value_name = "WHAT")]
    pub what: Vec<String>,

    /// Write one JSON object instead of text; `filter`, verdicts and CLASS alone have none
    #[arg(long)]
    pub json: bool,
}

/// Explains the number.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let first = args.what.first().map(|word| word.to_ascii_lowercase());
    let rest = args.what.iter().skip(1).map(String::as_str);
    let words: Vec<&str> = first.as_deref().into_iter().chain(rest).collect();
    let text = match words.as_slice() {
        ["filter"] => filter_help(),
        ["xid"] => xids(args.json),
        ["xid", numbers @ ..] => {
            let each = numbers.iter().map(|number| xid(number, args.json));
            let texts = each.collect::<anyhow::Result<Vec<String>>>()?;
            texts.join(if args.json { "" } else { "\n" })
        }
        ["filter", ..] => bail_usage!("`nvcap explain filter` takes nothing more"),
        ["qmd"] => bail_usage!("name the file that holds the QMD: nvcap explain qmd FILE"),
        ["qmd", file] => qmd(file, 0, args.json)?,
        ["qmd", file, class] => qmd(file, hex(class)?, args.json)?,
        ["class"] => bail_usage!("give the number too: nvcap explain class NUMBER"),
        ["class", number] => any_class(hex(number)?, args.json)?,
        ["control" | "status"] => {
            bail_usage!("give the number too: nvcap explain {} NUMBER", words[0])
        }
        [what @ ("control" | "status"), number] => rm(what, hex(number)?, args.json)?,
        ["verdict"] => verdicts(""),
        [..] if !verdicts(&words.join(" ")).is_empty() && hex(words[0]).is_err() => {
            verdicts(&words.join(" "))
        }
        [class] => class_text(hex(class)?)?,
        [class, method] => method_text(hex(class)?, method)?,
        [class, method, data] => write_text(hex(class)?, hex(method)?, hex(data)?, args.json)?,
        _ => bail_usage!("nothing to explain; see nvcap explain --help"),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn hex(text: &str) -> anyhow::Result<u32> {
    let digits = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .unwrap_or(text);
    let Ok(number) = u32::from_str_radix(digits, 16) else {
        bail_usage!(
            "'{text}' is no hexadecimal number of 32 bits, and no verdict; nvcap explain --help has examples"
        );
    };
    Ok(number)
}

fn known_class(number: u32) -> anyhow::Result<Class> {
    classes::class(number).with_context(|| {
        format!(
            "no class {number:#06x} in the tables; `nvcap explain c8b5` shows one that is, `nvcap explain xid 31` an error of the kernel's log"
        )
    })
}

fn class_text(number: u32) -> anyhow::Result<String> {
    let class = known_class(number)?;
    let mut out = format!(
        "class {number:#06x} {} ({})\n",
        class.name(),
        class.family().name()
    );
    if let Some(parent) = class.parent() {
        let name = classes::ClassId(parent.class);
        let _ = writeln!(
            out,
            "what its public header lacks comes from {:#06x} {name} ({}, confidence {})",
            parent.class, parent.relation, parent.confidence
        );
    }
    for method in explain::search(number, "") {
        method_line(&mut out, method);
    }
    Ok(out)
}

fn method_line(out: &mut String, method: classes::Method) {
    let _ = write!(out, "  {:#06x} {}", method.base(), method.name());
    if let Some(array) = method.array() {
        let [i, j] = array.count;
        let upto = if array.bound { "up to " } else { "" };
        if array.stride[1] == 0 {
            let _ = write!(out, "({upto}{i}, every {:#x})", array.stride[0]);
        } else {
            let _ = write!(out, "({upto}{i}x{j})");
        }
    }
    out.push('\n');
}

fn method_text(class: u32, method: &str) -> anyhow::Result<String> {
    let known = known_class(class)?;
    let number = hex(method).ok();
    let by_address = number.and_then(|n| u16::try_from(n).ok());
    let by_address = by_address.filter(|address| address.is_multiple_of(4));
    if let Some(method) = by_address.and_then(|address| known.method(address)) {
        let mut out = format!(
            "class {class:#06x} {}\nmethod {:#06x} {method}\n",
            known.name(),
            method.address()
        );
        for field in method.fields() {
            let _ = writeln!(
                out,
                "  {:>2}:{:<2} {}",
                field.high(),
                field.low(),
                field.name()
            );
            for (name, value) in field.names().iter() {
                let _ = writeln!(out, "        {value:#x} {name}");
            }
        }
        return Ok(out);
    }
    let found = explain::search(class, method);
    if let Some(number) = number.filter(|_| found.is_empty()) {
        aligned(number)?;
    }
    if found.is_empty() {
        bail!(
            "{} ({class:#06x}) has no method at {method} and none with {method} in its name; \
             `nvcap explain {class:x}` lists them",
            known.name()
        );
    }
    let mut out = String::new();
    for method in found {
        method_line(&mut out, method);
    }
    Ok(out)
}

/// Refuses a method address that is no multiple of 4, because a method is a register of 4 bytes.
fn aligned(method: u32) -> anyhow::Result<()> {
    if !method.is_multiple_of(4) {
        bail_usage!(
            "{method:#06x} is no method: their addresses are multiples of 4, such as {:#06x}",
            method & !3
        );
    }
    Ok(())
}

fn write_text(class: u32, method: u32, data: u32, json: bool) -> anyhow::Result<String> {
    let known = known_class(class)?;
    aligned(method)?;
    let address = u16::try_from(method).ok();
    let Some(write) = address.and_then(|a| explain::method(class, a, data)) else {
        bail!(
            "{} ({class:#06x}) has no method at {method:#06x}; `nvcap explain {class:x}` lists them",
            known.name()
        );
    };
    if json {
        return Ok(serde_json::to_string(&write)? + "\n");
    }
    let mut out = format!("class {class:#06x} {}\n", write.class_name);
    let _ = write!(out, "method {:#06x} {}", write.address, write.name);
    if write.from_class != class {
        let _ = write!(out, " (from {})", classes::ClassId(write.from_class));
    }
    let _ = writeln!(out, " = {data:#010x}");
    fields(&mut out, &write.fields);
    if write.stray != 0 {
        let _ = writeln!(out, "  bits {:#010x} belong to no field", write.stray);
    }
    Ok(out)
}

fn fields(out: &mut String, fields: &[Field]) {
    let width = fields.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for f in fields {
        let _ = write!(
            out,
            "  {:>4}:{:<4} {:width$} {:#x}",
            f.high, f.low, f.name, f.value
        );
        match f.value_name {
            Some(name) => {
                let _ = writeln!(out, " {name}");
            }
            None if f.value > 9 => {
                let _ = writeln!(out, " ({})", f.value);
            }
            None => out.push('\n'),
        }
    }
}

fn qmd(file: &str, class: u32, json: bool) -> anyhow::Result<String> {
    /// The most bytes of a QMD's file that are read; the largest layout has 384 bytes.
    const MOST: u64 = 4096;
    let mut bytes = Vec::new();
    nvcap_recording::file::packed::open(Path::new(file))
        .and_then(|f| f.take(MOST).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read the QMD in {file}"))?;
    let Some(qmd) = explain::qmd(class, &bytes) else {
        bail!(
            "{file} ({}) is no QMD of a known version: a QMD is 256 bytes (384 from Hopper on), \
             binary; say the compute class too where you know it (nvcap explain qmd FILE cbc0)",
            plural(bytes.len() as u64, "byte")
        );
    };
    if json {
        return Ok(serde_json::to_string(&qmd)? + "\n");
    }
    let (major, minor) = qmd.version;
    let mut out = format!("QMD version {major:02x}_{minor:02x}, {} bytes\n", qmd.bytes);
    fields(&mut out, &qmd.fields);
    Ok(out)
}

fn rm(what: &str, number: u32, json: bool) -> anyhow::Result<String> {
    let name = if what == "control" {
        names::control(number, None)
    } else {
        names::status(number)
    };
    if json {
        let object = serde_json::json!({ what: number, "name": name });
        return Ok(format!("{object}\n"));
    }
    Ok(format!("{what} {number:#x} {name}\n"))
}

/// Explains a class of either kind: one with methods, or that of an object that RM keeps and no method reaches.
fn any_class(number: u32, json: bool) -> anyhow::Result<String> {
    let known = classes::class(number);
    if known.is_none() && !names::is_known_class(number) {
        bail!("no class {number:#06x} in the tables; `nvcap explain class 2080` shows one that is");
    }
    let name = known.map_or_else(
        || names::class(number).to_string(),
        |c| c.name().to_string(),
    );
    if json {
        let object =
            serde_json::json!({ "class": number, "name": name, "methods": known.is_some() });
        return Ok(format!("{object}\n"));
    }
    match known {
        Some(_) => class_text(number),
        None => Ok(format!("class {number:#06x} {name}\n")),
    }
}

/// States that `nvcap dump` and `nvcap watch` report.
const STATES: [(&str, &str); 7] = [
    ("IDLE", "the GPU has done all that was submitted."),
    (
        "MOVING",
        "every channel that has work moved between two looks: it runs.",
    ),
    (
        "BUSY",
        "there is work that has not ended, and slow cannot be told from hung after one look: nvcap dump --watch looks again.",
    ),
    (
        "UNKNOWN",
        "it uses a GPU, and no channel could be read; the notes below the verdict say why.",
    ),
    (
        "HANG",
        "nothing moved between two looks, and there is work that has not ended. The first line says what is waited for; of a job of several ranks \
         nvcap ranks says who has not come. docs/hang.md has examples.",
    ),
    (
        "DEADLOCK",
        "channels wait for each other: none of them can go on. The dump names the semaphores and the work that would release them.",
    ),
    (
        "ERROR",
        "the driver has stopped a channel after an error: nvcap explain xid NUMBER says what it means. The work that it may be of is named.",
    ),
];

/// Returns the verdicts of `nvcap time` that begin with these words, ignoring case, with their meanings; a state of `nvcap dump` only by
/// its whole word.
fn verdicts(begin: &str) -> String {
    if let Some((word, meaning)) = STATES.iter().find(|s| s.0.eq_ignore_ascii_case(begin)) {
        return format!("{word}: {meaning}\n");
    }
    let begin = begin.to_lowercase();
    let all = VERDICTS.iter();
    let chosen = all.filter(|(word, _)| word.to_lowercase().starts_with(&begin));
    chosen.fold(String::new(), |text, (word, meaning)| {
        text + &format!("{word}: {meaning}\n")
    })
}

/// Explains an Xid: its meaning, its reach, usual causes and places to look.
fn xid(number: &str, json: bool) -> anyhow::Result<String> {
    let Ok(code) = number.parse::<u32>() else {
        bail_usage!("'{number}' is no decimal number of an Xid; nvcap explain xid lists all");
    };
    let known = xid::known(code).with_context(|| {
        format!(
            "Xid {code} is not in NVIDIA's catalogue as nvcap has it; nvcap explain xid lists all"
        )
    })?;
    if json {
        return Ok(format!("{}\n", xid_json(&known)));
    }
    let reach = match known.whole_gpu {
        true => "the whole GPU, and every program that uses it",
        false => "the channel, and the program that it belongs to; others go on",
    };
    let mut text = format!(
        "Xid {code} {}: {}\n  reach         {reach}\n",
        known.symbol, known.meaning
    );
    for (head, said) in [("usual causes", known.causes), ("look at", known.look)] {
        if let Some(said) = said {
            let _ = writeln!(text, "  {head:<13} {said}");
        }
    }
    Ok(text)
}

/// Returns all Xids, one on each line.
fn xids(json: bool) -> String {
    let all = xid::numbers().filter_map(xid::known);
    if json {
        let all: Vec<_> = all.map(|known| xid_json(&known)).collect();
        return format!("{}\n", serde_json::Value::from(all));
    }
    let mut text = String::new();
    for known in all {
        let _ = writeln!(
            text,
            "{:>4}  {}  {}",
            known.code, known.symbol, known.meaning
        );
    }
    text
}

fn xid_json(known: &xid::Known) -> serde_json::Value {
    serde_json::json!({
        "xid": known.code,
        "symbol": known.symbol,
        "meaning": known.meaning,
        "whole_gpu": known.whole_gpu,
        "causes": known.causes,
        "look": known.look,
    })
}

/// Returns the fields of filter expressions, with the meaning of each.
fn filter_help() -> String {
    let mut text = String::from("Fields of filter expressions (-e):\n");
    for field in filter::Field::all() {
        let _ = write!(text, "  {:<11} {}", field.name(), field.about());
        if !field.choices().is_empty() {
            let _ = write!(text, ": {}", field.choices().join(", "));
        }
        text.push('\n');
    }
    text
}
