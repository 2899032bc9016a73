//! The columns of faults.

use crate::output::fault::{cause, in_short};
use crate::output::names::known_pid;
use nvcap_decode::hang::xid;

use super::schema::{Column, column_list};

/// Faults of the GPU.
pub(super) const FAULT: &[Column] = column_list!(Fault(f) {
    time_ns: Int optional "ns" Fault, "when it was noticed, CLOCK_MONOTONIC" => f.fault.at.time();
    pid: Int optional "" Fault, "the process" => known_pid(f.fault.at.pid);
    gpu: Int optional "" Driver, "N of /dev/nvidiaN" => f.gpu;
    channel: Int optional "" Driver, "the channel that was stopped" => f.fault.channel.map(|c| c.0);
    channel_assumed: Bool required "" Driver, "the channel is concluded from the order in which channels and error notifiers are made, not known" => f.fault.assumed;
    token: Int optional "" Driver, "the channel's work-submit token" => f.fault.token;
    stopped_with: Int required "" Driver, "other channels that were stopped for the same error" => f.fault.group.len() as u64;
    told_by: Text required "" Fault, "notifier (in the process's memory), kernel log, or both" => f.fault.source.name();
    xid: Int required "" Fault, "the number of NVIDIA's Xid" => f.fault.code;
    meaning: Text required "" Fault, "the number in words" => xid::meaning(f.fault.code);
    text: Text required "" Fault, "the fault in a few words, with all work that may be meant" => in_short(f.fault);
    cause: Text optional "" Ring, "the kernel that had not ended, or `a copy`; none where other work may be meant, too" => cause(f.fault);
    suspects: Int required "" Ring, "pieces of work that had not ended" => f.fault.suspects.len() as u64;
    only_these: Bool required "" Ring, "no other work can have caused it: all rings that may be meant were read and understood" => f.fault.only_these;
    page: Unsigned optional "" Fault, "address of the page that could not be accessed" => f.access.as_ref().map(|a| a.page);
    access: Text optional "" Fault, "what was tried: read, write, ..." => f.access.as_ref().map(|a| a.kind.name());
    reason: Text optional "" Fault, "why it could not be accessed" => f.access.as_ref().map(|a| a.reason.clone());
    memory: Unsigned optional "" Driver, "first address of the memory at that page, or nearest to it" => f.fault.memory.map(|m| m.start);
    memory_bytes: Int optional "bytes" Driver, "its size" => f.fault.memory.map(|m| m.bytes);
    memory_freed_ns: Int optional "ns" Driver, "when it was freed; none where the process had it" => f.fault.memory.and_then(|m| m.freed_ns);
    exception: Text optional "" Fault, "an exception of an SM, in the kernel log's words" => f.fault.message.as_ref().and_then(|m| m.exception());
    message: Text optional "" Fault, "the kernel log's line" => f.fault.message.as_ref().map(|m| m.text.as_str());
});
