//! Names, categories and arguments of events, in the words that PyTorch's profiler (Kineto) has for them.

use std::fmt::Write as _;

use crate::export::works::{Kind, Work};
use crate::output::names::known_engine;
use nvcap_decode::decode::event::Direction;

/// The category of a work.
pub(super) fn category(kind: Kind) -> &'static str {
    match kind {
        Kind::Kernel | Kind::Graph => "kernel",
        Kind::Copy(_) => "gpu_memcpy",
        Kind::Memset => "gpu_memset",
    }
}

/// The name of a work. Copies and memsets have the names that readers know them by; the kind of memory of a host is not known.
pub(super) fn name(work: &Work) -> String {
    match work.kind {
        Kind::Kernel | Kind::Graph => work.text.clone(),
        Kind::Memset => "Memset (Device)".to_owned(),
        Kind::Copy(Some(direction)) => copy(direction).to_owned(),
        Kind::Copy(None) if work.works > 1 => format!("Memcpy ({})", work.text),
        Kind::Copy(None) => "Memcpy Unknown (Unknown -> Unknown)".to_owned(),
    }
}

fn copy(direction: Direction) -> &'static str {
    match direction {
        Direction::HostToDevice => "Memcpy HtoD (Unknown -> Device)",
        Direction::DeviceToHost => "Memcpy DtoH (Device -> Unknown)",
        Direction::DeviceToDevice => "Memcpy DtoD (Device -> Device)",
        Direction::HostToHost => "Memcpy HtoH (Unknown -> Unknown)",
        Direction::PeerToPeer => "Memcpy PtoP (Device -> Device)",
        Direction::HostToArray => "Memcpy HtoA (Unknown -> Array)",
        Direction::ArrayToHost => "Memcpy AtoH (Array -> Unknown)",
        Direction::DeviceToArray => "Memcpy DtoA (Device -> Array)",
        Direction::ArrayToDevice => "Memcpy AtoD (Array -> Device)",
        Direction::ArrayToArray => "Memcpy AtoA (Array -> Array)",
    }
}

/// The category of a call of CUDA; a doorbell of which the call is not known has one of its own.
pub(super) fn category_of_call(api: Option<&str>) -> &'static str {
    match api {
        Some(api) if api.starts_with("cuda") => "cuda_runtime",
        Some(_) => "cuda_driver",
        None => "doorbell",
    }
}

/// Returns the number that stands for a channel where a stream's is expected; never 0, which would be taken for none.
pub(super) fn stream(work: &Work) -> u64 {
    u64::from(work.channel.0) + 1
}

/// The name of a channel's track.
pub(super) fn stream_name(work: &Work) -> String {
    let channel = work.channel.0;
    match known_engine(work.engine) {
        Some(engine) => format!("stream {} (channel {channel}, {engine})", stream(work)),
        None => format!("stream {} (channel {channel})", stream(work)),
    }
}

/// Returns the number that connects a work with the call that submitted it; never 0, which would be taken for none.
pub(super) fn correlation(work: &Work) -> u64 {
    work.serial + 1
}

/// Members of a JSON object.
pub(super) struct Members(String);

impl Members {
    pub(super) fn new() -> Self {
        Self(String::new())
    }

    /// Adds a member of which the value is written as it is.
    pub(super) fn raw(&mut self, name: &str, value: impl std::fmt::Display) {
        let comma = if self.0.is_empty() { "" } else { ", " };
        let _ = write!(self.0, "{comma}\"{name}\": {value}");
    }

    /// Adds a member if its value is known.
    pub(super) fn known(&mut self, name: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.raw(name, value);
        }
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.raw(name, quoted(value));
    }

    /// The object.
    pub(super) fn object(&self) -> String {
        format!("{{{}}}", self.0)
    }
}

/// A text as JSON has it.
pub(super) fn quoted(text: &str) -> String {
    crate::output::json::text_of(text)
}

/// A time as microseconds.
pub(super) fn us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// The arguments of a work.
pub(super) fn arguments(work: &Work) -> Members {
    let mut args = Members::new();
    args.known("device", work.gpu);
    args.raw("stream", stream(work));
    args.raw("correlation", correlation(work));
    let all = |[x, y, z]: [u32; 3]| format!("[{x}, {y}, {z}]");
    if let Some(shape) = &work.shape
        && work.kind == Kind::Kernel
    {
        args.known("registers per thread", shape.registers);
        args.known("shared memory", shape.shared_bytes);
        args.known("grid", shape.grid.map(all));
        args.known("block", shape.block.map(all));
    }
    if matches!(work.kind, Kind::Copy(_) | Kind::Memset) {
        args.raw("bytes", work.bytes);
        if let Some(times) = work.times.filter(|t| t.duration > 0) {
            let rate = work.bytes as f64 / times.duration as f64;
            args.raw("memory bandwidth (GB/s)", rate);
        }
    }
    if let Some(replay) = work.replay {
        args.raw("graph nodes", replay.nodes);
        args.raw("graph kernels", replay.kernels);
        args.raw("graph memsets", replay.memsets);
        args.raw("graph copies", replay.copies);
    }
    args.raw("channel", work.channel.0);
    if let Some(engine) = known_engine(work.engine) {
        args.text("engine", &engine);
    }
    args.raw("submission", work.serial);
    if work.works > 1 {
        args.raw("works", work.works);
    }
    if let Some(part_of) = work.part_of {
        args.text("part of", part_of.name());
    }
    if let Some(times) = work.times {
        args.raw("begin_error_ns", times.begin_error);
        args.raw("duration_error_ns", times.duration_error);
    }
    args
}
