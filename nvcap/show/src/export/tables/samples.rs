//! The columns of samples of program counters.

use nvcap_decode::samples::{Counter, reason};

use super::schema::{Column, column_list};
use crate::output::kernel_name::demangled;
use crate::output::names::known_pid;

/// The most frequent stall reason of a counter, with its samples: by CUPTI's name, else by the hardware's number.
fn stall(counter: &Counter) -> Option<(String, u64)> {
    let reasons = (0u8..).zip(counter.reasons);
    // The least number of several.
    let (number, samples) = reasons.max_by_key(|(n, samples)| (*samples, std::cmp::Reverse(*n)))?;
    let name = reason(number).map_or_else(|| format!("raw {number}"), str::to_owned);
    (samples > 0).then(|| (name, samples.into()))
}

/// Samples of program counters.
pub(super) const SAMPLES: &[Column] = column_list!(Samples(s) {
    from_ns: Int required "ns" Sampler, "begin of the window, CLOCK_MONOTONIC" => s.window.from_ns;
    time_ns: Int optional "ns" Sampler, "its end" => s.window.at.time();
    pid: Int optional "" Sampler, "the process" => known_pid(s.window.at.pid);
    gpu: Int optional "" Sampler, "N of /dev/nvidiaN" => s.window.gpu;
    client: Int required "" Sampler, "the handle of the process's client of the driver" => s.window.client;
    channel_group: Int required "" Sampler, "the handle of the context's channel group" => s.window.group;
    period_log2: Int optional "cycles" Sampler, "cycles between two samples of an SM, as their logarithm" => s.window.period;
    pc: Unsigned optional "" Sampler, "address of the instruction; none for those for which there was no room" => s.pc;
    kernel: Text optional "" Names, "the kernel, demangled; none in no known kernel" => s.kernel.map(|k| demangled(&k.name));
    kernel_mangled: Text optional "" Names, "its name as the compiler wrote it" => s.kernel.map(|k| k.name.as_str());
    program: Unsigned optional "" Names, "address of the kernel's first instruction" => s.kernel.map(|k| k.program);
    offset: Int optional "bytes" Names, "of the instruction from there" => s.kernel.zip(s.pc).map(|(k, pc)| pc.saturating_sub(k.program.0));
    samples: Int required "" Sampler, "samples there in the window" => s.counter.samples;
    not_issued: Int required "" Sampler, "of them those in whose cycle the scheduler issued no instruction" => s.counter.not_issued;
    stall: Text optional "" Sampler, "the most frequent reason for which warps did not go on, by CUPTI's name; raw N where that is not known" => stall(s.counter).map(|s| s.0);
    stall_samples: Int optional "" Sampler, "the samples with it" => stall(s.counter).map(|s| s.1);
});
