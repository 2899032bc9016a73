//! `nvcap channels` and `nvcap maps`: the driver model as tables and JSON. Knows the model's views, no source.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Map, Value as Json, json};

use nvcap_decode::{
    decode::event::Engine,
    driver::{Aperture, Caching, ChannelView, Gpu, MappingView, MappingWhat, Model, names, report},
    record::{ChannelId, Device},
};

use super::names::{known_engine, known_name, known_pid, pid_name, token_name};
use super::plural::plural;
use super::style::Plain;

/// State of a channel that the source knows and the model was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// GP_GET, as read from USERD.
    pub gp_get: Option<u32>,
    /// GP_PUT, as read from USERD.
    pub gp_put: Option<u32>,
    /// Submissions seen so far; `None` if the source cannot see submissions.
    pub submissions: Option<u64>,
    /// Ring entries of these submissions.
    pub entries: Option<u64>,
    /// The engine by the methods in its ring.
    pub engine: Engine,
}

/// Returns the usual use of a channel, by its engine and what is bound to it (docs/driver-model.md). The two directions are
/// libcuda's habit: its runlists after the first are host to device, then device to host.
#[must_use]
pub(crate) fn likely_use(model: &Model, channel: &ChannelView) -> &'static str {
    let engine = channel.engine.map(names::engine);
    let is = |prefix: &str| engine.as_ref().is_some_and(|e| e.starts_with(prefix));
    let has = |low: u32| channel.bound.iter().any(|b| b.class & 0xff == low);
    if is("GR") || has(0xc0) || has(0x97) {
        return match (has(0xc0), has(0x97)) {
            (_, true) => "graphics",
            (true, false) => "compute",
            (false, false) => "graphics or compute",
        };
    }
    if is("COPY") {
        // The copy engines of this process's channels on this GPU, in the order in which the channels became known.
        let mut engines: Vec<u32> = Vec::new();
        for other in model
            .channels()
            .filter(|c| c.pid == channel.pid && c.gpu == channel.gpu)
        {
            if let Some(e) = other
                .engine
                .filter(|e| names::engine(*e).starts_with("COPY"))
                && !engines.contains(&e)
            {
                engines.push(e);
            }
        }
        return match engines.iter().position(|e| Some(*e) == channel.engine) {
            Some(0) => "copy (H2D)",
            Some(1) => "copy (D2H)",
            _ => "copy",
        };
    }
    if is("NVDEC") {
        return "video decode";
    }
    if is("NVENC") {
        return "video encode";
    }
    if is("NVJPEG") {
        return "JPEG decode";
    }
    if is("OFA") {
        return "optical flow";
    }
    "?"
}

/// The engines that a channel feeds: those that it was allocated for, else by the methods in its ring.
fn engines(c: &ChannelView, live: Live) -> Vec<String> {
    let told = c.engines();
    match known_engine(live.engine) {
        Some(name) if told.is_empty() => vec![name],
        _ => told,
    }
}

/// Returns the use that [`likely_use`] tells, else that of the methods in its ring.
fn use_by(model: &Model, c: &ChannelView, live: Live) -> &'static str {
    match (likely_use(model, c), live.engine) {
        ("?", Engine::Graphics) => "graphics or compute",
        ("?", Engine::Copy(_)) => "copy",
        (told, _) => told,
    }
}

/// The table of channels, with a heading for each process; an empty text if there is no channel.
#[must_use]
pub fn table(model: &Model, pid: Option<u32>, live: &BTreeMap<ChannelId, Live>) -> String {
    let mut text = String::new();
    let mut pids: Vec<u32> = model.channels().map(|c| c.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    for of in pids.into_iter().filter(|p| pid.is_none_or(|q| q == *p)) {
        let channels: Vec<ChannelView> = model.channels().filter(|c| c.pid == of).collect();
        let name = model
            .process_name(of)
            .and_then(known_name)
            .map(|n| format!(" {}", Plain(n)));
        let _ = writeln!(
            text,
            "process {}{}: {}{}",
            pid_name(of),
            name.unwrap_or_default(),
            plural(channels.len() as u64, "channel"),
            match model.version() {
                Some(v) => format!(", driver {v}"),
                None => String::new(),
            }
        );
        for gpu in model.gpus() {
            let _ = writeln!(text, "{}", gpu_line(gpu));
        }
        let rows = channels
            .iter()
            .map(|c| row(model, c, live.get(&c.id).copied().unwrap_or_default()));
        text.push_str(&columns(&HEAD, rows.collect()));
    }
    if !text.is_empty() {
        text.push_str(&super::streams::spread_text(&report::spread(model)));
    }
    text
}

const HEAD: [&str; 13] = [
    "token",
    "gpu",
    "chid",
    "runlist",
    "engines",
    "tsg",
    "class",
    "ring",
    "entries",
    "userd",
    "get/put",
    "submissions",
    "use",
];

fn row(model: &Model, c: &ChannelView, live: Live) -> Vec<String> {
    let hex = |v: Option<u64>| v.map_or_else(|| "?".to_owned(), |v| format!("{v:#x}"));
    let number = |v: Option<u64>| v.map_or_else(|| "?".to_owned(), |v| v.to_string());
    let or_dash = |s: String| if s.is_empty() { "?".to_owned() } else { s };
    vec![
        token_name(c.token),
        number(c.gpu.map(u64::from)),
        number(c.chid().map(u64::from)),
        number(c.runlist().map(u64::from)),
        or_dash(engines(c, live).join("+")),
        hex(c.tsg.map(u64::from)),
        hex(c.class.map(u64::from)),
        hex(c.ring.map(|r| r.0)),
        number(c.entries.map(u64::from)),
        hex(c.userd.map(|u| u.0)),
        format!(
            "{}/{}",
            number(live.gp_get.or(c.gp_get).map(u64::from)),
            number(live.gp_put.or(c.gp_put).map(u64::from))
        ),
        number(live.submissions),
        use_by(model, c, live).into(),
    ]
}

/// The widest column, characters; a wider cell sticks out.
const WIDEST: usize = 200;

/// Left-aligned columns, two spaces between them.
fn columns(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(WIDEST));
        }
    }
    let mut text = String::new();
    let mut put = |cells: Vec<&str>| {
        let mut line = String::from(" ");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, " {cell:<width$} ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    put(head.to_vec());
    for row in &rows {
        put(row.iter().map(String::as_str).collect());
    }
    text
}

fn gpu_line(gpu: &Gpu) -> String {
    let mut line = match gpu.minor {
        Some(minor) => format!("  gpu {minor}:"),
        None => format!("  gpu id {:#x}:", gpu.id),
    };
    for part in [gpu.chip(), gpu.pci_address(), gpu.uuid_text()]
        .into_iter()
        .flatten()
    {
        let _ = write!(line, " {part}");
    }
    line
}

/// The channels as an array of JSON objects: those of one process, or all.
#[must_use]
pub fn json(model: &Model, pid: Option<u32>, live: &BTreeMap<ChannelId, Live>) -> Json {
    model
        .channels()
        .filter(|c| pid.is_none_or(|p| p == c.pid))
        .map(|c| channel_json(model, &c, live.get(&c.id).copied().unwrap_or_default()))
        .collect()
}

fn channel_json(model: &Model, c: &ChannelView, live: Live) -> Json {
    let gpu = c.gpu.and_then(|minor| model.gpu_by_minor(minor));
    let bound: Vec<Json> = c
        .bound
        .iter()
        .map(|b| {
            json!({
                "handle": b.handle,
                "class": b.class,
                "class_name": names::class(b.class),
                "engine": b.engine.map(names::engine),
            })
        })
        .collect();
    let mut object = Map::new();
    let mut put = |name: &str, value: Json| {
        object.insert(name.into(), value);
    };
    put("id", c.id.0.into());
    put("pid", known_pid(c.pid).into());
    put("gpu", c.gpu.into());
    put("pci", gpu.and_then(Gpu::pci_address).into());
    put("chip", gpu.and_then(Gpu::chip).into());
    put("uuid", gpu.and_then(Gpu::uuid_text).into());
    put("token", c.token.into());
    put("chid", c.chid().into());
    put("runlist", c.runlist().into());
    put("class", c.class.into());
    put("class_name", c.class.map(names::class).into());
    put("client", c.object.map(|o| o.client).into());
    put("handle", c.object.map(|o| o.handle).into());
    put("tsg", c.tsg.into());
    put("context_share", c.context_share.into());
    put("engines", engines(c, live).into());
    put("objects", bound.into());
    put("ring", c.ring.map(|r| r.0).into());
    put("ring_gpu", c.ring_gpu.map(|r| r.0).into());
    put("entries", c.entries.into());
    put("userd", c.userd.map(|u| u.0).into());
    put("token_at", c.token_at.map(|t| t.0).into());
    put("gp_get", live.gp_get.or(c.gp_get).into());
    put("gp_put", live.gp_put.or(c.gp_put).into());
    put("submissions", live.submissions.into());
    put(
        "use",
        Some(use_by(model, c, live)).filter(|u| *u != "?").into(),
    );
    put("origin", c.origin.name().into());
    object.into()
}

/// A size in bytes as people write it: `56 MiB`, `64 KiB`, `2608 B`.
#[must_use]
pub(crate) fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Describes a mapping, in words.
#[must_use]
pub fn explain(mapping: &MappingView) -> String {
    match mapping.what {
        // nvidia.ko maps BARs from a GPU's own file and system memory from the control file, never the other way.
        MappingWhat::Unknown if mapping.found => match mapping.device {
            Device::Gpu(_) => "video memory or registers (there before the trace)".into(),
            Device::Control => "system memory for the GPU (there before the trace)".into(),
            _ => "there before the trace".into(),
        },
        MappingWhat::Unknown => "unknown".into(),
        MappingWhat::Doorbell { object, bar1 } => {
            let way = match bar1 {
                Some(true) => " through BAR1",
                Some(false) => " through BAR0",
                None => "",
            };
            match object {
                Some(o) => format!("doorbell page{way} (object {:#x})", o.handle),
                None => format!("doorbell page{way} (by its shape)"),
            }
        }
        MappingWhat::Channel(id) => format!("control page of channel {}", id.0),
        MappingWhat::Uvm => "managed memory or semaphores (UVM)".into(),
        MappingWhat::Memory {
            object,
            class,
            offset,
            size: whole,
            aperture,
            caching,
        } => {
            let mut text = String::from(match aperture {
                Some(Aperture::Video) => "video memory",
                Some(Aperture::System) => "system memory",
                Some(Aperture::Registers) => "registers",
                None => "memory",
            });
            match caching {
                Some(Caching::WriteCombine) => text.push_str(", write-combined"),
                Some(Caching::Uncached) => text.push_str(", uncached"),
                _ => {}
            }
            let _ = write!(text, " (object {:#x}", object.handle);
            if class != 0 {
                let _ = write!(text, " {}", names::class(class));
            }
            if let Some(whole) = whole.filter(|w| *w != mapping.len) {
                let _ = write!(text, " of {}", size(whole));
            }
            if offset != 0 {
                let _ = write!(text, " from {offset:#x}");
            }
            text.push(')');
            text
        }
    }
}

fn use_of(mapping: &MappingView) -> String {
    let mut text = match mapping.channels.len() {
        0 => String::new(),
        1 => "; ring or USERD of 1 channel".into(),
        n => format!("; rings or USERD of {n} channels"),
    };
    if mapping.rung != 0 {
        let _ = write!(text, "; rung {}", plural(mapping.rung, "time"));
    }
    text
}

fn device(device: Device) -> String {
    match device {
        Device::Control => "/dev/nvidiactl".into(),
        Device::Gpu(minor) => format!("/dev/nvidia{minor}"),
        Device::Uvm => "/dev/nvidia-uvm".into(),
        Device::MEMORY => "shared memory".into(),
        Device::RESERVED => "reserved addresses".into(),
        Device::Other(major, minor) => format!("{major}:{minor}"),
    }
}

/// The mappings of a process, each explained on a line, and a line of sums.
#[must_use]
pub fn maps_table(model: &Model, pid: u32) -> String {
    let maps = model.mappings(pid);
    let rows = maps
        .iter()
        .map(|m| {
            vec![
                format!("{:#x}", m.start.0),
                size(m.len),
                format!(
                    "{}{}",
                    if m.read { 'r' } else { '-' },
                    if m.write { 'w' } else { '-' }
                ),
                device(m.device),
                match m.gpu {
                    Some(gpu) if gpu.0 == m.start.0 => "same".into(),
                    Some(gpu) => format!("{gpu}"),
                    None => "?".into(),
                },
                format!("{}{}", explain(m), use_of(m)),
            ]
        })
        .collect();
    let mut text = columns(
        &["address", "size", "", "file", "GPU address", "what"],
        rows,
    );
    let total = maps.iter().fold(0u64, |n, m| n.saturating_add(m.len));
    let _ = writeln!(
        text,
        "  {}, {total} bytes",
        plural(maps.len() as u64, "mapping")
    );
    text
}

/// The mappings of a process as an array of objects.
#[must_use]
pub fn maps_json(model: &Model, pid: u32) -> Json {
    model
        .mappings(pid)
        .iter()
        .map(|m| {
            let (object, class) = match m.what {
                MappingWhat::Memory { object, class, .. } => (Some(object), Some(class)),
                MappingWhat::Doorbell { object, .. } => (object, None),
                _ => (None, None),
            };
            json!({
                "pid": known_pid(pid),
                "start": m.start.0,
                "len": m.len,
                "read": m.read,
                "write": m.write,
                "device": device(m.device),
                "found": m.found,
                "gpu_address": m.gpu.map(|g| g.0),
                "client": object.map(|o| o.client),
                "object": object.map(|o| o.handle),
                "class": class.filter(|c| *c != 0),
                "what": explain(m),
                "channels": m.channels.iter().map(|c| c.0).collect::<Vec<_>>(),
                "rung": m.rung,
            })
        })
        .collect()
}
