//! Records that are longer than a reader takes.

use super::*;

/// A reader gives up a record that is longer than any can be: what is written never is.
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

/// Files of one trace tell their calls anew, by the same numbers: none is forgotten for that.
#[test]
fn calls_that_are_told_anew_count_once() {
    use super::super::{kind::Kind, messages as m};
    use prost::Message;

    let calls = |number, frames| m::Calls {
        number,
        frames: vec![m::Frame::default(); frames],
        end: StackEnd::Cut.name().to_owned(),
        ..m::Calls::default()
    };
    let packet = |kind: Kind, body: Vec<u8>| recording_with(kind as u8, &body);
    let mut file = packet(Kind::Calls, calls(2, 1).encode_to_vec());
    let again = packet(Kind::Calls, calls(1, 16_000).encode_to_vec());
    // More frames in all than are kept.
    (0..300).for_each(|_| file.extend_from_slice(&again));
    let stack = m::Stack {
        at: Some(m::At::default()),
        calls: 2,
    };
    file.extend(packet(Kind::Stack, stack.encode_to_vec()));
    let (records, _) = read(&file);
    assert!(
        matches!(&records[..], [Record::Stack(s)] if s.calls.frames.len() == 1),
        "{records:?}"
    );
}
