//! Tests of the grids that run, on entries made by the tests.

use crate::decode::event::ConstantBank;
use crate::decode::{
    DecodeOptions, Decoder,
    defaults::Chip,
    encode::{Pushbuffer, Qmd},
    event::{Body, Graph, Launch, LaunchHow, LaunchKind, Operation},
    view::{Dependent, DependentAction, View},
};
use crate::record::{At, ChannelId, How, Submission};
use crate::wire::GpuVa;

const CLASS: u32 = 0xcbc0;
const PID: u32 = 7;
/// PCAS_ACTION as libcuda uses it: SCHEDULE with its attributes, and DECREMENT_DEPENDENCE.
const SCHEDULE: u32 = 0xa;
const RELEASE: u32 = 0x7;

/// Returns the address of QMD `i`.
const fn at(i: u64) -> u64 {
    0x2_04c0_0000 + i * 0x200
}

fn schedules(i: u64) -> Dependent {
    Dependent {
        address: GpuVa(at(i)),
        action: DependentAction::Schedule,
    }
}

fn decrements(i: u64) -> Dependent {
    Dependent {
        address: GpuVa(at(i)),
        action: DependentAction::DecrementDependence,
    }
}

/// Returns a kernel that a PCAS alone starts. Its number of blocks is the number of its QMD plus one.
fn kernel(i: u64, dependents: &[Dependent]) -> View {
    View {
        version: (4, 0),
        grid: [i as u32 + 1, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 1024,
        program: GpuVa(0x7f00_0000_0000),
        dependents: dependents.to_vec(),
        ..View::default()
    }
}

/// Returns a node that another QMD must schedule.
fn node(i: u64, dependents: &[Dependent]) -> View {
    View {
        requires_pcas: true,
        ..kernel(i, dependents)
    }
}

/// Returns the first node of a chunk, which both the node before it and the pushbuffer must release.
fn head(i: u64, dependents: &[Dependent]) -> View {
    View {
        dependence: 2,
        ..node(i, dependents)
    }
}

/// Returns the empty grid that begins a graph.
fn root(dependents: &[Dependent]) -> View {
    View {
        grid: [0; 3],
        block: [1; 3],
        program: GpuVa(0),
        ..kernel(0, dependents)
    }
}

/// Returns the companion of a launch: GRID_NULL.
fn companion(dependents: &[Dependent]) -> View {
    View {
        null: true,
        dependence: 2,
        ..root(dependents)
    }
}

fn write(p: &mut Pushbuffer, i: u64, view: &View) {
    let qmd = Qmd::of(view).expect("a layout");
    p.inline(1, CLASS, GpuVa(at(i)), qmd.bytes())
        .expect("inline data");
}

fn pcas(p: &mut Pushbuffer, i: u64, action: u32) {
    let qmd = [(at(i) >> 8) as u32];
    p.named(1, CLASS, "SEND_PCAS_A", &qmd).expect("named");
    p.named(1, CLASS, "SEND_SIGNALING_PCAS2_B", &[action])
        .expect("named");
}

/// Returns the banks of a QMD of libcuda's: the program's, and libcuda's own.
fn libcudas_banks(own: u64) -> Vec<ConstantBank> {
    let bank = |index, address, size| ConstantBank {
        index,
        address: GpuVa(address),
        size,
    };
    vec![bank(0, own, 0x300), bank(7, 0x7f4f_2000_0000, 0x1_0000)]
}

/// Test of a client without CUDA, which may reserve no shared memory: its kernels are the program's, whatever their arguments look like.
#[test]
fn a_kernel_without_libcuda_s_bank_is_the_program_s() {
    let bank = 0x7f4f_4800_0000;
    let kinds = |banks: Vec<ConstantBank>, class: u32| {
        let copies: [u64; 2] = [0x7f00_1000_0000, 0x7f00_2000_0000];
        let args = copies.map(u64::to_le_bytes);
        let view = View {
            block: [256, 1, 1],
            shared_bytes: 0,
            constant_banks: banks,
            ..kernel(0, &[])
        };
        let of = |args: &[u8]| crate::decode::ops::driver_kernels::kind(class, &view, args).0;
        [of(args.as_flattened()), of(&[])]
    };
    use LaunchKind::{Driver, DriverCopy, User};
    let libcudas = || libcudas_banks(bank);
    assert_eq!(kinds(libcudas(), CLASS), [DriverCopy, Driver]);
    assert_eq!(kinds(libcudas()[..1].to_vec(), CLASS), [User, User]);
    assert_eq!(kinds(Vec::new(), CLASS), [User, User]);
    assert_eq!(kinds(libcudas(), 0xc5c0), [User, User]);
}

/// Writes the driver's kernel that continues a graph, as QMD `i`, by entry `index` of a table.
fn leads_on(p: &mut Pushbuffer, i: u64, index: u32, table: u64, edges: u64) {
    let bank = 0x7f4f_4800_0000 + i * 0x1000;
    let args = [u64::from(index), table, edges].map(u64::to_le_bytes);
    p.inline(1, CLASS, GpuVa(bank + 0x210), args.as_flattened())
        .expect("inline data");
    let view = View {
        grid: [1; 3],
        block: [32, 1, 1],
        shared_bytes: 0,
        constant_banks: libcudas_banks(bank),
        ..node(i, &[])
    };
    write(p, i, &view);
}

/// Entry of a table: flags, number of successors, index of the first, initial value of its countdown, its QMD.
type Row = (u32, u32, u32, u32, u64);

fn table(p: &mut Pushbuffer, table: u64, rows: &[Row], edges: (u64, &[u32])) {
    for (n, &(flags, count, first, of, i)) in rows.iter().enumerate() {
        let mut words = [0u32; 16];
        words[..7].copy_from_slice(&[flags, count, first, of, of, 0, (at(i) >> 8) as u32]);
        let row = words.map(u32::to_le_bytes);
        p.inline(1, CLASS, GpuVa(table + n as u64 * 64), row.as_flattened())
            .expect("inline data");
    }
    let words: Vec<u8> = edges.1.iter().flat_map(|e| e.to_le_bytes()).collect();
    p.inline(1, CLASS, GpuVa(edges.0), &words)
        .expect("inline data");
}

struct Bench {
    decoder: Decoder,
    positions: [u64; 4],
    serial: u64,
}

#[derive(Default)]
struct Told {
    launches: Vec<Launch>,
    graphs: Vec<Graph>,
}

impl Told {
    /// Returns, for each launch, the number of its QMD, the way in which it was launched, and its place among the nodes of a replay.
    fn ran(&self) -> Vec<(u64, LaunchHow, Option<u32>)> {
        let number = |l: &Launch| (l.qmd.expect("has one").0 - at(0)) / 0x200;
        let one = |l: &Launch| (number(l), l.how, l.place);
        self.launches.iter().map(one).collect()
    }

    fn replays(&self) -> Vec<Option<u64>> {
        self.launches.iter().map(|l| l.replay).collect()
    }

    fn take(&mut self, operation: &Operation) {
        match operation {
            Operation::Launch(l) => self.launches.push((**l).clone()),
            Operation::Graph(g) => self.graphs.push((**g).clone()),
            _ => {}
        }
    }
}

impl Bench {
    fn new() -> Self {
        Self {
            decoder: Decoder::new(DecodeOptions {
                chip: Chip::named("GH100"),
                ..DecodeOptions::default()
            }),
            positions: [0; 4],
            serial: 0,
        }
    }

    fn submit(&mut self, channel: u32, form: impl FnOnce(&mut Pushbuffer)) -> Told {
        let mut p = Pushbuffer::new();
        form(&mut p);
        let position = &mut self.positions[channel as usize];
        let s = Submission {
            absent_ns: None,
            at: At {
                time_ns: 1,
                pid: PID,
                tid: PID,
            },
            channel: ChannelId(channel),
            token: Some(channel),
            position: *position,
            gp_get: None,
            prev_put: 0,
            gp_put: 0,
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: None,
            segments: vec![p.segment(GpuVa(0x1000))],
        };
        *position += 1;
        let context = self.decoder.context(&s, self.serial);
        self.serial += 1;
        let mut told = Told::default();
        self.decoder.submission(&s, &context, &(), &mut |e| {
            if let Body::Operation(o) = e.body {
                told.take(o);
            }
        });
        told
    }

    /// Ends the trace.
    fn end(&mut self) -> Told {
        let mut told = Told::default();
        self.decoder.end(None, &mut |e| {
            if let Body::Operation(o) = e.body {
                told.take(o);
            }
        });
        told
    }
}

use LaunchHow::{Dependent as ByGrid, Released, Scheduled};

/// Writes a chain of 8 or more kernels as the driver forms it (tests/captures, graph_upload_32): in chunks, whose heads are released both
/// by the pushbuffer and by the node before.
fn upload_chain(p: &mut Pushbuffer) {
    write(p, 0, &root(&[decrements(1)]));
    let nodes = [
        head(1, &[schedules(2)]),
        node(2, &[decrements(3)]),
        head(3, &[schedules(4)]),
        node(4, &[]),
    ];
    for (i, view) in (1..).zip(&nodes) {
        write(p, i, view);
        pcas(p, i, SCHEDULE);
    }
}

fn replay_chain(p: &mut Pushbuffer) {
    pcas(p, 0, SCHEDULE);
    pcas(p, 1, RELEASE);
    pcas(p, 3, RELEASE);
}

#[test]
fn an_upload_runs_nothing() {
    let mut b = Bench::new();
    let told = b.submit(0, upload_chain);
    assert_eq!(told.ran(), []);
    assert_eq!(told.graphs, []);
    assert_eq!(b.end().graphs, []);
    assert_eq!(b.decoder.counts().launches, 0);
}

#[test]
fn a_chain_runs_each_node_once_a_replay() {
    let mut b = Bench::new();
    b.submit(0, upload_chain);
    let expected = [
        (0, Scheduled, None),
        (1, Released, Some(0)),
        (2, ByGrid, Some(1)),
        (3, Released, Some(2)),
        (4, ByGrid, Some(3)),
    ];
    for replay in 0..3 {
        let told = b.submit(0, replay_chain);
        assert_eq!(told.ran(), expected, "replay {replay}");
        assert_eq!(told.replays(), [Some(replay); 5]);
        assert_eq!(told.launches[0].kind, LaunchKind::Companion);
        assert!(
            told.launches[1..]
                .iter()
                .all(|l| l.kind == LaunchKind::User)
        );
        // Now the previous replay is complete, and no other.
        let before: Vec<_> = told.graphs.iter().map(|g| g.replay).collect();
        assert_eq!(before, Vec::from_iter(replay.checked_sub(1)));
    }
    let [last] = &b.end().graphs[..] else {
        panic!()
    };
    assert_eq!((last.replay, last.nodes, last.kernels), (2, 4, 4));
    assert_eq!((last.uploaded, last.submissions.len()), (false, 1));
    assert_eq!(b.end().graphs, [], "told once");
    let counts = b.decoder.counts();
    assert_eq!((counts.kernels, counts.nodes, counts.graphs), (12, 12, 3));
}

#[test]
fn a_shared_dependent_runs_once_and_a_circle_ends() {
    let mut b = Bench::new();
    b.submit(0, |p| {
        write(p, 0, &kernel(0, &[schedules(1), schedules(2)]));
        write(p, 1, &node(1, &[schedules(3)]));
        write(p, 2, &node(2, &[schedules(3)]));
        write(p, 3, &node(3, &[schedules(3), schedules(0)]));
    });
    let told = b.submit(0, |p| pcas(p, 0, SCHEDULE));
    let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
    assert_eq!(ran, [0, 1, 3, 2]);
}

#[test]
fn the_head_of_a_chunk_waits_for_the_pushbuffer_too() {
    let mut b = Bench::new();
    b.submit(0, upload_chain);
    let told = b.submit(0, |p| {
        pcas(p, 0, SCHEDULE);
        pcas(p, 1, RELEASE);
    });
    let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
    assert_eq!(ran, [0, 1, 2]);
    let told = b.submit(0, |p| pcas(p, 3, RELEASE));
    let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
    assert_eq!(ran, [3, 4]);
}

#[test]
fn a_qmd_rewritten_within_a_replay_runs_in_its_new_form() {
    // cudaGraphExecKernelNodeSetParams: the replay begins with the root, and the new QMD follows.
    let mut b = Bench::new();
    b.submit(0, upload_chain);
    let told = b.submit(0, |p| {
        pcas(p, 0, SCHEDULE);
        let mut changed = node(2, &[decrements(3)]);
        changed.grid = [77, 1, 1];
        write(p, 2, &changed);
        pcas(p, 2, SCHEDULE);
        pcas(p, 1, RELEASE);
        pcas(p, 3, RELEASE);
    });
    let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
    assert_eq!(ran, [0, 1, 2, 3, 4]);
    assert_eq!(told.launches[2].grid, Some([77, 1, 1]));
    assert_eq!(told.replays(), [Some(0); 5]);
    assert!(b.end().graphs[0].uploaded);
}

const TABLE: u64 = 0x7f4f_5000_0000;
const EDGES: u64 = 0x7f4f_5100_0000;

/// Writes two branches, 2 and 3, each with a kernel of the driver's behind it, 4 and 5, which lead to 6 by the table.
fn upload_fork(p: &mut Pushbuffer, own: u64) {
    write(p, 2, &node(2, &[schedules(4)]));
    write(p, 3, &node(3, &[schedules(5)]));
    leads_on(p, 4, 0, TABLE, EDGES);
    leads_on(p, 5, 1, TABLE, EDGES);
    write(p, 6, &node(6, &[]));
    for i in 2..=6 {
        pcas(p, i, SCHEDULE);
    }
    let rows = [(0, 1, 0, 1, own), (0, 1, 1, 1, 5), (0, 0, 0, 2, 6)];
    table(p, TABLE, &rows, (EDGES, &[2, 2]));
}

#[test]
fn branches_are_joined_by_the_drivers_table() {
    let mut b = Bench::new();
    b.submit(0, |p| {
        write(p, 1, &kernel(1, &[schedules(2), schedules(3)]));
        upload_fork(p, 4);
    });
    for replay in 0..2 {
        let told = b.submit(0, |p| pcas(p, 1, SCHEDULE));
        // 6 waits for both branches.
        let places: Vec<_> = (0..).map(Some).take(6).collect();
        let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
        assert_eq!(ran, [1, 2, 4, 3, 5, 6], "replay {replay}");
        let found: Vec<_> = told.ran().iter().map(|r| r.2).collect();
        assert_eq!(found, places);
        assert_eq!(told.replays(), [Some(replay); 6]);
        let kinds: Vec<_> = told.launches.iter().map(|l| l.kind).collect();
        use LaunchKind::{DriverGraph, User};
        assert_eq!(kinds, [User, User, DriverGraph, User, DriverGraph, User]);
    }
    let [last] = &b.end().graphs[..] else {
        panic!()
    };
    assert_eq!((last.nodes, last.kernels, last.driver), (6, 4, 2));
    assert!(!last.conditional);
}

#[test]
fn a_table_that_does_not_name_the_kernel_is_none() {
    let mut b = Bench::new();
    b.submit(0, |p| {
        write(p, 1, &kernel(1, &[schedules(2), schedules(3)]));
        // The first entry names another QMD: the successors of its kernel are unknown.
        upload_fork(p, 9);
    });
    let told = b.submit(0, |p| pcas(p, 1, SCHEDULE));
    let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
    assert_eq!(ran, [1, 2, 4, 3, 5]);
    let kinds: Vec<_> = told.launches.iter().map(|l| l.kind).collect();
    // The kernel is libcuda's, by its bank, and not the program's: it reserves no shared memory.
    assert_eq!(kinds[2], LaunchKind::Driver);
    assert_eq!(kinds[4], LaunchKind::DriverGraph);
}

#[test]
fn a_conditional_node_is_marked() {
    let mut b = Bench::new();
    b.submit(0, |p| {
        write(p, 1, &kernel(1, &[schedules(2)]));
        leads_on(p, 2, 0, TABLE, EDGES);
        write(p, 3, &node(3, &[]));
        let rows = [(0, 1, 0, 1, 2), (0x100, 0, 0, 1, 3)];
        table(p, TABLE, &rows, (EDGES, &[1]));
    });
    let told = b.submit(0, |p| pcas(p, 1, SCHEDULE));
    let ran: Vec<_> = told.ran().iter().map(|r| r.0).collect();
    assert_eq!(ran, [1, 2], "the GPU decides whether 3 runs");
    let [graph] = &b.end().graphs[..] else {
        panic!()
    };
    assert!(graph.conditional);
}

#[test]
fn parts_on_two_channels_are_one_replay() {
    let mut b = Bench::new();
    b.submit(0, |p| {
        write(p, 0, &kernel(0, &[schedules(2)]));
        write(p, 1, &kernel(1, &[schedules(3)]));
        upload_fork(p, 4);
    });
    for replay in 0..3 {
        let told = b.submit(1, |p| pcas(p, 0, SCHEDULE));
        assert_eq!(told.replays(), [Some(replay); 3]);
        // One branch has reached 6: the other is still to come, whatever comes in between.
        let told = b.submit(1, |p| pcas(p, 9, 0));
        assert_eq!(told.graphs, []);
        let told = b.submit(2, |p| pcas(p, 1, SCHEDULE));
        assert_eq!(told.replays(), [Some(replay); 4]);
        let expected = [
            (1, Scheduled, Some(3)),
            (3, ByGrid, Some(4)),
            (5, ByGrid, Some(5)),
            // The last of the two branches starts 6, on either channel.
            (6, ByGrid, Some(6)),
        ];
        assert_eq!(told.ran(), expected);
    }
    let [last] = &b.end().graphs[..] else {
        panic!()
    };
    assert_eq!((last.replay, last.nodes, last.submissions.len()), (2, 7, 2));
    assert_eq!(last.channels, [ChannelId(1), ChannelId(2)]);
    assert_eq!(b.decoder.counts().graphs, 3);
}

#[test]
fn a_programmatic_launch_runs_when_its_companion_is_released() {
    let mut b = Bench::new();
    // A plain launch and its companion, which schedules the launch after it.
    let told = b.submit(0, |p| {
        write(p, 1, &companion(&[schedules(2)]));
        pcas(p, 1, SCHEDULE);
        write(p, 0, &kernel(0, &[decrements(1)]));
        pcas(p, 0, SCHEDULE);
    });
    let plain = [(1, Scheduled, None), (0, Scheduled, None)];
    assert_eq!(told.ran(), plain);
    assert_eq!(told.launches[0].kind, LaunchKind::Companion);
    assert_eq!(told.replays(), [None; 2], "of no graph");

    // The QMD that the companion schedules is not ready: nothing runs.
    let told = b.submit(0, |p| pcas(p, 1, RELEASE));
    assert_eq!(told.ran(), []);

    let told = b.submit(0, |p| {
        write(p, 3, &companion(&[schedules(4)]));
        pcas(p, 3, SCHEDULE);
        write(p, 2, &node(2, &[decrements(3)]));
        pcas(p, 2, SCHEDULE);
        pcas(p, 1, RELEASE);
    });
    assert_eq!(told.ran(), [(3, Scheduled, None), (2, ByGrid, None)]);
    assert_eq!(told.launches[1].grid, Some([3, 1, 1]));
    assert_eq!(told.replays(), [None; 2], "of no graph");
    assert_eq!(b.end().graphs, []);

    // The companion was written before the trace: it releases the QMD that is ready.
    let mut b = Bench::new();
    let told = b.submit(0, |p| {
        write(p, 2, &node(2, &[]));
        pcas(p, 2, SCHEDULE);
        pcas(p, 1, RELEASE);
    });
    assert_eq!(told.ran(), [(2, Released, None)]);
    assert_eq!(told.launches[0].kind, LaunchKind::User);
}

#[test]
fn an_unseen_qmd_is_emitted_with_its_trigger() {
    let mut b = Bench::new();
    let told = b.submit(0, |p| pcas(p, 1, SCHEDULE));
    assert_eq!(told.ran(), [(1, Scheduled, Some(0))]);
    let told = b.submit(0, |p| pcas(p, 2, RELEASE));
    assert_eq!(told.ran(), [(2, Released, Some(0))]);
    b.submit(0, |p| write(p, 3, &kernel(3, &[schedules(4)])));
    let told = b.submit(0, |p| pcas(p, 3, SCHEDULE));
    let expected = [(3, Scheduled, Some(0)), (4, ByGrid, Some(1))];
    assert_eq!(told.ran(), expected);
    assert_eq!(told.launches[1].kind, LaunchKind::Unresolved);
    assert_eq!(told.replays(), [Some(2); 2]);
    let counts = b.decoder.counts();
    assert_eq!((counts.unresolved, counts.launches), (3, 4));
    // Other actions run nothing: INVALIDATE, INCREMENT_PUT, PREFETCH, INCREMENT_DEPENDENCE.
    for action in [0x0, 0x1, 0x6, 0x8, 0xc, 0xd, 0x5] {
        assert_eq!(b.submit(0, |p| pcas(p, 3, action)).ran(), [], "{action:#x}");
    }
    for action in [0x2, 0x3, 0x9, 0xa, 0xb] {
        let told = b.submit(0, |p| pcas(p, 3, action));
        assert_eq!(told.ran(), expected, "{action:#x}");
    }
}

#[test]
fn a_qmd_image_holds_until_the_stream_overwrites_it() {
    let mut b = Bench::new();
    for (i, view) in [kernel(0, &[schedules(1)]), node(1, &[])]
        .iter()
        .enumerate()
    {
        let qmd = Qmd::of(view).expect("a layout");
        b.decoder.qmd_copy(PID, GpuVa(at(i as u64)), qmd.bytes());
    }
    use crate::decode::event::QmdFrom::{Image, Stream};
    let from = |told: &Told| told.launches.iter().map(|l| l.qmd_from).collect::<Vec<_>>();
    let told = b.submit(0, |p| pcas(p, 0, SCHEDULE));
    assert_eq!(told.ran(), [(0, Scheduled, Some(0)), (1, ByGrid, Some(1))]);
    assert_eq!(from(&told), [Some(Image); 2]);
    let told = b.submit(0, |p| {
        write(p, 1, &node(5, &[]));
        pcas(p, 0, SCHEDULE);
    });
    assert_eq!(from(&told), [Some(Image), Some(Stream)]);
    assert_eq!(told.launches[1].grid, Some([6, 1, 1]));
    // The stream's write takes precedence over an image that comes later.
    let old = Qmd::of(&node(1, &[])).expect("a layout");
    b.decoder.qmd_copy(PID, GpuVa(at(1)), old.bytes());
    let told = b.submit(0, |p| pcas(p, 0, SCHEDULE));
    assert_eq!(told.launches[1].grid, Some([6, 1, 1]));
    assert_eq!(b.decoder.counts().qmds_from_memory, 4);
}

#[test]
fn an_ended_process_leaves_no_replay_open() {
    let mut b = Bench::new();
    b.submit(0, |p| {
        write(p, 0, &kernel(0, &[schedules(2)]));
        upload_fork(p, 4);
    });
    b.submit(0, |p| pcas(p, 0, SCHEDULE));
    b.decoder.forget_process(PID);
    assert_eq!(b.end().graphs, []);
    let told = b.submit(0, |p| pcas(p, 0, SCHEDULE));
    assert_eq!(told.launches[0].kind, LaunchKind::Unresolved);
    assert_eq!(told.replays(), [Some(1)]);
}
