//! Captures run through a decoder.

use nvcap_decode::{
    decode::{
        DecodeOptions, Decoder, Wants,
        event::{Context, Event},
    },
    record::{Record, Submission},
};
use nvcap_recording::file::orc::Orc;

/// Every submission of a capture, decoded; `seen` gets the submission and what the decoder says of it.
pub fn decode(
    orc: Orc<Box<dyn std::io::Read>>,
    wants: Wants,
    mut seen: impl FnMut(&Submission, &Event<'_>),
) -> Decoder {
    let mut decoder = Decoder::new(DecodeOptions {
        wants,
        ..DecodeOptions::default()
    });
    let mut serial = 0;
    for record in orc {
        match record.expect("a whole record") {
            Record::Channel(c) => decoder.channel(&c),
            Record::Submission(s) => {
                let context: Context = decoder.context(&s, serial);
                serial += 1;
                decoder.submission(&s, &context, &(), &mut |e| seen(&s, e));
            }
            other => panic!("an oracle capture has no {other:?}"),
        }
    }
    decoder
}
