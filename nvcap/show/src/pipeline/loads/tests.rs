//! Entries as libcuda forms them, and what they are told to be a part of.

use super::*;
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::gpu_time::made_up::submission;
use nvcap_decode::record::CpuVa;
use nvcap_decode::record::{At, Channel, How, Kernel, Life, Origin, Process, QmdCopy, Variable};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::header::Step;

const TABLE: u64 = 0x7f7e_5ac7_4200;
const VARIABLE: u64 = 0x7f7e_5280_0200;
const BANK: u64 = 0x7f7e_5280_0000;
const CODE: u64 = 0x7f7e_5b7a_c200;
const OF_PROGRAM: u64 = 0x7f7e_4de0_0000;

/// Gives submissions one after the other, 10 us apart.
struct Bench {
    loads: Loads,
    time: u64,
    position: u64,
    taken: Vec<(Option<PartOf>, Option<Load>)>,
}

impl Bench {
    fn new() -> Self {
        Self {
            loads: Loads::default(),
            time: 1_000_000,
            position: 7,
            taken: Vec::new(),
        }
    }

    fn put(&mut self, channel: u32, form: impl FnOnce(&mut Pushbuffer)) {
        let mut words = Pushbuffer::new();
        form(&mut words);
        self.time += 10_000;
        self.position = self.position.wrapping_add(1);
        self.loads.put(Record::Submission(submission(
            ChannelId(channel),
            self.position,
            self.time,
            How::Trapped,
            &words,
        )));
        self.take();
    }

    fn take(&mut self) {
        while let Some(taken) = self.loads.take() {
            if matches!(taken.record, Record::Submission(_)) {
                let part = taken.parts.and_then(|p| p.first().copied().flatten());
                self.taken.push((part, taken.load));
            }
        }
    }

    /// An inline write with its release.
    fn write(&mut self, dst: u64, data: &[u8]) {
        self.put(0, |p| {
            write(p, dst, data);
            release(p);
        });
    }

    fn invalidate(&mut self, data: u32) {
        self.put(0, |p| {
            p.method(Step::Increment, 1, 0x1698, &[data]);
            release(p);
        });
    }

    fn launch(&mut self) {
        self.put(0, |p| {
            p.method(Step::Increment, 1, 0x2b4, &[0x204_e100]);
        });
    }

    fn module(&mut self) {
        self.write(VARIABLE, &[1; 28]);
        self.write(BANK, &[2; 412]);
        self.write(TABLE, &VARIABLE.to_le_bytes());
        self.invalidate(CONSTANT);
        let mut code = vec![0x18, 0x79];
        code.resize(896, 0);
        self.write(CODE, &code);
        self.invalidate(1);
        self.invalidate(CONSTANT);
    }

    /// Returns the part that each submission belongs to: `m` of a module, `c` of a context, `.` of the program.
    fn parts(&mut self) -> String {
        self.loads.idle(true);
        self.take();
        let name = |p: &Option<PartOf>| match p {
            None => '.',
            Some(PartOf::Module) => 'm',
            Some(PartOf::Context) => 'c',
        };
        self.taken.iter().map(|(part, _)| name(part)).collect()
    }

    fn ended(&self) -> Vec<&Load> {
        self.taken.iter().filter_map(|t| t.1.as_ref()).collect()
    }
}

const CONSTANT: u32 = 0x1000;

fn write(p: &mut Pushbuffer, dst: u64, data: &[u8]) {
    let words: Vec<u32> = data
        .chunks(4)
        .map(|c| c.iter().rev().fold(0, |w, b| w << 8 | u32::from(*b)))
        .collect();
    p.method(
        Step::Increment,
        1,
        0x180,
        &[data.len() as u32, 1, (dst >> 32) as u32, dst as u32],
    )
    .method(Step::Increment, 1, 0x1b0, &[0x41])
    .method(Step::Same, 1, 0x1b4, &words);
}

fn release(p: &mut Pushbuffer) {
    p.method(Step::Increment, 1, 0x1b00, &[2, 0x460_fff0, 5, 0]);
}

#[test]
fn a_module_that_is_loaded_is_one() {
    let mut b = Bench::new();
    b.module();
    b.launch();
    assert_eq!(b.parts(), "mmmmmmm.");
    assert_eq!(
        b.ended(),
        [&Load {
            part_of: PartOf::Module,
            entries: 7,
            code_bytes: 896,
            code_writes: 1,
            data_bytes: 28 + 412 + 8,
            data_writes: 3,
            variables: Some(1),
            constant_banks: Some(1),
            // Code without a function's end.
            functions: None,
            kernels: Vec::new(),
            symbols: Vec::new(),
        }]
    );
}

/// Code of functions that take so many instructions, each with the branch to itself behind it and NOPs to the next line.
fn functions(of: &[usize]) -> Vec<u8> {
    let instruction = |words: [u32; 4]| words.map(u32::to_le_bytes).concat();
    let mut code = Vec::new();
    for count in of {
        code.extend(instruction([0x0000_7a02, 1, 2, 3]).repeat(*count));
        code.extend(instruction([
            0x00fc_7947,
            0xffff_fffc,
            0x0383_ffff,
            0x000f_c000,
        ]));
        while code.len() % 128 > 0 {
            code.extend(instruction([0x7918, 0, 0, 0x000f_c000]));
        }
    }
    // As the driver fills up behind them.
    code.extend(instruction([0x7918, 0, 0, 0x000f_c000]).repeat(8));
    code.extend([0; 128]);
    code
}

#[test]
fn functions_of_a_module_are_counted_and_named() {
    let mut b = Bench::new();
    b.write(VARIABLE, &[1; 28]);
    b.write(TABLE, &VARIABLE.to_le_bytes());
    b.invalidate(CONSTANT);
    // The second fills its line: nothing is between it and the third.
    let code = functions(&[3, 7, 12]);
    b.write(CODE, &code);
    b.invalidate(1);
    let name = |b: &mut Bench, program, name: &str, certain| {
        let at = At::of_process(b.time, 7);
        let kernel = Kernel {
            certain,
            ..Kernel::called(at, program, name)
        };
        b.loads.name(&kernel);
    };
    name(&mut b, CODE + 128, "second", true);
    name(&mut b, CODE, "first", true);
    name(&mut b, CODE + 256, "a guess", false);
    name(&mut b, CODE + code.len() as u64, "another module's", true);
    b.launch();
    // The same code again, then other code.
    for code in [&code, &functions(&[4])] {
        b.write(CODE, code);
        b.invalidate(1);
        b.launch();
    }
    assert_eq!(b.parts(), "mmmmm.mm.mm.");
    let all = b.ended().into_iter();
    let all = all.map(|l| (l.functions, l.kernels.len()));
    assert_eq!(
        Vec::from_iter(all),
        [(Some(3), 2), (Some(3), 2), (Some(1), 0)]
    );
    let load = b.ended()[0];
    assert_eq!((load.variables, load.constant_banks), (Some(1), Some(0)));
    assert_eq!(load.functions, Some(3));
    assert_eq!(load.kernels, ["first", "second"]);
}

/// A module's variables come with the first of its functions that is loaded; the image of any of them has them all.
#[test]
fn variables_are_named_where_the_image_has_as_many_as_were_written() {
    let variables = |all: &[(&str, bool)]| {
        let one = |&(name, constant): &(&str, bool)| Variable {
            name: name.to_owned(),
            bytes: 28,
            constant,
        };
        all.iter().map(one).collect::<Vec<_>>()
    };
    let with_bank = [("v", false), ("c", true), ("d", true)];
    // Variables of the image; those that are written (a bank behind one); the names of the load.
    for (of_image, writes, certain, wanted) in [
        (&with_bank[..], "vb", true, &["v", "c", "d"][..]),
        (&with_bank, "vb", false, &[]),
        (&with_bank, "", true, &[]),
        // Another module's table: it has no bank, or another number of variables.
        (&with_bank, "v", true, &[]),
        (&[("v", false), ("w", false)], "v", true, &[]),
        (&[("c", true), ("v", false)], "vb", true, &["v", "c"]),
        // Without a variable there is no table.
        (&[("c", true)], "b", true, &["c"]),
        (&[("c", true)], "", true, &[]),
    ] {
        let mut b = Bench::new();
        if writes.contains('v') {
            b.write(VARIABLE, &[1; 28]);
        }
        if writes.contains('b') {
            b.write(BANK, &[2; 412]);
        }
        if writes.contains('v') {
            b.write(TABLE, &VARIABLE.to_le_bytes());
        }
        if !writes.is_empty() {
            b.invalidate(CONSTANT);
        }
        b.write(CODE, &functions(&[3]));
        b.invalidate(1);
        let at = At::of_process(b.time, 7);
        b.loads.name(&Kernel {
            certain,
            variables: variables(of_image),
            ..Kernel::called(at, CODE, "first")
        });
        b.launch();
        b.parts();
        let load = b.ended()[0];
        let names: Vec<&str> = load.symbols.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, wanted, "{of_image:?} {writes} {certain} {load:?}");
    }
}

/// However many variables names come with, so many are kept.
#[test]
fn variables_that_are_kept_are_bounded() {
    let mut named = Named::default();
    let variable = Variable::default();
    for time in 1..100 {
        named.write(named::Written {
            at: time * 0x1000..time * 0x1000 + 0x100,
            hash: None,
        });
        named.take(&Kernel {
            variables: vec![variable.clone(); 100],
            ..Kernel::called(At::of_process(time, 7), time * 0x1000, "f")
        });
        // The same again, in its place.
        named.take(&Kernel {
            variables: vec![variable.clone(); 10],
            ..Kernel::called(At::of_process(time, 7), time * 0x1000, "f")
        });
        named.take(&Kernel {
            variables: vec![variable.clone(); 100],
            ..Kernel::called(At::of_process(time, 7), time * 0x1000 + 0x80, "g")
        });
        named.until(time);
    }
    let kept = |named: &Named| {
        let of = |n: u64| {
            named
                .of(n * 0x1000)
                .map(|k| k.variables.len())
                .sum::<usize>()
        };
        (1..100).map(of).sum::<usize>()
    };
    assert!((3900..=4096).contains(&kept(&named)), "{}", kept(&named));
    // What other code takes the place of makes room.
    named.write(named::Written {
        at: 0..0x100_0000,
        hash: None,
    });
    assert_eq!(kept(&named), 0);
    named.take(&Kernel {
        variables: vec![variable; 4096],
        ..Kernel::called(At::of_process(200, 7), 0, "h")
    });
    named.until(200);
    assert_eq!(named.of(0).map(|k| k.variables.len()).sum::<usize>(), 4096);
}

/// Names of processes that are never seen, or have ended, are forgotten; a load that goes on is none the worse.
#[test]
fn names_of_very_many_processes_are_bounded() {
    let mut b = Bench::new();
    b.write(CODE, &functions(&[3, 7, 12]));
    b.invalidate(1);
    let most = MOST_NAMED / size_of::<Kernel>();
    let name = |b: &mut Bench, pid, program| {
        let at = At::of_process(b.time, pid);
        b.loads.name(&Kernel::called(at, program, "f"));
    };
    for pid in 0..2 * most as u32 {
        name(&mut b, 1000 + pid, CODE);
        assert!(b.loads.processes.len() <= most + 1);
    }
    name(&mut b, 7, CODE);
    b.launch();
    let all = b.ended();
    assert_eq!((all.len(), all[0].functions), (1, Some(3)));
    assert_eq!(all[0].kernels, ["f"]);
}

/// Code that a copy engine brings is not in the stream: nobody counts its functions.
#[test]
fn functions_that_were_copied_are_not_counted() {
    let mut b = Bench::new();
    b.write(CODE, &functions(&[3]));
    b.put(8, |p| {
        p.method(Step::Increment, 4, 0x400, &[0x7f00, 0])
            .method(
                Step::Increment,
                4,
                0x408,
                &[(CODE >> 32) as u32, CODE as u32 + 384],
            )
            .method(Step::Increment, 4, 0x418, &[1280, 1])
            .method(Step::Increment, 4, 0x300, &[0x182]);
    });
    b.invalidate(1);
    b.launch();
    assert_eq!(b.parts(), "mmm.");
    let load = b.ended()[0];
    assert_eq!((load.code_bytes, load.functions), (128 + 256 + 1280, None));
    assert_eq!((load.variables, load.constant_banks), (None, None));
}

#[test]
fn copies_of_the_program_before_and_behind_it_stay_the_program_s() {
    let mut b = Bench::new();
    b.write(OF_PROGRAM, &[3; 64]);
    b.module();
    b.write(OF_PROGRAM, &[3; 64]);
    // To the module's own variable.
    b.write(VARIABLE, &[4; 28]);
    b.launch();
    // Another module in the same memory: the last write to the address is the load's.
    b.write(VARIABLE, &[4; 28]);
    b.module();
    b.launch();
    assert_eq!(b.parts(), format!(".{m}....{m}.", m = "m".repeat(7)));
    assert_eq!(b.ended().len(), 2);
}

#[test]
fn large_variables_are_filled_by_a_copy_engine() {
    let mut b = Bench::new();
    let fill = |p: &mut Pushbuffer, dst: u64| {
        p.method(Step::Increment, 4, 0x408, &[(dst >> 32) as u32, dst as u32])
            .method(Step::Increment, 4, 0x418, &[1000, 1])
            .method(Step::Increment, 4, 0x708, &[0x3_0004])
            .method(Step::Increment, 4, 0x300, &[0x586])
            .method(Step::Increment, 4, 0x240, &[2, 0x460_ff70, 9])
            .method(Step::Increment, 4, 0x300, &[0x14]);
    };
    b.put(8, |p| fill(p, OF_PROGRAM));
    b.put(8, |p| fill(p, VARIABLE));
    b.write(TABLE, &VARIABLE.to_le_bytes());
    b.invalidate(CONSTANT);
    assert_eq!(b.parts(), ".mmm");
    assert_eq!(b.ended()[0].data_bytes, 4000 + 8);
}

#[test]
fn the_upload_of_a_graph_is_no_load() {
    let mut b = Bench::new();
    b.put(0, |p| {
        write(p, BANK, &[1; 528]);
        write(p, BANK + 528, &[2; 24]);
        write(p, 0x2_04c0_0000, &[3; 384]);
        p.method(Step::Increment, 1, 0x1698, &[CONSTANT]);
        release(p);
    });
    b.put(0, |p| {
        write(p, BANK + 528, &[2; 24]);
        p.method(Step::Increment, 1, 0x1698, &[CONSTANT]);
        release(p);
    });
    assert_eq!(b.parts(), "..");
    assert!(b.ended().is_empty());
}

#[test]
fn what_no_load_closes_is_the_program_s() {
    let mut b = Bench::new();
    b.write(OF_PROGRAM, &[3; 64]);
    assert!(b.taken.is_empty(), "it waits");
    b.time += HOLD_NS + 2 * LOOK_NS;
    b.put(9, |p| {
        p.method(Step::Increment, 4, 0x300, &[0x14]);
    });
    assert_eq!(b.taken.len(), 2, "no longer than that");
    b.write(OF_PROGRAM, &[3; 64]);
    b.loads.idle(false);
    b.take();
    assert_eq!(
        b.taken.len(),
        2,
        "a moment without records may be of a load"
    );
    // Names of kernels that are found meanwhile.
    b.loads.stir();
    b.loads.idle(false);
    b.take();
    assert_eq!(b.taken.len(), 2);
    b.loads.idle(false);
    b.take();
    assert_eq!(b.taken.len(), 3);
    // An invalidation alone, as libcuda has them elsewhere.
    b.invalidate(CONSTANT);
    assert_eq!(b.parts(), "....");
    assert!(b.ended().is_empty());
}

#[test]
fn no_more_than_so_many_bytes_wait() {
    let mut b = Bench::new();
    let data = vec![3; 4 << 20];
    for _ in 1..MOST_BYTES / data.len() {
        b.write(OF_PROGRAM, &data);
    }
    assert!(b.taken.is_empty());
    b.write(OF_PROGRAM, &data);
    assert_eq!(b.taken.len(), MOST_BYTES / data.len());
    assert_eq!(b.loads.bytes, 0);
}

#[test]
fn a_context_ends_with_a_table_in_one_entry() {
    let mut b = Bench::new();
    for channel in [0, 8] {
        let at = At {
            time_ns: 1_000_000,
            pid: 7,
            tid: 7,
        };
        b.loads.put(Record::Channel(Box::new(Channel::bare(
            at,
            ChannelId(channel),
            Origin::Allocated,
        ))));
    }
    b.position = u64::MAX;
    b.put(0, |p| {
        p.method(Step::Increment, 1, 0x0, &[0xcbc0]);
        release(p);
    });
    b.write(VARIABLE, &[1; 28]);
    b.put(0, |p| {
        write(p, TABLE, &[0; 24]);
        write(p, TABLE + 32, &[0; 2048]);
        p.method(Step::Increment, 1, 0x1698, &[CONSTANT]);
        release(p);
    });
    b.write(OF_PROGRAM, &[3; 64]);
    b.launch();
    assert_eq!(b.parts(), "ccc..");
    assert_eq!(b.ended()[0].part_of, PartOf::Context);
}

#[test]
fn the_end_of_a_process_decides() {
    let mut b = Bench::new();
    b.write(OF_PROGRAM, &[3; 64]);
    b.loads.put(Record::Process(Process {
        at: At {
            time_ns: b.time,
            pid: 7,
            tid: 7,
        },
        life: Life::Exit { process: true },
    }));
    b.take();
    assert_eq!(b.taken.len(), 1);
    assert!(b.loads.processes.is_empty());
}

#[test]
fn an_end_that_waits_has_the_next_images_of_its_number_behind_it() {
    let image = |pid, time_ns| {
        Record::QmdCopy(Box::new(QmdCopy {
            at: At::of_process(time_ns, pid),
            address: GpuVa(0),
            bytes: Vec::new(),
            found: CpuVa(0),
        }))
    };
    let mut b = Bench::new();
    // Its load is not decided, and what comes behind it waits.
    b.write(OF_PROGRAM, &[3; 64]);
    let end = b.time + 10;
    b.loads.put(Record::Process(Process {
        at: At::of_process(end, 8),
        life: Life::Exit { process: true },
    }));
    let is_behind = |b: &Bench, pid, time| b.loads.is_behind_end(&image(pid, time));
    assert!(b.loads.is_waiting() && is_behind(&b, 8, end + 1));
    assert!(!is_behind(&b, 8, end - 1) && !is_behind(&b, 7, end + 1));
    b.loads.idle(true);
    while b.loads.take().is_some() {}
    assert!(!is_behind(&b, 8, end + 1));
}
