//! One driver model per trace.

use super::*;
use crate::output::ioctls::{IoctlOptions, Ioctls};
use crate::output::json::{Json, JsonOptions};
use crate::output::model_view::ModelView;
use crate::output::stats::{Form, Stats};
use crate::output::streams::Streams;
use crate::output::text::{Text, TextOptions};
use crate::output::writer::Output;
#[cfg(debug_assertions)]
use nvcap_decode::driver::MADE;
use nvcap_decode::record::At;
use nvcap_decode::record::Process;

fn nowhere() -> Output {
    Output::to(Box::new(io::sink()))
}

/// Keeps the addresses of the models it was lent, and the process names they gave.
#[derive(Default)]
struct Borrower {
    lent: Vec<(*const Model, Option<String>)>,
}

impl Borrower {
    fn note(&mut self, model: &Model) {
        let name = model.process_name(7).map(str::to_owned);
        self.lent.push((std::ptr::from_ref(model), name));
    }
}

impl Sink for Borrower {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn before(&mut self, _: &Record, model: &Model) -> io::Result<()> {
        self.note(model);
        Ok(())
    }

    fn record(&mut self, _: &Record, model: &Model) -> io::Result<()> {
        self.note(model);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, model: &Model) -> io::Result<()> {
        self.note(model);
        Ok(())
    }
}

fn named(name: &str) -> Record {
    Record::Process(Process {
        at: At {
            time_ns: 1,
            pid: 7,
            tid: 7,
        },
        life: Life::Present { name: name.into() },
    })
}

#[cfg(debug_assertions)]
#[test]
fn a_trace_with_every_sink_makes_one_model() {
    MADE.with(|made| made.set(0));
    let mut view = ModelView::new(true);
    let sinks: Vec<Box<dyn Sink + '_>> = vec![
        Box::new(Text::new(nowhere(), TextOptions::default())),
        Box::new(Json::new(nowhere(), JsonOptions::default())),
        Box::new(Stats::new(nowhere(), Form::Json, Detail::Methods, false)),
        Box::new(Ioctls::text(nowhere(), IoctlOptions::default())),
        Box::new(Ioctls::json(nowhere(), IoctlOptions::default())),
        Box::new(Streams::text(nowhere())),
        Box::new(&mut view),
    ];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks).in_time_order();
    for name in ["a", "b"] {
        pipeline
            .record(named(name))
            .expect("the sink takes everything");
    }
    let _ = pipeline.finish().expect("the sink takes everything");
    assert_eq!(MADE.with(std::cell::Cell::get), 1);
}

#[test]
fn sinks_see_the_model_before_and_after_each_record() {
    let (mut one, mut other) = (Borrower::default(), Borrower::default());
    let mut pipeline = Pipeline::new(
        PipelineOptions::default(),
        vec![Box::new(&mut one), Box::new(&mut other)],
    );
    pipeline
        .record(named("a"))
        .expect("the sink takes everything");
    pipeline
        .record(named("b"))
        .expect("the sink takes everything");
    let _ = pipeline.finish().expect("the sink takes everything");
    let names: Vec<_> = one.lent.iter().map(|(_, name)| name.as_deref()).collect();
    assert_eq!(names, [None, Some("a"), Some("a"), Some("b"), Some("b")]);
    // The pipeline moves at its end, and its model with it; both sinks see the same model at each call.
    assert_eq!(one.lent, other.lent);
}
