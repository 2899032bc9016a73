//! Filter expressions: any text is taken or refused at a column of it; what is taken says of each event the opposite of
//! its negation, and the same in brackets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::{
    decode::{DecodeOptions, Decoder, encode::Pushbuffer, event::Body},
    record::{At, ChannelId, How, Submission},
    wire::GpuVa,
};
use nvcap_show::output::{Detail, filter::Filter};

/// A submission with an event of most kinds in it.
fn sample() -> Submission {
    let mut p = Pushbuffer::new();
    p.bind(1, 0xcbc0).bind(4, 0xc8b5).bind(5, 0xc9b0);
    p.inline(1, 0xcbc0, GpuVa(0x7f00_0000_0000), &[1; 64])
        .expect("compute");
    p.pcas(1, 0xcbc0, GpuVa(0x2_0000_0000)).expect("compute");
    p.copy(4, 0xc8b5, GpuVa(0x1000), GpuVa(0x2000), 4096)
        .expect("copy");
    p.release(1, 0xcbc0, GpuVa(0x3000), 7).expect("compute");
    p.named(1, 0xcbc0, "WAIT_FOR_IDLE", &[0]).expect("compute");
    p.named(5, 0xc9b0, "EXECUTE", &[0]).expect("video");
    // An illegal header: a stop.
    p.raw(0xc000_0000);
    Submission {
        at: At {
            time_ns: 5_000_000_000,
            pid: 70,
            tid: 71,
        },
        channel: ChannelId(3),
        token: Some(0x10012),
        position: 9,
        gp_get: Some(1),
        prev_put: 9,
        gp_put: 10,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: true,
        absent_ns: None,
        thread: Some("name".into()),
        segments: vec![p.segment(GpuVa(0x1000))],
    }
}

fuzz_target!(|text: &str| {
    let parsed = Filter::parse(text);
    let Ok(filter) = parsed else {
        let error = parsed.expect_err("not taken");
        assert!(
            (1..=text.chars().count() + 1).contains(&error.column),
            "{error}"
        );
        assert!(error.to_string().contains(&error.message));
        return;
    };
    // Both are one level deeper, which may be one too many.
    let not = Filter::parse(&format!("!({text})"));
    let again = Filter::parse(&format!("({text})"));
    let detail = filter.detail();
    assert!(detail <= Detail::Words);
    let submission = sample();
    let mut decoder = Decoder::new(DecodeOptions::default());
    let context = decoder.context(&submission, 0);
    let mut events = 0;
    decoder.submission(&submission, &context, &(), &mut |event| {
        events += 1;
        let matches = filter.matches(&event);
        if let Ok(again) = &again {
            assert_eq!(again.matches(&event), matches);
        }
        match event.body {
            Body::Stop(_) => assert!(matches),
            _ => {
                if let Ok(not) = &not {
                    assert_ne!(not.matches(&event), matches);
                }
            }
        }
    });
    assert!(events > 8);
});
