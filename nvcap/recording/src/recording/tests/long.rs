//! Tests of records that are longer than a reader accepts.

use super::*;

/// Test that a reader gives up a record that is too long to be one, and that a writer writes no such record.
#[test]
fn what_is_too_long_is_cut_or_counted() {
    let name: Arc<str> = "n".repeat(16 << 10).into();
    let frame = Frame {
        symbol: Some(name.clone()),
        ..Frame::default()
    };
    let calls = Calls {
        frames: vec![frame; 20],
        ..Calls::default()
    };
    let stack = Record::Stack(Stack {
        at: at(1),
        calls: Arc::new(calls),
    });
    let kernel = Record::Kernel(Box::new(Kernel {
        at: at(2),
        program: GpuVa(1),
        name: name.repeat(13),
        bytes: Some(1),
        params: None,
        by: NamedBy::Record,
        certain: true,
        driver: false,
        variables: Vec::new(),
    }));
    let mut file = Vec::new();
    let mut writer = Writer::new(info(), 7);
    assert_eq!(writer.most, kind::MOST_BODY);
    writer.most = 192 << 10;
    writer.begin_section(&mut file);
    for record in [stack, kernel] {
        writer.record(&record, &mut file);
    }
    writer.end(end(), &Ledger::new(), b"{}", &mut file);
    let (records, errors) = read(&file);
    assert_eq!(errors, Vec::<String>::new());
    let [Record::Stack(stack), Record::Loss(loss)] = &records[..] else {
        panic!("{} records", records.len());
    };
    assert_eq!(
        (stack.calls.frames.len(), stack.calls.end),
        (10, StackEnd::Deep)
    );
    assert!(
        matches!(&loss.what, Lost::Untraced { why } if why.contains("kernel")),
        "{loss:?}"
    );
}

/// Test that a reader limits the bytes of the calls that it holds, and that a writer stays within the limit, so that each stack has its
/// frames.
#[test]
fn stacks_beyond_the_bound_of_calls_are_whole() {
    const MOST: usize = 64 << 10;
    let of = |n: u32| {
        let frame = |f: u32| Frame {
            symbol: Some(format!("function {n} {f}").into()),
            ..Frame::default()
        };
        Record::Stack(Stack {
            at: at(1),
            calls: Arc::new(Calls {
                frames: (0..40).map(frame).collect(),
                ..Calls::default()
            }),
        })
    };
    let stacks: Vec<_> = (0..50).map(of).collect();
    // Some come in a row, and some come again after others.
    let order = (0..50).chain((0..500).map(|n| n * 7 % 50));
    let (mut file, mut writer) = (Vec::new(), Writer::new(info(), 7));
    writer.most_calls = MOST;
    writer.begin_section(&mut file);
    let written: Vec<_> = order.map(|n| stacks[n].clone()).collect();
    for record in &written {
        writer.record(record, &mut file);
    }
    writer.end(end(), &Ledger::new(), b"{}", &mut file);
    let mut reader = Reader::new(&file[..]);
    reader.calls.most_bytes = MOST;
    let read: Vec<_> = { reader }
        .filter_map(|item| match item {
            Ok(Item::Record(record)) => Some(record),
            Ok(_) => None,
            Err(error) => panic!("{error}"),
        })
        .collect();
    assert!(read == written, "{} of {}", read.len(), written.len());
}
