//! Sentences on shares of a GPU.

use nvcap_decode::record::Identity;
use nvcap_decode::switches::{EngineView, GpuView, Instance, Who};

use super::works::Works;
use crate::output::plural::{plural, plural_of};
use crate::output::units::Nanoseconds;

/// Returns the name of an engine: the GPU, or its MIG instance.
#[must_use]
pub fn title(view: &GpuView, engine: &EngineView) -> String {
    match engine.instance {
        None => format!("GPU {}", view.gpu),
        Some(instance) => format!("GPU {}, {}", view.gpu, instance_name(instance)),
    }
}

/// Returns the name of a MIG instance: `MIG 1/0`, `MIG 1/-` without a compute instance.
#[must_use]
pub fn instance_name(instance: Instance) -> String {
    let compute = instance.compute.map_or("-".to_owned(), |c| c.to_string());
    format!("MIG {}/{compute}", instance.gpu)
}

/// Returns the words for a holder that is no process which the driver names.
#[must_use]
pub const fn unnamed(who: Who) -> Option<&'static str> {
    match who {
        Who::Process(_) => None,
        Who::Hidden => Some("(not named)"),
        Who::Driver => Some("(the driver)"),
    }
}

/// Returns a rate.
#[must_use]
pub fn per_second(number: u64, ns: u64) -> f64 {
    match ns {
        0 => 0.0,
        ns => number as f64 * 1e9 / ns as f64,
    }
}

/// Returns the sentence that sums up each engine.
#[must_use]
pub fn verdicts(view: &GpuView) -> Vec<String> {
    if view.engines.is_empty() {
        return vec![format!(
            "GPU {}: no context switch in {}: one context stayed resident all the time, or none was; the driver does not tell which (nvcap counts -a tells who submits)",
            view.gpu,
            Nanoseconds(view.ns)
        )];
    }
    let verdict = |engine: &EngineView| {
        let had = match engine.holders.len() {
            0 | 1 => "had",
            _ => "shared",
        };
        let mut text = format!("{} {had} {}", holders(engine), title(view, engine));
        let lost = 100.0 * engine.share(engine.switch_ns);
        let rate = per_second(engine.switches, engine.ns);
        let mean = Nanoseconds(engine.switch_ns / engine.switches.max(1));
        if engine.switches > 0 {
            text += &format!(": {lost:.1} % of it was lost in {rate:.0} switches/s of {mean}");
        }
        text
    };
    view.engines.iter().map(verdict).collect()
}

/// Least share of a process's turns in which it does nothing that is told.
const IDLE_TOLD: f64 = 0.1;

/// The most processes of a GPU of which that is told, those with the longest residence first.
const MOST_IDLE: usize = 8;

/// Returns a sentence for each process that had a GPU and did nothing with it for a good part of its turns.
pub fn idle<'a>(
    view: &GpuView,
    works: &Works,
    identity: impl Fn(u32) -> Option<&'a Identity>,
) -> Vec<String> {
    let holders = view.engines.iter().flat_map(|engine| &engine.holders);
    let told = holders.filter_map(|(who, ..)| {
        let Who::Process(pid) = *who else { return None };
        let work = works.of(view.gpu, pid)?;
        let idle = work.idle().filter(|idle| *idle >= IDLE_TOLD)?;
        let name = identity(pid).map_or("process", |who| who.comm.as_str());
        let most = if work.untimed > 0 { "up to " } else { "" };
        Some(format!(
            "{name} {pid} holds it idle for {most}{:.0} % of its turns",
            100.0 * idle
        ))
    });
    told.take(MOST_IDLE).collect()
}

/// Returns words on all holders of an engine.
fn holders(engine: &EngineView) -> String {
    let of = |who: fn(&Who) -> bool| engine.holders.iter().filter(|h| who(&h.0)).count();
    let named = of(|who| matches!(who, Who::Process(_)));
    let hidden = of(|who| matches!(who, Who::Hidden)) > 0;
    let driver = of(|who| matches!(who, Who::Driver)) > 0;
    let mut all = Vec::new();
    if named > 0 {
        all.push(plural_of(named as u64, "process", "processes"));
    }
    if hidden {
        let some = if named > 0 { "others" } else { "processes" };
        all.push(format!("{some} that are not named"));
    }
    if driver {
        all.push("the driver".to_owned());
    }
    match all.is_empty() {
        true if engine.unknown_ns > 0 => "it is not known who".to_owned(),
        true => "no process".to_owned(),
        false => all.join(" and "),
    }
}

/// Returns sentences on what is missing, and what was not understood.
#[must_use]
pub fn lacks(view: &GpuView) -> Vec<String> {
    let gpu = view.gpu;
    let mut all = Vec::new();
    if view.missing > 0 {
        let records = plural(view.missing, "record");
        all.push(format!(
            "GPU {gpu}: at least {records} missing: the driver lost them"
        ));
    }
    if view.strange > 0 {
        let records = plural(view.strange, "record");
        all.push(format!("GPU {gpu}: {records} not understood: update nvcap"));
    }
    let incomplete: u64 = view.engines.iter().map(|e| e.incomplete).sum();
    if incomplete > 0 {
        let slices = plural(incomplete, "slice");
        all.push(format!("GPU {gpu}: {slices} without a begin or an end"));
    }
    all
}

#[cfg(test)]
mod tests {
    use nvcap_decode::switches::{Held, Scope};

    use super::*;

    #[test]
    fn whoever_had_a_gpu_is_named_by_what_is_known() {
        let said = |holders: &[Who], unknown_ns| {
            let engine = EngineView {
                ns: 1_000,
                unknown_ns,
                holders: { holders.iter() }
                    .map(|who| (*who, Held::default(), 1))
                    .collect(),
                ..EngineView::default()
            };
            let view = GpuView {
                gpu: 3,
                scope: Scope::AllUsers,
                began_ns: 0,
                ns: 1_000,
                engines: vec![engine],
                missing: 0,
                strange: 0,
            };
            verdicts(&view).remove(0)
        };
        let (one, two) = (Who::Process(1), Who::Process(2));
        for (holders, words) in [
            (&[][..], "no process had GPU 3"),
            (&[one], "1 process had GPU 3"),
            (&[Who::Hidden], "processes that are not named had GPU 3"),
            (&[Who::Driver], "the driver had GPU 3"),
            (
                &[one, Who::Hidden],
                "1 process and others that are not named shared GPU 3",
            ),
            (
                &[one, two, Who::Driver],
                "2 processes and the driver shared GPU 3",
            ),
        ] {
            assert_eq!(said(holders, 0), words);
        }
        assert_eq!(said(&[], 5), "it is not known who had GPU 3");
    }
}
