//! Output of `nvcap dump` for a look that is put together by hand: JSON that fits its schema, text that says it all.

use crate::common::schema::Schema;
use nvcap_decode::decode::event::{
    Copy, Inline, InlineContent, InlineData, Launch, LaunchHow, LaunchKind, Operation, QmdFrom,
    Semaphore, SemaphoreAction, SemaphoreUnit, Stop,
};
use nvcap_decode::decode::event::{CopyEngine, CopyMode};
use nvcap_decode::decode::pcas::PcasAction;
use nvcap_decode::hang::{
    Blocked, ChannelFacts, ChannelState, Cycle, Judged, ProcessReport, PythonFrame, PythonStack,
    Report, RingState, Root, State, Step, Thread, Values, analyse, compare,
};
use nvcap_decode::hang::{EntryTarget, RingPlace, RingSize, TokenFrom};
use nvcap_decode::hang::{NativeStack, Xid};
use nvcap_decode::record::ChannelId;
use nvcap_decode::record::CpuVa;
use nvcap_decode::record::{Calls, Frame, StackEnd};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::stream::StopReason;
use nvcap_show::output::dump::{ReportOptions, Shown, Status, cause, json, status, text};
use nvcap_show::output::redact::Redactor;

const PID: u32 = 4711;
const XID: &str = "NVRM: Xid (PCI:0000:c1:00): 31, pid=4711, name=python, Ch 0000000a, intr 0. MMU Fault: ENGINE GRAPHICS";

fn semaphore(action: SemaphoreAction, address: u64, payload: u64) -> Operation {
    Operation::Semaphore(Semaphore {
        unit: SemaphoreUnit::Engine,
        action,
        address: GpuVa(address),
        payload,
        wide: false,
        timestamp: true,
        reduction: None,
        wait_for_idle: false,
        execute: 0,
    })
}

fn launch() -> Operation {
    Operation::Launch(Box::new(Launch {
        kind: LaunchKind::User,
        how: LaunchHow::Scheduled,
        pcas: Some(PcasAction::InvalidatePrefetchCopySchedule),
        replay: None,
        place: None,
        qmd: Some(GpuVa(0x2_04e1_0000)),
        qmd_version: Some((4, 0)),
        qmd_from: Some(QmdFrom::Stream),
        grid: Some([3, 2, 1]),
        block: Some([64, 2, 1]),
        cluster: None,
        cooperative: false,
        registers: Some(16),
        shared_bytes: Some(0),
        shared_reserved_bytes: Some(1024),
        local_bytes: Some(0),
        barriers: Some(1),
        program: Some(GpuVa(0x7f4f_4f7a_0a00)),
        program_bytes: Some(640),
        stand_in: None,
        kernel: None,
        arg_memory: Vec::new(),
        moves: None,
        args: Some(b"secret42".to_vec()),
        constant_banks: Vec::new(),
        releases: Vec::new(),
        dependent: None,
    }))
}

fn copy() -> Operation {
    let copy: Copy = Copy {
        bytes: 4096,
        src: Some(GpuVa(0x1000)),
        dst: Some(GpuVa(0x2000)),
        physical: (false, false),
        mode: CopyMode::Linear,
        engine: CopyEngine::Copy(None),
        direction: None,
        direction_from: None,
        line_bytes: 4096,
        lines: 1,
        pitch: None,
        pattern: None,
        semaphore: None,
        launch_dma: 0x182,
        src_memory: None,
        dst_memory: None,
    };
    Operation::Copy(copy.into())
}

fn inline() -> Operation {
    Operation::Inline(Inline {
        dst: GpuVa(0x3000),
        bytes: 384,
        line_bytes: 384,
        lines: 1,
        content: Some(InlineContent::Qmd),
        data: InlineData::Stream,
        fill: None,
        src: None,
        direction: nvcap_decode::decode::event::Direction::HostToDevice,
        head: vec![1; 64],
        src_memory: None,
        dst_memory: None,
    })
}

fn channel(id: u32, get: u32, steps: Vec<Vec<Operation>>) -> ChannelState {
    let mut c = ChannelState::new(ChannelId(id), PID, get, steps.len() as u32, 1024);
    c.gpu = Some(0);
    c.token = (id == 0).then_some(0xa);
    for (n, operations) in steps.into_iter().enumerate() {
        c.steps.push(Step {
            position: n as u64,
            index: n as u32,
            pending: n as u32 >= get,
            operations,
            stop: None,
            bytes: 1560,
            missing: 0,
        });
    }
    c
}

/// A kernel that runs, a copy behind another channel's wait, a wait that nobody releases, an entry cut short.
fn look(done: u64) -> Report {
    use SemaphoreAction::{AcquireGreaterEqual, Release};
    let mut cut = channel(3, 1, vec![vec![]]);
    cut.steps[0].missing = 12;
    cut.steps[0].stop = Some(Stop {
        entry: 0,
        offset: 4,
        why: StopReason::Missing { bytes: 12 },
    });
    let scene = RingState {
        channels: vec![
            channel(
                0,
                2,
                vec![
                    vec![launch(), semaphore(Release, 0x5000, 7)],
                    vec![inline(), launch(), semaphore(Release, 0x5000, 8)],
                    vec![launch(), semaphore(Release, 0x5000, 9)],
                ],
            ),
            channel(
                1,
                0,
                vec![vec![
                    semaphore(AcquireGreaterEqual, 0x5000, 8),
                    copy(),
                    semaphore(Release, 0x5010, 1),
                ]],
            ),
            channel(
                2,
                0,
                vec![vec![
                    semaphore(AcquireGreaterEqual, 0x6000, 77),
                    semaphore(Release, 0x5020, 1),
                ]],
            ),
            cut,
        ],
    };
    let mut values = Values::default();
    for (address, value) in [(0x5000, done), (0x5010, 0), (0x5020, 0), (0x6000, 3)] {
        values.set(PID, GpuVa(address), value);
    }
    let analysis = analyse(&scene, &values);
    let facts = |n: u32| ChannelFacts {
        channel: ChannelId(n),
        ring: CpuVa(0x2_0060_0000 + 0x3000 * u64::from(n)),
        userd: CpuVa(0x2_0060_2000 + 0x3000 * u64::from(n)),
        place: RingPlace::Habit,
        size: RingSize::Habit,
        target: EntryTarget::Parses,
        token_from: (n == 0).then_some(TokenFrom::Notifier),
        recycled: n,
        error: (n == 2).then_some(31),
        moved: false,
        overwritten: 0,
        unreadable: 0,
        elsewhere: 0,
        ring_gone: false,
    };
    Report {
        time_ns: 1,
        trace_ns: None,
        took_ns: 2_000_000,
        processes: vec![ProcessReport {
            pid: PID,
            name: "python\u{1b}[31m".to_owned(),
            threads: vec![Thread {
                tid: PID,
                name: "main".to_owned(),
                state: 'R',
                ticks: 250,
                wchan: None,
                syscall: Some(202),
                call: Some("futex"),
                argument: Some(0x7f00),
                native: Some(NativeStack::from(&Calls {
                    frames: (1..=13)
                        .map(|n| Frame {
                            module: "/usr/lib/libcuda.so.1".into(),
                            symbol: Some(format!("native{n}").into()),
                            offset: Some(16),
                            address: 0x1000 + n,
                            ..Frame::default()
                        })
                        .collect(),
                    api: None,
                    end: StackEnd::NoTable,
                })),
                python: Some(PythonStack::new(
                    (1..=14)
                        .map(|n| PythonFrame::new(format!("f{n}"), "train.py".to_owned(), Some(n)))
                        .collect(),
                    true,
                    false,
                )),
            }],
            rank: Some(3),
            ranks: Some(4),
            python: Some("3.12.1".to_owned()),
            faults: Vec::new(),
            xids: Vec::from_iter(Xid::parse(XID)),
            channels: (0..4).map(facts).collect(),
            unused: 16,
            notes: vec!["a note".to_owned()],
            has_ended: false,
            finding_ns: 1,
            reading_ns: 2,
        }],
        rings: scene,
        analysis,
    }
}

fn shown(look: &Report, before: Option<&Report>, options: &ReportOptions, as_json: bool) -> String {
    let moved = before.map(|b| {
        let (was, is) = ((&b.rings, &b.analysis), (&look.rings, &look.analysis));
        compare(was, is, 2_000_000_000, |b, n| b == n)
    });
    let shown = Shown {
        report: look,
        moved: moved.as_ref(),
    };
    let mut out = Vec::new();
    if as_json {
        json(&mut out, &shown, options);
    } else {
        text(&mut out, &shown, options);
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn json_fits_its_schema() {
    let schema = Schema::of("dump");
    let (first, second) = (look(7), look(7));
    for before in [None, Some(&first)] {
        for redact in [None, Some(Redactor::default())] {
            let options = ReportOptions {
                last: Some(20),
                redact: redact.clone(),
                ..ReportOptions::default()
            };
            let line = shown(&second, before, &options, true);
            assert_eq!(line.matches('\n').count(), 1);
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            schema.check(&value).unwrap();
            assert_eq!(
                line.contains("7365637265743432"),
                redact.is_none(),
                "kernel arguments"
            );
        }
    }
    // An empty look fits too.
    let line = shown(&Report::default(), None, &ReportOptions::default(), true);
    schema.check(&serde_json::from_str(&line).unwrap()).unwrap();
}

#[test]
fn json_names_what_hangs() {
    let (first, second) = (look(7), look(7));
    let options = ReportOptions {
        last: Some(20),
        ..ReportOptions::default()
    };
    let line = shown(&second, Some(&first), &options, true);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let process = &value["processes"][0];
    assert_eq!(process["verdict"], "error", "an error outranks a hang");
    let c = &process["channels"][0];
    assert_eq!(
        c["running"]["operation"]["grid"],
        serde_json::json!([3, 2, 1])
    );
    assert_eq!(c["running"]["index"], 1);
    assert_eq!(c["last"][0]["done"], true);
    assert_eq!(
        process["channels"][1]["root"],
        serde_json::json!({"kind": "work", "channel": 0})
    );
    assert_eq!(
        process["channels"][2]["root"],
        serde_json::json!({"kind": "nobody_releases", "channel": 2})
    );
    // One channel alone: the others' entries are left out, not the others.
    let lengths = |channels: &[u32], tokens: &[u32]| -> Vec<usize> {
        let options = ReportOptions {
            last: Some(20),
            channels: channels.to_vec(),
            tokens: tokens.to_vec(),
            ..ReportOptions::default()
        };
        let shown = shown(&second, None, &options, true);
        let value: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let entries = |n: usize| value["processes"][0]["channels"][n]["last"].clone();
        (0..4)
            .map(|n| entries(n).as_array().unwrap().len())
            .collect()
    };
    assert_eq!(lengths(&[0], &[]), [3, 0, 0, 0]);
    assert_eq!(lengths(&[], &[0xa]), [3, 0, 0, 0]);
    assert_eq!(lengths(&[0xa], &[0]), [0, 0, 0, 0]);
}

#[test]
fn text_says_it_at_the_top() {
    let (first, second) = (look(7), look(7));
    let options = ReportOptions {
        last: Some(20),
        verbose: true,
        ..ReportOptions::default()
    };
    let text = shown(&second, Some(&first), &options, false);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("process 4711 python?[31m: ERROR: the driver has stopped 1 of 4 channels after an error; nothing moved in 2.0 s"),
        "{}",
        lines[0]
    );
    for wanted in [
        "Xid 31, a fault of the memory management unit",
        "a kernel has not ended: grid 3x2x1 block 64x2x1 prog 0x7f4f4f7a0a00 (entry 1); 1 submission behind it",
        "waits for semaphore 0x5000 >= 8 (now 7) at entry 0; released by channel 0 (gpu0 0x0000a ?), entry 1",
        "waits for semaphore 0x6000 >= 77 (now 3) at entry 0; nothing that this process has submitted releases it",
        "held up by the work of channel 0",
        "12 of 1560 B could not be read",
        "note: a note",
        "from its error notifier, by the order of channels",
        "futex(0x7f00, ...)",
        "python  (newer frames are missing",
        "f1 (train.py:1)",
        "native  native1+0x10 (libcuda.so.1)",
        "(1 older frame: --full-stacks)",
        "f12 (train.py:12)",
        "(2 older frames: --full-stacks)",
        "kernel log, 0.0 s after the machine's start: Xid 31, a fault of the memory management unit: Ch 0000000a, intr 0. MMU Fault",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    assert!(!text.contains("f13 "), "{text}");
    assert!(!text.contains('\u{1b}'), "control characters of a name");
    let options = ReportOptions {
        full_stacks: true,
        ..options
    };
    let full = self::shown(&second, None, &options, false);
    assert!(full.contains("f14 (train.py:14)") && !full.contains("--full-stacks"));
    assert!(full.contains("native13") && full.contains("its caller is not known"));
}

/// One look does not say of channels that wait for each other both that it cannot tell and that they are stuck.
#[test]
fn one_look_at_a_cycle_and_at_a_process_that_has_ended() {
    let head = |report: &Report, before: Option<&Report>| {
        let text = shown(report, before, &ReportOptions::default(), false);
        text.lines().take(12).collect::<Vec<_>>().join("\n")
    };
    let mut one = look(7);
    one.processes[0]
        .channels
        .iter_mut()
        .for_each(|c| c.error = None);
    one.analysis.cycles = vec![Cycle {
        channels: vec![ChannelId(0), ChannelId(1)],
    }];
    let text = head(&one, None);
    assert!(
        text.contains(": BUSY: DEADLOCK, if it stays so: channel 0"),
        "{text}"
    );
    assert!(text.contains("one look may see this of work"), "{text}");
    let text = head(&one, Some(&one.clone()));
    assert!(text.contains(": HANG: DEADLOCK: channel 0"), "{text}");
    assert_eq!(text.matches("DEADLOCK").count(), 1, "{text}");
    // Each wait says which channels wait for one another.
    one.analysis.blocked = vec![Blocked {
        channel: ChannelId(1),
        root: Root::Cycle { index: 0 },
    }];
    let text = head(&one, None);
    assert!(
        text.contains("; one of the channels 0, 1 that wait for one another"),
        "{text}"
    );
    // What a watch says of it in a line.
    let cause_of = |report: &Report| {
        let shown = Shown {
            report,
            moved: None,
        };
        cause(&shown, &report.processes[0]).unwrap()
    };
    assert!(cause_of(&one).starts_with("DEADLOCK, if it stays so: "));
    let mut kernel = one.clone();
    kernel.analysis.cycles.clear();
    kernel.analysis.blocked.clear();
    let said = cause_of(&kernel);
    assert!(said.contains(": a kernel has not ended: "), "{said}");

    // At the end of a trace.
    one.analysis.cycles.clear();
    one.trace_ns = Some(1_000_000_000);
    one.rings.channels.truncate(1);
    let text = head(&one, None);
    assert!(
        text.contains(": BUSY: 1 of 1 channel has work that was not done"),
        "{text}"
    );
    one.processes[0].has_ended = true;
    let text = head(&one, None);
    assert!(
        text.contains(": UNKNOWN: it has ended, and nothing of it runs any more")
            && text.contains("1 of 1 channel had work"),
        "{text}"
    );
}

#[test]
fn an_xid_s_channels_are_shown_with_what_they_were_at() {
    let mut one = look(7);
    one.rings.channels[3].steps[0].operations = vec![launch()];
    let text = |one: &_| {
        shown(
            one,
            None,
            &ReportOptions {
                last: Some(20),
                ..ReportOptions::default()
            },
            false,
        )
    };
    let ids = |all: &str| -> Vec<String> {
        let heads = all
            .lines()
            .filter(|l| l.starts_with("channel ") && l.contains(", newest "));
        heads
            .map(|l| l.split(' ').nth(1).unwrap().to_owned())
            .collect()
    };
    let before = ids(&text(&one));
    for (id, wanted) in [
        (
            0,
            "channel 0: a kernel has not ended: grid 3x2x1 block 64x2x1 prog 0x7f4f4f7a0a00 (entry 1)",
        ),
        (3, "channel 3, entry 0, the newest fetched: launch"),
    ] {
        one.processes[0].xids[0].channels = vec![ChannelId(id)];
        let text = text(&one);
        let mut lines = text.lines().skip_while(|l| !l.contains("kernel log"));
        let (message, next) = (lines.next().unwrap(), lines.next().unwrap());
        assert!(message.contains(&format!("; channel {id} (")), "{message}");
        assert!(next.trim_start().starts_with(wanted), "{next} in\n{text}");
        // It comes first.
        assert_eq!(ids(&text)[0], id.to_string(), "{before:?}");
    }
}

/// Text shows what is not done, of channels whose progress is known; all that is asked for otherwise.
#[test]
fn what_is_not_done_is_shown() {
    let heads = |look: &Report, options: &ReportOptions| -> Vec<String> {
        let text = shown(look, None, options, false);
        let of =
            |l: &&str| l.starts_with("channel ") && l.contains(", ") || l.starts_with("all done");
        text.lines().filter(of).map(str::to_owned).collect()
    };
    let usual = ReportOptions::default();
    // Entry 0 is done, and 1 and 2 are not.
    let hung = look_at(7, &[0]);
    let [head] = &heads(&hung, &usual)[..] else {
        panic!("{}", shown(&hung, None, &usual, false))
    };
    assert!(head.ends_with(", 2 entries not done"), "{head}");
    let text = shown(&hung, None, &usual, false);
    let marks = ["done", "runs", "queued"].map(|mark| {
        let is = |l: &&str| l.split_whitespace().nth(1) == Some(mark) && l.starts_with("   ");
        text.lines().filter(is).count()
    });
    assert_eq!(marks, [1, 1, 1], "{text}");
    // A kernel whose own semaphore tells that it has not ended, behind the channel's.
    let mut passed = look_at(9, &[0]);
    passed.analysis.channels[0].running = hung.analysis.channels[0].running.clone();
    assert!(passed.analysis.channels[0].running.is_some());
    let text = shown(&passed, None, &usual, false);
    assert!(text.contains("    1 runs "), "{text}");
    let mut idle = look_at(9, &[0]);
    idle.rings.channels[0].get = 3;
    for step in &mut idle.rings.channels[0].steps {
        step.pending = false;
    }
    let all = "all done on 1 channel: --last N shows their newest entries";
    assert_eq!(heads(&idle, &usual), [all]);
    for options in [
        ReportOptions {
            last: Some(2),
            ..ReportOptions::default()
        },
        ReportOptions {
            channels: vec![0],
            ..ReportOptions::default()
        },
    ] {
        let [head] = &heads(&idle, &options)[..] else {
            panic!("{}", shown(&idle, None, &options, false))
        };
        let newest = if options.last.is_some() { 2 } else { 3 };
        assert!(head.contains(&format!(", newest {newest} of ")), "{head}");
    }
}

/// Idle channels are one line beside one that is not, but for those that are asked for.
#[test]
fn idle_channels_are_counted() {
    let mut look = look_at(7, &[0]);
    for id in 10..14 {
        let mut idle = channel(id, 3, Vec::new());
        idle.put = 3;
        look.rings.channels.push(idle);
        let judged = look_at(9, &[0]).analysis.channels[0].clone();
        look.analysis.channels.push(Judged {
            id: ChannelId(id),
            state: State::Idle,
            pending: 0,
            running: None,
            wait: None,
            ..judged
        });
    }
    let rows = |options: &ReportOptions| -> Vec<String> {
        let text = shown(&look, None, options, false);
        let table = text.lines().skip_while(|l| !l.starts_with("channel "));
        let rows = table.skip(1).take_while(|l| !l.is_empty());
        rows.map(|l| l.trim_start().to_owned()).collect()
    };
    let all = rows(&ReportOptions {
        verbose: true,
        ..ReportOptions::default()
    });
    assert_eq!(all.len(), 5, "{all:?}");
    let usual = rows(&ReportOptions::default());
    assert_eq!(usual.len(), 2, "{usual:?}");
    assert_eq!(usual[1], "4 more channels idle: -v shows them");
    let chosen = rows(&ReportOptions {
        channels: vec![12],
        ..ReportOptions::default()
    });
    assert_eq!(chosen.len(), 3, "{chosen:?}");
    assert!(chosen[1].starts_with("12 "), "{chosen:?}");
}

#[test]
fn what_moves_is_no_hang() {
    let (first, second) = (look(7), look(8));
    let options = ReportOptions {
        last: Some(20),
        ..ReportOptions::default()
    };
    let text = shown(&second, Some(&first), &options, false);
    assert!(
        text.contains("0 entries submitted, 0 fetched, 1 done (0.5/s)"),
        "{text}"
    );
}

fn status_of(look: &Report, before: Option<&Report>) -> Status {
    let moved = before.map(|b| {
        let (was, is) = ((&b.rings, &b.analysis), (&look.rings, &look.analysis));
        compare(was, is, 2_000_000_000, |b, n| b == n)
    });
    status(&Shown {
        report: look,
        moved: moved.as_ref(),
    })
}

/// As [`look`], without the error, and with these channels alone.
fn look_at(done: u64, channels: &[usize]) -> Report {
    let mut look = look(done);
    let all = std::mem::take(&mut look.rings.channels);
    let kept = all.into_iter().enumerate();
    let kept = kept.filter(|(n, _)| channels.contains(n));
    look.rings.channels = kept.map(|(_, c)| c).collect();
    let mut values = Values::default();
    for (address, value) in [(0x5000, done), (0x5010, 0), (0x5020, 0), (0x6000, 3)] {
        values.set(PID, GpuVa(address), value);
    }
    look.analysis = analyse(&look.rings, &values);
    look.processes[0].channels.retain_mut(|f| {
        f.error = None;
        channels.contains(&(f.channel.0 as usize))
    });
    look
}

#[test]
fn a_script_can_tell_what_was_seen_by_the_exit_status() {
    let mut idle = look_at(9, &[0]);
    idle.rings.channels[0].get = 3;
    idle.analysis = analyse(&idle.rings, &{
        let mut values = Values::default();
        values.set(PID, GpuVa(0x5000), 9);
        values
    });
    assert_eq!(status_of(&idle, None), Status::Idle);
    assert_eq!(status_of(&idle, Some(&idle)), Status::Idle);
    let mut unread = idle.clone();
    unread.processes[0].channels[0].unreadable = 4;
    assert_eq!(status_of(&unread, None), Status::Unread);

    let busy = look_at(7, &[0, 1, 2]);
    assert_eq!(status_of(&busy, None), Status::Busy);
    assert_eq!(status_of(&busy, Some(&busy)), Status::Hang);
    // One channel went on, and is alone; or others with work did not.
    let further = look_at(8, &[0]);
    assert_eq!(status_of(&further, Some(&look_at(7, &[0]))), Status::Moving);
    assert_eq!(
        status_of(&look_at(8, &[0, 1, 2]), Some(&busy)),
        Status::Busy
    );

    let unknown = look_at(7, &[]);
    assert_eq!(status_of(&unknown, None), Status::Unknown);
    assert_eq!(status_of(&look(7), None), Status::Stopped);
    let codes: std::collections::HashSet<u8> = [
        Status::Idle,
        Status::Error,
        Status::Unread,
        Status::NoGpu,
        Status::Moving,
        Status::Busy,
        Status::Unknown,
        Status::Hang,
        Status::Stopped,
    ]
    .map(Status::code)
    .into();
    assert_eq!(codes.len(), 9, "all differ");
    assert!(!codes.contains(&2), "that is usage");
}

#[test]
fn of_several_processes_the_worst_decides() {
    let mut both = look_at(7, &[0]);
    let mut other = both.processes[0].clone();
    other.pid = PID + 1;
    other.channels.clear();
    both.processes.push(other);
    assert_eq!(status_of(&both, None), Status::Unknown);
    assert_eq!(status_of(&both, Some(&both)), Status::Hang);
    both.processes.reverse();
    assert_eq!(status_of(&both, Some(&both)), Status::Hang);
}

#[test]
fn one_is_not_many() {
    let mut one = look_at(9, &[0]);
    one.rings.channels[0].get = 3;
    let mut values = Values::default();
    values.set(PID, GpuVa(0x5000), 9);
    one.analysis = analyse(&one.rings, &values);
    let options = ReportOptions {
        last: Some(20),
        ..ReportOptions::default()
    };
    let text = shown(&one, None, &options, false);
    assert!(text.contains("submitted on 1 channel: "), "{text}");
    assert!(text.contains("1 thread: 1 running"), "{text}");
    let busy = shown(&look_at(7, &[0]), None, &options, false);
    assert!(busy.contains("1 of 1 channel has work"), "{busy}");
}

/// A channel or token that is asked for and not there is told, with those that are.
#[test]
fn channels_that_are_not_there_are_told() {
    let look = look(7);
    let lacks = |channels: &[u32], tokens: &[u32]| {
        let options = ReportOptions {
            channels: channels.to_vec(),
            tokens: tokens.to_vec(),
            ..ReportOptions::default()
        };
        options.lacks(&look)
    };
    assert_eq!(lacks(&[], &[]), None);
    let token = look.rings.channels[0].token.unwrap();
    assert_eq!(lacks(&[0, 3], &[token]), None);
    let said = lacks(&[99, 0], &[0x99]).unwrap();
    assert!(
        said.starts_with(
            "there is no channel 99, no channel with the token 0x00099; there are (token) 0 ("
        ),
        "{said}"
    );
    assert!(said.contains(", 3"), "{said}");
}
