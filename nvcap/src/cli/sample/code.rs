//! `--code`: the code of kernels, with the samples beside each instruction.

use std::collections::BTreeMap;

use nvcap_decode::record::Kernel;
use nvcap_decode::samples::Counter;
use nvcap_live::enrich::{cubins, names};
use nvcap_process::procfs;
use nvcap_show::code::choose::{chosen, is_meant};
use nvcap_show::code::images::CodeImages;
use nvcap_show::code::listing::Listing;
use nvcap_show::output::kernel_name::demangled;
use nvcap_show::output::message::tell;
use nvcap_show::samples::{kernel_at, share};
use serde_json::{Value, json};

use super::table::{self, Listed};
use super::turns::Subject;
use crate::cli::code::{code_of, plain, said_of};

/// The most kernels that are listed: those with the most samples.
const MOST: usize = 8;

/// Samples of a kernel's instructions by their offset, and their sum.
type Samples = (BTreeMap<u64, Counter>, Counter);

/// Returns the listings of the kernels that `what` means (a name, a pattern or a program's address), those with the most samples first.
pub(super) fn listed(subject: &Subject, what: &str) -> Vec<Listed> {
    let mut kernels: Vec<(&Kernel, Samples)> = Vec::new();
    let known = subject.kernels.of(subject.pid);
    for (pc, counter) in &subject.sums.counters {
        let Some(kernel) = kernel_at(known, *pc) else {
            continue;
        };
        if !is_meant(what, &kernel.name) && what != kernel.program.to_string() {
            continue;
        }
        if kernels
            .last()
            .is_none_or(|(last, _)| last.program != kernel.program)
        {
            kernels.push((kernel, Samples::default()));
        }
        if let Some((_, (instructions, all))) = kernels.last_mut() {
            instructions.insert(pc - kernel.program.0, *counter);
            all.join(counter);
        }
    }
    if kernels.is_empty() {
        tell(format_args!(
            "process {}: no sample lies in a kernel that is named {what} ('*' stands for any text)",
            subject.pid
        ));
    }
    kernels.sort_by_key(|(kernel, (_, all))| (std::cmp::Reverse(all.samples), kernel.program));
    if kernels.len() > MOST {
        tell(format_args!(
            "process {}: {} kernels with samples are named {what}: those with the most are listed, {MOST}",
            subject.pid,
            kernels.len()
        ));
        kernels.truncate(MOST);
    }
    if !kernels.is_empty() && procfs::has_ended(subject.pid) {
        tell(format_args!(
            "the code of process {} is not listed: it has ended",
            subject.pid
        ));
        return Vec::new();
    }
    let listing = |(kernel, samples): &(&Kernel, Samples)| {
        let listed = one(subject.pid, kernel, samples);
        if listed.is_none() {
            tell(format_args!(
                "the code of {} is not listed: no image with it is in the memory of process {}",
                demangled(&kernel.name),
                subject.pid
            ));
        }
        listed
    };
    kernels.iter().filter_map(listing).collect()
}

fn one(pid: u32, kernel: &Kernel, samples: &Samples) -> Option<Listed> {
    let (_, at) = names::of_program(pid, kernel.program, &[]).ok()??;
    let (memory, mut images) = cubins::of(pid).ok()?;
    if let Some(at) = at {
        images.retain(|image| image.at == at);
    }
    let held = CodeImages::of_memory(&memory, images, None);
    let choice = *chosen(&held.images, &kernel.name).first()?;
    let code = code_of(&held, &choice)?;
    let said = said_of(&held, &choice, &code);
    let listing = Listing {
        function: Some((choice.image, choice.function)),
        named: Some(kernel),
        address: Some(kernel.program.0),
        sm: Some(choice.image.sm),
        code: &code,
        said,
    };
    Some(Listed {
        program: kernel.program,
        text: plain(&listing.text_with(HEAD, &|offset| margin(samples, offset))),
        json: with_samples(listing.json(), samples),
    })
}

/// Line above the instructions, as wide as [`margin`].
const HEAD: &str = "    SAMPLES  OF KERNEL  NO ISSUE  STALL                       INSTRUCTION\n";

/// Returns the text in front of an instruction.
fn margin((instructions, all): &Samples, offset: u64) -> String {
    let Some(counter) = instructions.get(&offset) else {
        return format!("{:60}", "");
    };
    format!(
        "{:>11} {:>8.2} % {:>7.1} %  {:<26}",
        counter.samples,
        100.0 * share(counter.samples, all.samples),
        100.0 * share(counter.not_issued, counter.samples),
        table::stall(counter),
    )
}

/// Returns the instructions of a listing, with the samples of each that has any.
fn with_samples(mut listing: Value, (samples, all): &Samples) -> Value {
    let instructions = listing
        .get_mut("instructions")
        .and_then(Value::as_array_mut);
    for instruction in instructions.into_iter().flatten() {
        let offset = instruction.get("offset").and_then(Value::as_u64);
        let Some(counter) = offset.and_then(|offset| samples.get(&offset)) else {
            instruction["samples"] = json!(0);
            continue;
        };
        instruction["samples"] = json!(counter.samples);
        instruction["share"] = json!(share(counter.samples, all.samples));
        instruction["not_issued"] = json!(counter.not_issued);
        instruction["stall_reasons"] = table::reasons(counter);
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_of_an_instruction_is_as_wide_as_without_samples() {
        let mut counter = Counter {
            samples: 25,
            not_issued: 5,
            ..Counter::default()
        };
        counter.reasons[10] = 20;
        let all = Counter {
            samples: 100,
            ..Counter::default()
        };
        let samples = (BTreeMap::from([(16, counter)]), all);
        let with = margin(&samples, 16);
        assert_eq!(
            with,
            "         25    25.00 %    20.0 %  long_scoreboard 80 %      "
        );
        assert_eq!(with.len(), margin(&samples, 32).len());
        assert_eq!(HEAD.find("INSTRUCTION"), Some(with.len() + 2));
        let listing = json!({"instructions": [{"offset": 0}, {"offset": 16}]});
        let listed = with_samples(listing, &samples);
        assert_eq!(listed["instructions"][0]["samples"], 0);
        assert_eq!(listed["instructions"][1]["share"], 0.25);
    }
}
