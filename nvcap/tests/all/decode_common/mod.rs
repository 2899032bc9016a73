//! A decoder with one channel, fed by the encoder, for the tests of single forms.

pub mod capture;

use nvcap_decode::{
    decode::{
        DecodeOptions, Decoder, Places,
        encode::Pushbuffer,
        event::{Body, ChipSettled, Launch, MethodWrite, Operation, Stop},
    },
    record::{At, Channel, ChannelId, How, Origin, Segment, Submission},
    wire::{GpuVa, entry::EntryKind},
};

/// Address of the segments.
pub const CODE: GpuVa = GpuVa(0x2_0080_0000);

/// A decoder with one channel, and what it was told.
pub struct Bench {
    pub decoder: Decoder,
    pub position: u64,
    pub channel: ChannelId,
    pub pid: u32,
    pub token: u32,
    pub places: Box<dyn Places>,
    pub writes: Vec<MethodWrite>,
    pub operations: Vec<Operation>,
    pub stops: Vec<Stop>,
    pub entries: Vec<EntryKind>,
    pub chips: Vec<ChipSettled>,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(DecodeOptions::default())
    }

    pub fn with(options: DecodeOptions) -> Self {
        Self {
            decoder: Decoder::new(options),
            position: 0,
            channel: ChannelId(0),
            pid: 100,
            token: 0xa,
            places: Box::new(()),
            writes: Vec::new(),
            operations: Vec::new(),
            stops: Vec::new(),
            entries: Vec::new(),
            chips: Vec::new(),
        }
    }

    /// A channel of this class on this engine (NV2080_ENGINE_TYPE).
    pub fn channel(mut self, class: u32, engine: u32) -> Self {
        let at = At {
            time_ns: 0,
            pid: self.pid,
            tid: 0,
        };
        self.decoder.channel(&Channel {
            gpu: Some(0),
            class: Some(class),
            engine: Some(engine),
            ..Channel::bare(at, self.channel, Origin::Allocated)
        });
        self
    }

    pub fn submit(&mut self, segments: Vec<Segment>) -> &mut Self {
        let s = Submission {
            absent_ns: None,
            at: At {
                time_ns: 1,
                pid: self.pid,
                tid: self.pid,
            },
            channel: self.channel,
            token: Some(self.token),
            position: self.position,
            gp_get: None,
            prev_put: 0,
            gp_put: 0,
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: None,
            segments,
        };
        self.position += s.segments.len() as u64;
        let context = self.decoder.context(&s, 0);
        let Self {
            decoder,
            places,
            writes,
            operations,
            stops,
            entries,
            chips,
            ..
        } = self;
        decoder.submission(&s, &context, &**places, &mut |e| match e.body {
            Body::Method(w) => writes.push(w),
            Body::Operation(o) => operations.push(o.clone()),
            Body::Stop(s) => stops.push(s),
            Body::Entry(e) => entries.push(e.kind),
            Body::Chip(c) => chips.push(c),
            Body::Submission(_) => {}
        });
        self
    }

    pub fn words(&mut self, form: impl FnOnce(&mut Pushbuffer)) -> &mut Self {
        let mut p = Pushbuffer::new();
        form(&mut p);
        self.submit(vec![p.segment(CODE)])
    }

    /// Operations since the last time, binds left out.
    pub fn told(&mut self) -> Vec<Operation> {
        let mut told = std::mem::take(&mut self.operations);
        told.retain(|o| !matches!(o, Operation::Bind(_)));
        told
    }

    /// The only operation since the last time.
    pub fn one(&mut self) -> Operation {
        let mut told = self.told();
        assert_eq!(told.len(), 1, "{told:#?}");
        told.remove(0)
    }
}

impl Bench {
    /// The only launch since the last time: of a PCAS that does not launch at once, which is told as a barrier first.
    pub fn launch(&mut self) -> Launch {
        let mut told = self.told();
        assert_eq!(told.len(), 2, "{told:#?}");
        let Some(Operation::Launch(launch)) = told.pop() else {
            panic!("{told:#?}")
        };
        assert!(
            matches!(&told[0], Operation::Barrier(b) if b.what.starts_with("pcas_") && b.address == launch.qmd),
            "{told:#?}"
        );
        *launch
    }
}

/// Single method writes by name.
pub fn named(p: &mut Pushbuffer, subchannel: u8, class: u32, list: &[(&str, u32)]) {
    for (name, data) in list {
        p.named(subchannel, class, name, &[*data])
            .unwrap_or_else(|e| panic!("{e}"));
    }
}

/// A copy with LAUNCH_DMA `data` after these methods.
pub fn copy(before: &[(&str, u32)], data: u32) -> Operation {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(4, 0xc8b5);
        let address = [
            ("OFFSET_IN_UPPER", 1),
            ("OFFSET_IN_LOWER", 0x100),
            ("OFFSET_OUT_UPPER", 2),
            ("OFFSET_OUT_LOWER", 0x200),
        ];
        named(p, 4, 0xc8b5, &address);
        named(p, 4, 0xc8b5, before);
        named(p, 4, 0xc8b5, &[("LAUNCH_DMA", data)]);
    });
    b.one()
}
