//! The counts as metrics. A metric without a source is absent, not 0.
//!
//! Labels are those of NVIDIA's exporter (`UUID`, `gpu`, `namespace`, `pod`, `container`), so that its metrics and these join;
//! `pid` and `comm` where that was asked for. Never names of kernels, channels or tokens.

use std::collections::BTreeMap;

mod labels;
mod lost;
mod own;
mod sampled;
mod shares;

pub use self::labels::{Constants, GpuName};
use self::labels::{NS, Of};
use super::open_metrics::Text;
use super::protobuf::Families;
use super::writer::{Kind, Writer};
use crate::counts::channel::State;
use crate::counts::view::{GpuView, Key, View};

/// Xids by code, and the GPU and owner of the process that they are about.
pub type Errors = BTreeMap<(Key, u32), u64>;

/// The living processes of each series, summed up.
type Now<'a> = BTreeMap<&'a Key, GpuView>;

/// Returns the metrics of a reading, as text of OpenMetrics.
pub fn metrics(view: &View, errors: Option<&Errors>, constants: &Constants) -> String {
    let mut text = Text::default();
    write(&mut text, view, errors, constants);
    text.end()
}

/// Returns the metrics of a reading in Prometheus's own format.
pub fn families(view: &View, errors: Option<&Errors>, constants: &Constants) -> Vec<u8> {
    let mut families = Families::default();
    write(&mut families, view, errors, constants);
    families.end()
}

/// Writes the metrics of a reading.
pub(super) fn write(
    text: &mut impl Writer,
    view: &View,
    errors: Option<&Errors>,
    constants: &Constants,
) {
    let now = joined(view);
    submissions(text, view, constants);
    ended_submissions(text, view, constants);
    lost::metrics(text, view, constants);
    pending(text, &now, constants);
    oldest_pending(text, &now, constants);
    last_progress(text, &now, constants);
    channels(text, &now, constants);
    if let Some(errors) = errors {
        channel_errors(text, errors, constants);
    }
    sampled::metrics(text, view, constants);
    shares::metrics(text, view, constants);
    own::metrics(text, view, constants);
}

fn submissions(text: &mut impl Writer, view: &View, constants: &Constants) {
    text.family(
        "nvcap_submissions",
        Kind::Count,
        "",
        "Submissions to channels of the GPU, each one counted.",
    );
    for (key, counted) in &view.sums {
        let value = counted.sums.submitted as f64;
        let created = counted.created_unix_ns as f64 * NS;
        text.counter(&Of::new(key, constants).labels(&[]), value, created);
    }
}

fn ended_submissions(text: &mut impl Writer, view: &View, constants: &Constants) {
    if view.folded.is_empty() {
        return;
    }
    text.family(
        "nvcap_ended_submissions",
        Kind::Count,
        "",
        "Submissions of processes and containers that ended long ago and have no series of their own any more.",
    );
    for (gpu, folded) in &view.folded {
        let key = Key {
            gpu: *gpu,
            ..Key::default()
        };
        text.counter(
            &Of::new(&key, constants).labels(&[]),
            folded.sums.submitted as f64,
            constants.began,
        );
    }
}

fn pending(text: &mut impl Writer, now: &Now<'_>, constants: &Constants) {
    text.family(
        "nvcap_pending_submissions",
        Kind::Gauge,
        "",
        "Submissions that are not done, fetched by the GPU or not.",
    );
    for (key, of) in now {
        let key = Of::new(key, constants);
        let fetched = of.pending - of.unfetched.min(of.pending);
        text.gauge(&key.labels(&[("stage", "fetched")]), fetched as f64);
        text.gauge(&key.labels(&[("stage", "unfetched")]), of.unfetched as f64);
    }
}

fn oldest_pending(text: &mut impl Writer, now: &Now<'_>, constants: &Constants) {
    text.family(
        "nvcap_oldest_pending_age_seconds",
        Kind::Gauge,
        "seconds",
        "For how long at least the oldest pending submission had been there when it was last read; 0 where none was.",
    );
    for (key, of) in now {
        let age = of.oldest.map_or(0, |age| age.least_ns);
        text.gauge(&Of::new(key, constants).labels(&[]), age as f64 * NS);
    }
}

fn last_progress(text: &mut impl Writer, now: &Now<'_>, constants: &Constants) {
    text.family(
        "nvcap_last_progress_timestamp_seconds",
        Kind::Gauge,
        "seconds",
        "When the GPU was last done with a submission.",
    );
    for (key, of) in now {
        if let Some(then) = of.progress_unix_ns {
            text.gauge(&Of::new(key, constants).labels(&[]), then as f64 * NS);
        }
    }
}

fn channels(text: &mut impl Writer, now: &Now<'_>, constants: &Constants) {
    text.family(
        "nvcap_channels",
        Kind::Gauge,
        "",
        "Channels by what they do.",
    );
    for (key, of) in now {
        let key = Of::new(key, constants);
        for (state, count) in State::ALL.into_iter().zip(of.states) {
            text.gauge(&key.labels(&[("state", state.word())]), count as f64);
        }
    }
}

fn channel_errors(text: &mut impl Writer, errors: &Errors, constants: &Constants) {
    text.family(
        "nvcap_channel_errors",
        Kind::Count,
        "",
        "Xid messages of the driver about channels and processes.",
    );
    for ((key, xid), count) in errors {
        let xid = xid.to_string();
        text.counter(
            &Of::new(key, constants).labels(&[("xid", &xid)]),
            *count as f64,
            constants.began,
        );
    }
}

/// Sums up the living processes of each series.
fn joined(view: &View) -> Now<'_> {
    let mut now = Now::new();
    for (key, of) in &view.live {
        let mut sum = GpuView::default();
        for (n, of) in of.iter().enumerate() {
            sum.join(of, n == 0);
        }
        now.insert(key, sum);
    }
    now
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::counts::fakes::{FakeProcess, Fakes};
    use crate::counts::host::{Host, HostOptions};
    use crate::counts::view::{Owner, Refused};

    /// Checks a text as a parser of OpenMetrics does, and gives its samples.
    fn parsed(text: &str) -> BTreeMap<String, f64> {
        let text = text.strip_suffix("# EOF\n").expect("an end");
        let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
        let (mut family, mut kind) = ("", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                (family, kind) = rest.split_once(' ').unwrap();
                assert!(families.insert(family), "{family} twice");
                continue;
            }
            if let Some(rest) = line.strip_prefix('#') {
                assert_eq!(rest.split(' ').nth(2), Some(family), "{line}");
                if let Some(unit) = rest.strip_prefix(" UNIT ") {
                    let (_, unit) = unit.split_once(' ').unwrap();
                    assert!(family.ends_with(&format!("_{unit}")), "{line}");
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let suffix = name.strip_prefix(family).expect(line);
            let suffixes: &[&str] = match kind {
                "counter" => &["_total", "_created"],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_count", "_sum", "_created"],
                _ => &[""],
            };
            assert!(suffixes.contains(&suffix), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(value >= 0.0, "{line}");
            assert!(
                samples.insert(series.to_owned(), value).is_none(),
                "{line} twice"
            );
        }
        samples
    }

    fn host(by_process: bool) -> Host<Fakes> {
        let options = HostOptions {
            by_process,
            ..HostOptions::default()
        };
        Host::new(Fakes::default(), options)
    }

    fn round(host: &mut Host<Fakes>) -> BTreeMap<String, f64> {
        host.system.now += 1_000_000_000;
        host.round();
        parsed(&metrics(&host.view(), None, &Constants::made_up()))
    }

    fn sum(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
        let of = samples
            .iter()
            .filter(|(series, _)| series.split('{').next() == Some(name));
        of.map(|(_, value)| value).sum()
    }

    /// 2,000 processes in 100 containers have a series for each container; by process there are no more than the bound, and the sum is the same.
    #[test]
    fn two_thousand_processes() {
        for (by_process, series) in [(false, 100), (true, 1050)] {
            let mut host = host(by_process);
            let mut truth = 0;
            for n in 0..2000_u32 {
                let mut process = FakeProcess::new(n);
                process.owner = Owner {
                    namespace: "ml".to_owned(),
                    pod: format!("pod\"{}\\", n / 20),
                    container: "main".to_owned(),
                };
                process.memory.submit(0, 1, u64::from(n % 50) + 1);
                process.memory.done(0, u64::from(n % 50));
                truth += u64::from(n % 50) + 1;
                host.system.processes.insert(1000 + n, process);
            }
            let samples = round(&mut host);
            let count = |name: &str| {
                samples
                    .keys()
                    .filter(|s| s.split('{').next() == Some(name))
                    .count()
            };
            assert_eq!(count("nvcap_submissions_total"), series);
            assert_eq!(sum(&samples, "nvcap_submissions_total"), truth as f64);
            assert_eq!(sum(&samples, "nvcap_pending_submissions"), 2000.0);
            assert_eq!(sum(&samples, "nvcap_channels"), 2000.0);
            assert_eq!(samples["nvcap_watching_ratio{how=\"exact\"}"], 1.0);
            assert!(samples.len() < 13_000, "{}", samples.len());
            // All of them end: the sums stay, and at last in few series.
            host.system.processes.clear();
            let samples = round(&mut host);
            let after = sum(&samples, "nvcap_submissions_total")
                + sum(&samples, "nvcap_ended_submissions_total");
            assert_eq!(after, truth as f64);
            host.system.now += Duration::from_secs(700).as_nanos() as u64;
            let samples = round(&mut host);
            assert_eq!(sum(&samples, "nvcap_ended_submissions_total"), truth as f64);
            assert!(samples.len() < 30, "{samples:?}");
        }
    }

    /// A process's name may be any bytes: in the text it ends neither its label nor its line, and holds nothing that a terminal obeys.
    #[test]
    fn names_of_processes_are_escaped() {
        let names = [
            ("a\"b\\c", r#"a\"b\\c"#),
            ("x\ny 1\n", r"x\ny 1\n"),
            ("\x1b[31mE\x07", r"\\x1b[31mE\\x07"),
            ("\r\u{9b}2J\u{7f}", r"\\x0d\\x9b2J\\x7f"),
            ("} 9\n# EOF\n", r"} 9\n# EOF\n"),
            ("a{b=\"c\"}", r#"a{b=\"c\"}"#),
        ];
        let mut host = host(true);
        for (n, (name, _)) in (0..).zip(&names) {
            let mut process = FakeProcess::new(n);
            (*name).clone_into(&mut process.name);
            process.memory.submit(0, 1, 3);
            host.system.processes.insert(1000 + n, process);
        }
        host.system.now += 1_000_000_000;
        host.round();
        let text = metrics(&host.view(), None, &Constants::made_up());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        assert_eq!(text.matches("\n# EOF\n").count(), 1);
        let samples = parsed(&text);
        for (name, written) in names {
            let label = format!("comm=\"{written}\"");
            let own = samples.iter().filter(|(series, _)| {
                series.starts_with("nvcap_submissions_total{") && series.contains(&label)
            });
            let counts: Vec<f64> = own.map(|(_, count)| *count).collect();
            assert_eq!(counts, [3.0], "{name:?}: {text}");
        }
    }

    /// All counters of a container whose series go away are in the sums of its GPU.
    #[test]
    fn what_ended_long_ago_stays_in_the_sums() {
        let options = HostOptions {
            sample: Some(0.01),
            ..HostOptions::default()
        };
        let mut host = Host::new(Fakes::default(), options);
        let mut process = FakeProcess::new(1);
        process.owner.container = "main".to_owned();
        let memory = process.memory.clone();
        host.system.processes.insert(7, process);
        memory.work(0, 1, 10);
        round(&mut host);
        memory.work(0, 11, 2010);
        round(&mut host);
        memory.submit(0, 2011, 2015);
        let before = round(&mut host);
        let of = |samples: &BTreeMap<String, f64>, name: &str, more: &str| {
            let labels = format!("{name}{{UUID=\"GPU-1\",gpu=\"0\"");
            let fits = |s: &&String| s.starts_with(&labels) && s.contains(more);
            let all: Vec<&String> = samples.keys().filter(fits).collect();
            assert!(all.len() < 2, "{all:?}");
            all.first().map(|s| samples[*s])
        };
        let sampled = of(&before, "nvcap_sampled_submissions_total", "").unwrap();
        let bytes = of(&before, "nvcap_pushbuffer_bytes_total", "").unwrap();
        assert!(sampled >= 48.0 && bytes > 2000.0 * 19.0);
        assert_eq!(
            of(&before, "nvcap_completion_delay_seconds_count", ""),
            Some(2000.0)
        );
        let lost = "nvcap_lost_submissions_total";
        assert_eq!(of(&before, lost, "early"), Some(10.0));
        assert_eq!(of(&before, lost, "lapped"), Some(2000.0 - 959.0));
        memory.gone();
        host.system.processes.clear();
        let ended = round(&mut host);
        assert_eq!(of(&ended, lost, "ended"), Some(5.0));
        host.system.now += Duration::from_secs(700).as_nanos() as u64;
        let after = round(&mut host);
        for gone in [
            lost,
            "nvcap_sampled",
            "nvcap_pushbuffer",
            "nvcap_completion",
        ] {
            assert!(!after.keys().any(|s| s.starts_with(gone)), "{gone}");
        }
        let kept = |more: &str| of(&after, "nvcap_ended_counters_total", more);
        assert_eq!(kept("\"nvcap_sampled_submissions\""), Some(sampled));
        assert_eq!(kept("\"nvcap_pushbuffer_bytes\""), Some(bytes));
        assert_eq!(kept("delay_seconds_count"), Some(2000.0));
        assert_eq!(kept("reason=\"early\""), Some(10.0));
        assert_eq!(kept("reason=\"lapped\""), Some(2000.0 - 959.0));
        assert_eq!(kept("reason=\"ended\""), Some(5.0));
        assert_eq!(
            of(&after, "nvcap_ended_submissions_total", ""),
            Some(2015.0)
        );
    }

    #[test]
    fn instances_of_mig() {
        let mut host = host(false);
        host.system.instances = [(0, 7)].into();
        let process = FakeProcess::new(1);
        process.memory.submit(0, 1, 9);
        host.system.processes.insert(7, process);
        let samples = round(&mut host);
        let series = "nvcap_submissions_total{UUID=\"GPU-1\",gpu=\"0\",GPU_I_ID=\"7\"}";
        assert_eq!(samples[series], 9.0);
        assert_eq!(sum(&samples, "nvcap_submissions_total"), 9.0);
    }

    /// Tests that processes which may not be looked into are a part of all, and of the time in which something passes unseen.
    #[test]
    fn what_may_not_be_looked_into() {
        let mut host = host(false);
        for pid in 1..=3 {
            let mut process = FakeProcess::new(pid);
            process.refused = pid == 3;
            process.memory.submit(0, 1, 9);
            host.system.processes.insert(pid, process);
        }
        host.system.hidden.insert(4, Refused::default());
        round(&mut host);
        let samples = round(&mut host);
        assert_eq!(samples["nvcap_watching_ratio{how=\"exact\"}"], 0.5);
        assert_eq!(samples["nvcap_watching_ratio{how=\"none\"}"], 0.5);
        assert_eq!(
            samples["nvcap_blind_seconds_total{reason=\"unreadable\"}"],
            3.0
        );
        host.system.processes.remove(&3);
        host.system.hidden.clear();
        let samples = round(&mut host);
        assert_eq!(samples["nvcap_watching_ratio{how=\"none\"}"], 0.0);
    }

    #[test]
    fn what_is_known_of_one() {
        let mut host = host(true);
        let mut process = FakeProcess::new(1);
        process.memory.submit(0, 1, 9);
        process.memory.done(0, 4);
        process.owner.container = "main".to_owned();
        host.system.processes.insert(7, process);
        round(&mut host);
        let samples = round(&mut host);
        let of = |name: &str, more: &str| {
            let labels = "UUID=\"GPU-1\",gpu=\"0\",container=\"main\",pid=\"7\",comm=\"p7\"";
            samples[&format!("{name}{{{labels}{more}}}")]
        };
        assert_eq!(of("nvcap_submissions_total", ""), 9.0);
        assert!(of("nvcap_submissions_created", "") >= 1.7e9);
        assert_eq!(of("nvcap_pending_submissions", ",stage=\"unfetched\""), 5.0);
        assert_eq!(of("nvcap_oldest_pending_age_seconds", ""), 1.0);
        assert_eq!(of("nvcap_channels", ",state=\"waiting\""), 1.0);
        // Nobody saw it go on, and no source tells of errors, kernels or copies.
        for absent in [
            "nvcap_last_progress",
            "nvcap_channel_errors",
            "nvcap_kernel",
            "nvcap_copy",
        ] {
            assert!(!samples.keys().any(|s| s.starts_with(absent)), "{absent}");
        }
    }
}
