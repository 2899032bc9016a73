//! Tests of a sampling by `nvcap_live::samples` with the stand-in driver.

use std::rc::Rc;

use nvcap_decode::samples::programme::{self, Call, command};
use nvcap_decode::samples::stream::records;
use nvcap_decode::samples::{Counts, Operation, Programme, Sample, Stream};
use nvcap_live::samples::{Candidates, Context, Error, Options, Session, of_candidates};

use super::*;

const PID: u32 = 4711;
const CLIENT: u32 = 0xc1d0_0040;
const GROUP: u32 = 0x5c00_0015;
const CONTEXT: Context = Context {
    client: CLIENT,
    group: GROUP,
    gpu: Some(GPU),
};
/// Another process, and its client.
const OTHER: (u32, u32) = (4712, 0xc1d0_0041);

fn driver() -> Rc<Driver> {
    let driver = Driver::new();
    driver.process(PID, CLIENT, &[GROUP]);
    driver.process(OTHER.0, OTHER.1, &[GROUP]);
    Rc::new(driver)
}

/// Contexts of a process with these clients in its memory, and every object that a client may have.
fn contexts(driver: &Rc<Driver>, pid: u32, clients: &[u32]) -> Result<Vec<Context>, Error> {
    let os: Rc<dyn Os> = Rc::<Driver>::clone(driver);
    let found = Candidates {
        clients: clients.to_vec(),
        objects: (0x5c00_0000..0x5c00_0200).collect(),
    };
    of_candidates(&os, None, pid, &found)
}
const OFF: Operation = Operation {
    context: true,
    offset: 0x42_43dc,
    value: 0,
    mask: u32::MAX,
};

/// A programme of one unit.
fn programme() -> Programme {
    let write = |operations: &[Operation]| Call {
        object: (1, 2),
        command: command::EXEC_REG_OPS,
        parameters: programme::parameters(operations),
    };
    let call = |command, len| Call {
        object: (1, 2),
        command,
        parameters: vec![0; len],
    };
    let unit = Operation {
        context: false,
        offset: 0x18_0b08,
        value: 0x20,
        mask: u32::MAX,
    };
    let calls = [
        call(command::RESERVE_PC_SAMPLER, 0),
        write(&[OFF]),
        call(command::SET_HS_CREDITS, 256),
        write(&[unit, unit]),
        write(&[Operation { value: 0x1d, ..OFF }]),
        call(command::UPDATE_GET_PUT, 48),
        write(&[Operation { mask: 0x10, ..unit }]),
    ];
    Programme::learn(&calls, &[19], "GPU-0", "580.1").expect("a programme")
}

fn options() -> Options {
    Options {
        gpu: 0,
        pid: PID,
        context: CONTEXT,
        programme: programme(),
        buffer: 0x1_0000,
    }
}

fn open(driver: &Rc<Driver>, options: &Options) -> Result<Session, Error> {
    let os: Rc<dyn Os> = Rc::<Driver>::clone(driver);
    Session::open(os, None, options)
}

fn commands(told: &[Told]) -> Vec<u32> {
    let command = |told: &Told| match told {
        Told::Control(command, _) => Some(command & 0xffff),
        _ => None,
    };
    told.iter().filter_map(command).collect()
}

#[test]
fn samples_are_read_however_often_the_buffer_goes_round() {
    let driver = driver();
    let mut session = open(&driver, &options()).expect("a session");
    assert_eq!(session.context(), CONTEXT);
    let mut fire = || {
        driver.trigger();
        Ok(())
    };
    session.trigger(&mut fire).expect("it begins");
    assert!(driver.is_on());
    let (mut stream, mut counts) = (Stream::default(), Counts::default());
    let sample = |sm, i: u64| Sample {
        sm,
        pc: 0x7f00_0000_0000 + 16 * (i % 8),
        warp: 3,
        reason: 8,
        issued: true,
    };
    // 8,064 bytes at a time: the buffer of 64 KiB goes round four times.
    for _ in 0..32 {
        for sm in [20, 21] {
            let samples: Vec<Sample> = (0..28 * 14).map(|i| sample(sm, i)).collect();
            driver.writes(&records(sm, &samples));
        }
        let read = session.poll(&mut |bytes| stream.take(bytes, |s| counts.take(&s)));
        assert_eq!(read.expect("it is read"), 8064);
    }
    session.trigger(&mut fire).expect("it ends");
    session.flush().expect("the rest is written");
    assert!(!driver.is_on());
    assert_eq!((counts.samples(), counts.sms()), (32 * 2 * 28 * 14, 2));
    assert_eq!(counts.counters().len(), 8);
    let totals = stream.totals();
    assert_eq!(
        (totals.strange(), totals.cut_bytes, totals.bytes()),
        (0, 0, 32 * 8064)
    );
    assert_eq!(
        (session.read().bytes, session.read().overflows),
        (32 * 8064, 0)
    );
}

#[test]
fn the_programme_is_set_as_it_was_learnt_and_everything_is_given_back() {
    let driver = driver();
    drop(open(&driver, &options()).expect("a session"));
    let told = driver.told();
    assert_eq!(told[0], Told::Bound(CLIENT, GROUP));
    // Stream, monitors, sampler, bound; off, credits, units, on; off, and all of it back. No power feature is asked for.
    let expected = [
        0x105, 0x101, 0x10b, 0x107, 0x10a, 0x10e, 0x10a, 0x10a, 0x10a, 0x108, 0x106, 0x10c, 0x102,
    ];
    assert_eq!(commands(&told), expected);
    let off = programme::parameters(&[OFF]);
    assert_eq!(told[9], Told::Control(command::EXEC_REG_OPS, off));
    assert_eq!(told.last(), Some(&Told::Freed));
}

#[test]
fn a_profiler_that_another_has_is_left_alone() {
    let driver = driver();
    driver.hold(true);
    let refused = open(&driver, &options()).err().expect("it is refused");
    assert!(matches!(refused, Error::Held(_)), "{refused}");
    assert!(refused.to_string().contains("another client"), "{refused}");
    // No register was set, and what was got is freed.
    assert_eq!(commands(&driver.told()), [0x105, 0x101, 0x106]);
    assert_eq!(driver.told().last(), Some(&Told::Freed));
    driver.hold(false);
    drop(open(&driver, &options()).expect("a session"));
}

#[test]
fn the_contexts_are_the_groups_that_compute() {
    let driver = driver();
    driver.process(PID, CLIENT, &[GROUP, GROUP + 0x80]);
    let second = Context {
        group: GROUP + 0x80,
        ..CONTEXT
    };
    let found = contexts(&driver, PID, &[CLIENT]);
    assert_eq!(found.expect("its own"), [CONTEXT, second]);
    let found = contexts(&driver, PID, &[]);
    assert_eq!(found.expect("nothing in its memory"), []);
}

#[test]
fn another_process_s_client_is_no_context_though_its_handle_is_in_the_memory() {
    let driver = driver();
    // More often in its memory than its own.
    let found = contexts(&driver, PID, &[OTHER.1, CLIENT]);
    assert_eq!(found.expect("its own"), [CONTEXT]);
    // A process that has none of its own.
    for pid in [PID, 4713] {
        let refused = contexts(&driver, pid, &[OTHER.1]).err();
        let refused = refused.expect("it is refused");
        assert!(
            matches!(refused, Error::NotItsOwn(of) if of == pid),
            "{refused}"
        );
        assert!(
            refused.to_string().contains("another process's"),
            "{refused}"
        );
    }
}

#[test]
fn a_context_of_another_process_is_not_bound() {
    let driver = driver();
    let mut options = options();
    options.context.client = OTHER.1;
    let refused = open(&driver, &options).err().expect("it is refused");
    assert!(matches!(refused, Error::NotItsOwn(PID)), "{refused}");
    // A client that has ended, whose handle another process has got.
    driver.ends(CLIENT);
    driver.process(OTHER.0, CLIENT, &[GROUP]);
    options.context.client = CLIENT;
    let refused = open(&driver, &options).err().expect("it is refused");
    assert!(matches!(refused, Error::NotItsOwn(PID)), "{refused}");
    let bound = |told: &Told| matches!(told, Told::Bound(..));
    assert!(!driver.told().iter().any(bound));
    options.pid = OTHER.0;
    drop(open(&driver, &options).expect("its own process's"));
    assert!(driver.told().iter().any(bound));
}

#[test]
fn a_driver_that_does_not_tell_whose_a_client_is_is_not_believed() {
    let driver = driver();
    driver.takes_all();
    let refused = contexts(&driver, PID, &[CLIENT]).err();
    let refused = refused.expect("it is refused");
    assert!(matches!(refused, Error::Unchecked), "{refused}");
    let refused = open(&driver, &options()).err().expect("it is refused");
    assert!(matches!(refused, Error::Unchecked), "{refused}");
}

#[test]
fn a_full_buffer_is_told() {
    let driver = driver();
    let mut session = open(&driver, &options()).expect("a session");
    driver.writes(&vec![0; 0x1_0000 + 32]);
    let mut bytes = 0;
    let read = session.poll(&mut |more| bytes += more.len());
    assert_eq!((read.expect("it is read"), bytes), (0x1_0000, 0x1_0000));
    assert_eq!(session.read().overflows, 1);
    session.poll(&mut |_| ()).expect("it is read");
    assert_eq!(session.read().overflows, 1);
}
