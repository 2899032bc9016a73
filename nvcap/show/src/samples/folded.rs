//! Samples as flame graph programs read them: `server;main;step;attention(float const*);+0x130;long_scoreboard 4711`, one line for each instruction
//! and stall reason.

use std::collections::{BTreeMap, HashMap};
use std::io;

use nvcap_decode::decode::event::{Body, Event, LaunchKind, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Kernel, Record};
use nvcap_decode::samples::{Counter, reason};
use nvcap_decode::wire::GpuVa;

use super::{ContextSums, kernel_at};
use crate::output::fold::{push, write_sum};
use crate::output::kernel_name::demangled;
use crate::output::stack::word_of;
use crate::output::{Detail, Sink};

/// The most kernels whose callers are kept.
const MOST: usize = 1 << 16;

/// Frame below a kernel that is launched from several places: the frames above it are those that all of them share.
const SEVERAL: &str = "[several places]";

/// Callers of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Callers {
    /// Frames that all launches share, the outermost first.
    frames: Vec<String>,
    /// True if two launches had other frames behind these.
    differ: bool,
}

/// Stacks of a trace's launches by kernel: a sink.
#[derive(Debug, Default)]
pub struct Places {
    by_kernel: HashMap<(u32, GpuVa), Callers>,
}

impl Places {
    /// Takes the stack of a launch, its frames from the outermost on.
    fn add(&mut self, pid: u32, program: GpuVa, frames: Vec<String>) {
        let room = self.by_kernel.len() < MOST;
        let key = (pid, program);
        let Some(known) = self.by_kernel.get_mut(&key) else {
            if room {
                let callers = Callers {
                    frames,
                    differ: false,
                };
                self.by_kernel.insert(key, callers);
            }
            return;
        };
        if known.frames == frames {
            return;
        }
        let shared = known.frames.iter().zip(&frames);
        let shared = shared.take_while(|(a, b)| a == b).count();
        known.frames.truncate(shared);
        known.differ = true;
    }

    /// The frames above a kernel: none where no launch of it had a stack, as in a graph's replay.
    fn frames(&self, pid: u32, program: GpuVa) -> impl Iterator<Item = &str> {
        let callers = self.by_kernel.get(&(pid, program)).into_iter();
        callers.flat_map(|c| {
            let several = c.differ.then_some(SEVERAL);
            c.frames.iter().map(String::as_str).chain(several)
        })
    }
}

impl Sink for Places {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if let Body::Operation(Operation::Launch(launch)) = &event.body
            && launch.kind == LaunchKind::User
            && let (Some(program), Some(calls)) = (launch.program, &event.context.stack)
        {
            let frames = calls.frames.iter().rev().map(word_of).collect();
            self.add(event.context.at.pid, program, frames);
        }
        Ok(())
    }

    fn record(&mut self, _: &Record, _: &Model) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

/// Numbers of samples by process, callers, kernel, instruction and stall reason.
#[derive(Debug, Default)]
pub struct Folded {
    sums: BTreeMap<String, u64>,
}

impl Folded {
    /// Adds the samples of a context, whose process has this name; `kernels` are in the order of addresses.
    pub fn add(&mut self, name: &str, sums: &ContextSums, kernels: &[Kernel], places: &Places) {
        let mut process = String::new();
        push(&mut process, name);
        for (pc, counter) in &sums.counters {
            let mut line = process.clone();
            match kernel_at(kernels, *pc) {
                Some(kernel) => {
                    for frame in places.frames(sums.key.pid, kernel.program) {
                        push(&mut line, frame);
                    }
                    let doubt = if kernel.certain { "" } else { " (?)" };
                    push(&mut line, &format!("{}{doubt}", demangled(&kernel.name)));
                    push(&mut line, &format!("{:+#x}", pc - kernel.program.0));
                }
                None => {
                    push(&mut line, "[in no known kernel]");
                    push(&mut line, &format!("{pc:#x}"));
                }
            }
            self.reasons(&line, counter);
        }
        if sums.others > 0 {
            push(&mut process, "[not kept one by one]");
            *self.sums.entry(process).or_default() += sums.others;
        }
    }

    /// Adds the samples of an instruction by their reasons; those without a reason are the instruction's own.
    fn reasons(&mut self, line: &str, counter: &Counter) {
        let mut left = counter.samples;
        for (number, samples) in (0u8..).zip(counter.reasons) {
            let samples = u64::from(samples).min(left);
            if samples == 0 {
                continue;
            }
            left -= samples;
            let mut line = line.to_owned();
            match reason(number) {
                Some(name) => push(&mut line, name),
                None => push(&mut line, &format!("raw {number}")),
            }
            *self.sums.entry(line).or_default() += samples;
        }
        if left > 0 {
            *self.sums.entry(line.to_owned()).or_default() += left;
        }
    }

    /// Appends the sums, one line each, in the order of the lines.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (line, samples) in &self.sums {
            write_sum(line, *samples, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::ContextKey;
    use nvcap_decode::record::At;

    fn counter(samples: u64, reasons: &[(usize, u32)]) -> Counter {
        let mut counter = Counter {
            samples,
            ..Counter::default()
        };
        for (raw, count) in reasons {
            counter.reasons[*raw] = *count;
        }
        counter
    }

    fn frames(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn every_sample_is_in_one_line() {
        let key = ContextKey {
            pid: 7,
            gpu: Some(0),
            client: 1,
            group: 2,
        };
        let mut sums = ContextSums::new(key);
        sums.others = 5;
        for (pc, counter) in [
            (0x1010, counter(10, &[(8, 4), (10, 6)])),
            (0x1020, counter(3, &[(8, 1)])),
            (0x2000, counter(2, &[(8, 9)])),
            (0x9_0000_0000, counter(1, &[])),
        ] {
            sums.counters.insert(pc, counter);
        }
        let kernel = |program, name: &str| Kernel {
            certain: true,
            bytes: Some(0x100),
            ..Kernel::called(At::of_process(1, 7), program, name)
        };
        let kernels = [kernel(0x1000, "_Z1fi"), kernel(0x2000, "g;h")];
        let mut places = Places::default();
        places.add(7, GpuVa(0x1000), frames("main step launch"));
        places.add(7, GpuVa(0x1000), frames("main step launch"));
        places.add(7, GpuVa(0x2000), frames("main step a"));
        places.add(7, GpuVa(0x2000), frames("main step b"));
        places.add(8, GpuVa(0x1000), frames("another process"));
        let mut folded = Folded::default();
        folded.add("a server", &sums, &kernels, &places);
        let mut out = Vec::new();
        folded.write(&mut out);
        let wait = reason(8).unwrap();
        let long = reason(10).unwrap();
        let mut wanted = [
            format!("a server;main;step;launch;f(int);+0x10;{wait} 4\n"),
            format!("a server;main;step;launch;f(int);+0x10;{long} 6\n"),
            format!("a server;main;step;launch;f(int);+0x20;{wait} 1\n"),
            "a server;main;step;launch;f(int);+0x20 2\n".to_owned(),
            format!("a server;main;step;[several places];g:h;+0x0;{wait} 2\n"),
            "a server;[in no known kernel];0x900000000 1\n".to_owned(),
            "a server;[not kept one by one] 5\n".to_owned(),
        ];
        wanted.sort_by(|a, b| a.rsplit_once(' ').cmp(&b.rsplit_once(' ')));
        assert_eq!(String::from_utf8(out).unwrap(), wanted.concat());
        // Another context of the process adds to the same lines.
        folded.add("a server", &sums, &kernels, &places);
        let all: u64 = folded.sums.values().sum();
        assert_eq!(all, 2 * sums.samples());
    }

    #[test]
    fn callers_are_the_frames_that_all_launches_share() {
        let mut places = Places::default();
        let of = |places: &Places| -> Vec<String> {
            places.frames(1, GpuVa(2)).map(str::to_owned).collect()
        };
        assert!(of(&places).is_empty());
        for (stack, wanted) in [
            ("a b c", "a b c"),
            ("a b d", "a b [several places]"),
            ("a b", "a b [several places]"),
            ("e", "[several places]"),
            ("e", "[several places]"),
        ] {
            places.add(1, GpuVa(2), frames(stack));
            assert_eq!(of(&places).join(" "), wanted);
        }
    }
}
