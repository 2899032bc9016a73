//! The programs that a submission may launch, before it is decoded: QMDs that its commands write, and code that they write
//! before. Memory that they copy to has other code from then on.
//!
//! A launch names a QMD that was written by an inline write, in the same submission or earlier; libcuda writes QMDs of graphs
//! when a graph is made or uploaded. So a program's address is known here at its first doorbell, and its name can be looked
//! for while the submission waits for its turn.

use std::collections::BTreeMap;

use super::copies;
use nvcap_decode::decode::{qmd_copy, view::View};
use nvcap_decode::record::Submission;

/// The most words of an inline write that is looked at: code of one function, or a QMD.
const MOST_WORDS: u16 = 0x1fff;
/// The most bytes of code kept of a process, the oldest go first.
const MOST_CODE: usize = 8 << 20;
/// Code lies at a multiple of this.
const CODE_ALIGNED: u64 = 128;
/// The shortest code: one block of instructions.
const LEAST_CODE: usize = 128;
/// Compute classes with different layouts of QMDs, tried where the chip is not known.
const CLASSES: [u32; 4] = [0xcbc0, 0xcdc0, 0xc6c0, 0xc3c0];

/// A program that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct New {
    pub(super) address: u64,
    /// Registers of its launch; not known of a program that another stands in for.
    pub(super) registers: Option<u32>,
    pub(super) code: Option<Vec<u8>>,
}

impl New {
    /// The program that a kernel's QMD names.
    fn named(view: &View) -> Self {
        Self {
            address: view.program.0,
            registers: Some(view.registers),
            code: None,
        }
    }
}

/// Evidence for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// A QMD names it.
    Name,
    /// A QMD that names another has it fetched beforehand.
    Prefetch,
}

/// Known programs of one process.
#[derive(Debug, Default)]
pub(super) struct Programs {
    known: BTreeMap<u64, By>,
    /// Code by address, with its number.
    code: BTreeMap<u64, (u64, Vec<u8>)>,
    code_bytes: usize,
    written: u64,
}

impl Programs {
    /// The programs that a submission names for the first time, or since their code was written again. `class` is the
    /// compute class of the GPU, if known.
    pub(super) fn of(&mut self, submission: &Submission, class: Option<u32>) -> Vec<New> {
        let mut new = Vec::new();
        for segment in &submission.segments {
            for (address, bytes) in copies::copies(&segment.bytes) {
                self.forget(address.0, bytes);
            }
            for upload in qmd_copy::uploads(&segment.bytes, MOST_WORDS) {
                if let Some(view) = kernel(class, upload.data) {
                    self.of_kernel(&view, &mut new);
                } else if upload.data.len() >= LEAST_CODE
                    && upload.address.0.is_multiple_of(CODE_ALIGNED)
                {
                    self.write(upload.address.0, upload.data);
                }
            }
        }
        for new in &mut new {
            new.code = self.code.get(&new.address).map(|(_, code)| code.clone());
        }
        new
    }

    /// The program named by a QMD that was found in the process's memory, if it is new.
    pub(super) fn of_image(&mut self, bytes: &[u8], class: Option<u32>) -> Option<New> {
        let view = kernel(class, bytes)?;
        self.name(&view).then(|| New::named(&view))
    }

    /// Takes in that a kernel's QMD names its program; true if that is new.
    fn name(&mut self, view: &View) -> bool {
        self.known.insert(view.program.0, By::Name) != Some(By::Name)
    }

    /// Adds the new programs of a kernel: the one that its QMD names, and the one that it fetches beforehand where that is another. Under
    /// CUPTI a program of CUPTI's own stands in for each kernel's, and has registers of its own (docs/names.md); in a graph the program
    /// of another kernel may be fetched, which is named later.
    fn of_kernel(&mut self, view: &View, new: &mut Vec<New>) {
        let program = view.program.0;
        if self.name(view) {
            new.retain(|n| n.address != program);
            new.push(New::named(view));
        }
        let fetched = view.prefetch.0;
        if fetched > 0xffff && fetched != program & !0xff && !self.known.contains_key(&fetched) {
            self.known.insert(fetched, By::Prefetch);
            new.push(New {
                address: fetched,
                registers: None,
                code: None,
            });
        }
    }

    /// Memory that is written with what is not seen: modules are uploaded by the copy engine.
    fn forget(&mut self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        let gone: Vec<u64> = self.known.range(at..end).map(|(at, _)| *at).collect();
        for program in gone {
            self.known.remove(&program);
        }
        let gone: Vec<u64> = self.code.range(at..end).map(|(at, _)| *at).collect();
        for at in gone {
            if let Some((_, code)) = self.code.remove(&at) {
                self.code_bytes -= code.len();
            }
        }
    }

    /// Data that may be code.
    fn write(&mut self, at: u64, data: &[u8]) {
        // What was there is no more.
        self.known.remove(&at);
        self.written += 1;
        self.code_bytes += data.len();
        if let Some((_, old)) = self.code.insert(at, (self.written, data.to_vec())) {
            self.code_bytes -= old.len();
        }
        while self.code_bytes > MOST_CODE {
            let oldest = self.code.iter().min_by_key(|(_, (number, _))| *number);
            let Some(at) = oldest.map(|(at, _)| *at) else {
                return;
            };
            if let Some((_, old)) = self.code.remove(&at) {
                self.code_bytes -= old.len();
            }
        }
    }
}

/// The launch that the QMD of a kernel describes.
fn kernel(class: Option<u32>, bytes: &[u8]) -> Option<View> {
    let of = |class: u32| {
        if bytes.len() != qmd_copy::size(class) {
            return None;
        }
        let view = qmd_copy::node(class, bytes)?;
        (view.program.0 > 0xffff && !view.program_relative).then_some(view)
    };
    match class {
        Some(class) => of(class),
        None => CLASSES.into_iter().find_map(of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
    use nvcap_decode::record::{At, ChannelId, How};
    use nvcap_decode::wire::GpuVa;

    const CLASS: u32 = 0xcbc0;

    fn view(program: u64) -> View {
        View {
            version: (4, 0),
            grid: [1, 1, 1],
            block: [64, 1, 1],
            registers: 24,
            program: GpuVa(program),
            ..View::default()
        }
    }

    fn qmd(program: u64) -> Vec<u8> {
        Qmd::of(&view(program)).expect("a layout").bytes().to_vec()
    }

    fn submission(writes: &[(u64, &[u8])]) -> Submission {
        let mut p = Pushbuffer::new();
        for (at, data) in writes {
            p.inline(1, CLASS, GpuVa(*at), data).expect("inline data");
        }
        Submission {
            at: At::default(),
            channel: ChannelId(0),
            token: None,
            position: 0,
            gp_get: None,
            prev_put: 0,
            gp_put: 1,
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: None,
            segments: vec![p.segment(GpuVa(0x2_0080_0000))],
        }
    }

    #[test]
    fn a_program_is_new_once_and_again_with_new_code() {
        let mut programs = Programs::default();
        let (at, code) = (0x7f00_0000_0200, vec![0x18; 640]);
        for class in [Some(CLASS), None] {
            let new = programs.of(
                &submission(&[(at, &code), (0x2_04c0_0000, &qmd(at))]),
                class,
            );
            assert_eq!(
                new,
                [New {
                    address: at,
                    registers: Some(24),
                    code: Some(code.clone())
                }],
                "its code was written again"
            );
        }
        let again = submission(&[(0x2_04c0_0200, &qmd(at))]);
        assert_eq!(programs.of(&again, None), []);
        assert_eq!(programs.of_image(&qmd(at), Some(CLASS)), None);
        let other = programs.of_image(&qmd(at + 0x400), None).expect("new");
        assert_eq!((other.address, other.code), (at + 0x400, None));
    }

    #[test]
    fn the_program_that_another_stands_in_for_is_asked_for() {
        let (stand_in, own) = (0x7f00_0000_0200, 0x7f00_0100_0b00);
        let mut qmd = Qmd::of(&view(stand_in)).expect("a layout");
        let mut fetch = |at: u64| {
            for (name, value) in [
                ("PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED", at >> 8 & 0xffff_ffff),
                ("PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED", at >> 40),
            ] {
                qmd.set(name, 0, value).expect("a field");
            }
            qmd.bytes().to_vec()
        };
        let mut programs = Programs::default();
        let mut named = |bytes: &[u8]| -> Vec<(u64, Option<u32>)> {
            let new = programs.of(&submission(&[(0x2_04c0_0000, bytes)]), Some(CLASS));
            new.iter().map(|n| (n.address, n.registers)).collect()
        };
        assert_eq!(named(&fetch(stand_in)), [(stand_in, Some(24))]);
        assert_eq!(
            named(&fetch(own)),
            [(own, None)],
            "its registers are not known"
        );
        assert_eq!(named(&fetch(own)), []);
        assert_eq!(named(&fetch(0)), []);
        // A graph's kernel has the next one's program fetched: that is asked for again where it is named, with its registers.
        let named_too = self::qmd(own);
        assert_eq!(named(&named_too), [(own, Some(24))]);
        assert_eq!(named(&named_too), []);
        assert_eq!(named(&fetch(own)), []);
    }

    #[test]
    fn a_program_is_new_again_where_its_memory_was_copied_to() {
        let mut programs = Programs::default();
        let at = 0x7fcb_03c0_0000;
        let launch = submission(&[(0x2_04c0_0000, &qmd(at))]);
        let copy = |to: u64, bytes: u32| {
            let mut p = Pushbuffer::new();
            p.copy(4, 0xc8b5, GpuVa(0x7fcb_d260_0000), GpuVa(to), bytes)
                .expect("a copy class");
            let mut s = submission(&[]);
            s.segments = vec![p.segment(GpuVa(0x2_0080_0000))];
            s
        };
        assert_eq!(programs.of(&launch, Some(CLASS)).len(), 1);
        // Data that looks like a copy's commands is none.
        let s = copy(at, 64);
        let commands = s.segments[0].bytes.clone();
        assert_eq!(
            programs.of(&submission(&[(0x2_0600_0000, &commands)]), Some(CLASS)),
            []
        );
        assert_eq!(programs.of(&launch, Some(CLASS)), []);
        for (to, bytes, new) in [
            (at - 0x1000, 0x1000, 0),
            (at - 0x1000, 0x1001, 1),
            (at, 125_184, 1),
            (at + 1, 0x1000, 0),
        ] {
            assert_eq!(programs.of(&copy(to, bytes), Some(CLASS)), []);
            let found = programs.of(&launch, Some(CLASS));
            assert_eq!(found.len(), new, "{bytes} B to {to:#x}");
        }
    }

    #[test]
    fn kept_code_is_bounded() {
        let mut programs = Programs::default();
        for i in 0..(MOST_CODE / 16384 + 10) as u64 {
            programs.write(0x7f00_0000_0000 + i * 0x4000, &[7; 16384]);
        }
        assert!(programs.code_bytes <= MOST_CODE);
        assert!(!programs.code.contains_key(&0x7f00_0000_0000));
        let left: usize = programs.code.values().map(|(_, c)| c.len()).sum();
        assert_eq!(left, programs.code_bytes);
    }
}
