//! Table of `nvcap share`, and its JSON.

use std::io::Write as _;

use serde_json::{Value, json};

use nvcap_decode::record::Identity;
use nvcap_decode::switches::{EngineView, GpuView, Held, Scope, Who};
use nvcap_show::output::json::write_line;
use nvcap_show::output::plural::plural;
use nvcap_show::output::style::Plain;
use nvcap_show::output::units::Nanoseconds;
use nvcap_show::shares::{Work, Works, idle, lacks, per_second, title, unnamed, verdicts};

/// The most processes that are shown by name; the others share one line.
const MOST: usize = 30;

/// A line of the table.
struct Row {
    pid: String,
    name: String,
    user: String,
    place: String,
    held: Held,
    work: Option<Work>,
}

impl Row {
    fn of<'a>(who: Who, held: Held, identity: &impl Fn(u32) -> Option<&'a Identity>) -> Self {
        let mut row = Self {
            pid: String::new(),
            name: String::new(),
            user: "-".to_owned(),
            place: String::new(),
            held,
            work: None,
        };
        match who {
            Who::Driver | Who::Hidden => row.name = unnamed(who).unwrap_or_default().to_owned(),
            Who::Process(pid) => {
                row.pid = pid.to_string();
                let Some(identity) = identity(pid) else {
                    row.name = "?".to_owned();
                    return row;
                };
                row.name = Plain(&identity.comm).to_string();
                let uid = identity.uid.map(|uid| uid.to_string());
                if let Some(user) = identity.user.clone().or(uid) {
                    row.user = Plain(&user).to_string();
                }
                row.place = Plain(&place(identity)).to_string();
            }
        }
        row
    }

    fn others(count: usize, held: Held) -> Self {
        Self {
            pid: String::new(),
            name: format!("({})", plural(count as u64, "other")),
            user: "-".to_owned(),
            place: String::new(),
            held,
            work: None,
        }
    }

    /// Returns the cells about the work, if the work of any row is known.
    fn worked(&self) -> String {
        let Some(work) = self.work else {
            return format!(" {:>8} {:>9}", "-", "-");
        };
        let most = if work.untimed > 0 { "<=" } else { "" };
        let idle = work
            .idle()
            .map(|idle| format!("{most}{:.1} %", 100.0 * idle));
        let waited = work.longest_wait_ns.map(|ns| Nanoseconds(ns).to_string());
        let cell = |of: Option<String>| of.unwrap_or_else(|| "?".to_owned());
        format!(" {:>8} {:>9}", cell(idle), cell(waited))
    }
}

/// Returns the pod or container of a process, by name if it has one.
fn place(identity: &Identity) -> String {
    if let Some(pod) = &identity.pod {
        let name = pod.name.as_deref().unwrap_or(&pod.uid);
        return match &pod.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
    }
    let container = identity.container.as_ref();
    container.map_or(String::new(), |container| {
        let short: String = container.id.chars().take(12).collect();
        container.name.clone().unwrap_or(short)
    })
}

/// Returns the holders that are shown one by one, and the sum of the others with their number.
fn parted(engine: &EngineView, only: Option<&[u32]>) -> (Vec<(Who, Held, usize)>, Held, usize) {
    let (mut shown, mut others, mut count) = (Vec::new(), Held::default(), 0);
    for (who, held, contexts) in &engine.holders {
        let is_meant = match (only, who) {
            (Some(only), Who::Process(pid)) => only.contains(pid),
            (Some(_), _) => false,
            (None, _) => shown.len() < MOST,
        };
        match is_meant {
            true => shown.push((*who, *held, *contexts)),
            false => {
                others.join(*held);
                count += 1;
            }
        }
    }
    (shown, others, count)
}

/// Writes the tables; a table of the whole time has a verdict.
pub(super) fn text<'a>(
    out: &mut Vec<u8>,
    (views, works): (&[GpuView], &Works),
    identity: impl Fn(u32) -> Option<&'a Identity>,
    only: Option<&[u32]>,
    whole: bool,
) {
    for view in views {
        for engine in &view.engines {
            table(out, (view, engine, works), &identity, only);
        }
        if whole || view.engines.is_empty() {
            for verdict in verdicts(view)
                .into_iter()
                .chain(idle(view, works, &identity))
            {
                let _ = writeln!(out, "{}", Plain(&verdict));
            }
        }
        for lack in lacks(view) {
            let _ = writeln!(out, "{lack}");
        }
    }
}

fn table<'a>(
    out: &mut Vec<u8>,
    (view, engine, works): (&GpuView, &EngineView, &Works),
    identity: &impl Fn(u32) -> Option<&'a Identity>,
    only: Option<&[u32]>,
) {
    let (shown, others, count) = parted(engine, only);
    let rows = shown.into_iter().map(|(who, held, _)| Row {
        work: works.of_holder(view.gpu, who),
        ..Row::of(who, held, identity)
    });
    let others = (count > 0).then(|| Row::others(count, others));
    let rows: Vec<Row> = rows.chain(others).collect();
    let is_known = rows.iter().any(|row| row.work.is_some());
    let _ = writeln!(out, "{}: {}", title(view, engine), Nanoseconds(engine.ns));
    let _ = writeln!(
        out,
        "{:>8} {:<15} {:<12} {:>8} {:>9} {:>9} {:>9} {:>8}{}  POD OR CONTAINER",
        "PID",
        "COMM",
        "USER",
        "SHARE",
        "SLICES",
        "MEAN",
        "LONGEST",
        "/s",
        match is_known {
            true => format!(" {:>8} {:>9}", "IDLE", "WAITED"),
            false => String::new(),
        }
    );
    for row in rows {
        let held = row.held;
        let mean = held.resident_ns / held.slices.max(1);
        let line = format!(
            "{:>8} {:<15} {:<12} {:>6.2} % {:>9} {:>9} {:>9} {:>8.1}{}  {}",
            row.pid,
            row.name,
            row.user,
            100.0 * engine.share(held.resident_ns),
            held.slices,
            Nanoseconds(mean).to_string(),
            Nanoseconds(held.longest_ns).to_string(),
            per_second(held.slices, engine.ns),
            match is_known {
                true => row.worked(),
                false => String::new(),
            },
            row.place
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let mean = engine.switch_ns / engine.switches.max(1);
    let rest = [
        (
            "lost in switches",
            engine.switch_ns,
            Some((engine.switches, mean)),
        ),
        ("nobody had it", engine.nobody_ns, None),
        ("not known", engine.unknown_ns, None),
    ];
    for (name, ns, switches) in rest {
        let Some(figures) = (switches.is_some() || ns > 0).then_some(switches) else {
            continue;
        };
        let _ = write!(
            out,
            "{:>8} {name:<28} {:>6.2} %",
            "",
            100.0 * engine.share(ns)
        );
        if let Some((number, mean)) = figures {
            let _ = write!(
                out,
                " {number:>9} {:>9} {:>9} {:>8.1}",
                Nanoseconds(mean).to_string(),
                "",
                per_second(number, engine.ns)
            );
        }
        let _ = writeln!(out);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn held_json(held: Held, engine: &EngineView) -> Value {
    json!({
        "share": engine.share(held.resident_ns),
        "resident_seconds": seconds(held.resident_ns),
        "slices": held.slices,
        "mean_slice_seconds": seconds(held.resident_ns / held.slices.max(1)),
        "longest_slice_seconds": seconds(held.longest_ns),
    })
}

fn put_work(value: &mut Value, work: Work) {
    value["worked_seconds"] = seconds(work.worked_ns).into();
    value["idle_share"] = work.idle().into();
    value["untimed_works"] = work.untimed.into();
    value["longest_wait_seconds"] = work.longest_wait_ns.map(seconds).into();
}

fn holder_json(who: Who, contexts: usize, identity: Option<&Identity>, mut value: Value) -> Value {
    value["contexts"] = contexts.into();
    match who {
        Who::Driver => value["driver"] = true.into(),
        Who::Hidden => value["hidden"] = true.into(),
        Who::Process(pid) => value["pid"] = pid.into(),
    }
    if let Some(identity) = identity {
        value["comm"] = identity.comm.as_str().into();
        let mut put = |name: &str, of: Option<Value>| {
            if let Some(of) = of {
                value[name] = of;
            }
        };
        put("uid", identity.uid.map(Value::from));
        put("user", identity.user.clone().map(Value::from));
        put("cgroup", identity.cgroup.clone().map(Value::from));
        let container = identity.container.as_ref();
        put("container", container.map(|c| c.id.as_str().into()));
        let name = container.and_then(|c| c.name.clone());
        put("container_name", name.map(Value::from));
        let pod = identity.pod.as_ref();
        put("pod_uid", pod.map(|p| p.uid.as_str().into()));
        put("pod", pod.and_then(|p| p.name.clone()).map(Value::from));
        let namespace = pod.and_then(|p| p.namespace.clone());
        put("namespace", namespace.map(Value::from));
    }
    value
}

/// Writes an object for each engine, and one for a GPU about which nothing was reported.
pub(super) fn json<'a>(
    out: &mut Vec<u8>,
    (views, works): (&[GpuView], &Works),
    identity: impl Fn(u32) -> Option<&'a Identity>,
    only: Option<&[u32]>,
    whole: bool,
) {
    for view in views {
        let nothing = EngineView {
            ns: view.ns,
            unknown_ns: view.ns,
            ..EngineView::default()
        };
        let engines = match view.engines.is_empty() {
            true => std::slice::from_ref(&nothing),
            false => &view.engines[..],
        };
        for engine in engines {
            let (shown, others, count) = parted(engine, only);
            let processes: Vec<Value> = { shown.into_iter() }
                .map(|(who, held, contexts)| {
                    let identity = match who {
                        Who::Process(pid) => identity(pid),
                        _ => None,
                    };
                    let value = held_json(held, engine);
                    let mut value = holder_json(who, contexts, identity, value);
                    if let Some(work) = works.of_holder(view.gpu, who) {
                        put_work(&mut value, work);
                    }
                    value
                })
                .collect();
            let mut value = json!({
                "type": "share",
                "whole": whole,
                "gpu": view.gpu,
                "gpu_time_begin_ns": view.began_ns,
                "gpu_time_end_ns": view.began_ns.saturating_add(view.ns),
                "seconds": seconds(engine.ns),
                "all_users": view.scope == Scope::AllUsers,
                "processes": processes,
                "switches": engine.switches,
                "switch_seconds": seconds(engine.switch_ns),
                "nobody_seconds": seconds(engine.nobody_ns),
                "unknown_seconds": seconds(engine.unknown_ns),
                "incomplete_slices": engine.incomplete,
                "missing_records": view.missing,
                "strange_records": view.strange,
            });
            if count > 0 {
                value["others"] = held_json(others, engine);
                value["others"]["processes"] = count.into();
            }
            if let Some(instance) = engine.instance {
                value["mig"] = instance.gpu.into();
                value["compute_instance"] = instance.compute.into();
            }
            write_line(out, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::Pod;

    fn held(resident_ns: u64, slices: u64, longest_ns: u64) -> Held {
        Held {
            resident_ns,
            slices,
            longest_ns,
        }
    }

    fn view(engines: Vec<EngineView>) -> GpuView {
        GpuView {
            gpu: 1,
            scope: Scope::AllUsers,
            began_ns: 5,
            ns: 1_000_000_000,
            engines,
            missing: 0,
            strange: 0,
        }
    }

    fn shared() -> EngineView {
        EngineView {
            ns: 1_000_000_000,
            holders: vec![
                (Who::Process(4711), held(550_000_000, 500, 2_200_000), 1),
                (Who::Process(4712), held(400_000_000, 499, 1_000_000), 2),
                (Who::Hidden, held(4_000_000, 1, 4_000_000), 1),
            ],
            switches: 540,
            switch_ns: 46_000_000,
            ..EngineView::default()
        }
    }

    fn python() -> Identity {
        Identity {
            comm: "python3".to_owned(),
            uid: Some(0),
            user: Some("root".to_owned()),
            pod: Some(Pod {
                uid: "1-2-3".to_owned(),
                name: Some("notebook".to_owned()),
                namespace: Some("research".to_owned()),
                ..Pod::default()
            }),
            ..Identity::default()
        }
    }

    fn written(views: &[GpuView], only: Option<&[u32]>, whole: bool) -> String {
        let python = python();
        let mut out = Vec::new();
        let identity = |pid| (pid == 4711).then_some(&python);
        text(&mut out, (views, &Works::default()), identity, only, whole);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_shared_gpu_has_a_table_and_a_verdict() {
        let text = written(&[view(vec![shared()])], None, true);
        let expected = "\
GPU 1: 1.00 s
     PID COMM            USER            SHARE    SLICES      MEAN   LONGEST       /s  POD OR CONTAINER
    4711 python3         root          55.00 %       500   1.10 ms   2.20 ms    500.0  research/notebook
    4712 ?               -             40.00 %       499    802 us   1.00 ms    499.0
         (not named)     -              0.40 %         1   4.00 ms   4.00 ms      1.0
         lost in switches               4.60 %       540   85.2 us              540.0
2 processes and others that are not named shared GPU 1: 4.6 % of it was lost in 540 switches/s of 85.2 us
";
        assert_eq!(text, expected, "{text}");
        assert_eq!(
            written(&[view(vec![shared()])], None, false)
                .lines()
                .count(),
            6
        );
    }

    #[test]
    fn named_processes_stand_beside_the_others() {
        let text = written(&[view(vec![shared()])], Some(&[4712]), false);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].starts_with("    4712 ?"), "{text}");
        assert!(
            lines[1].contains("(2 others)") && lines[1].contains("55.40 %"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_known_is_said() {
        let text = written(&[view(Vec::new())], None, false);
        assert!(
            text.starts_with("GPU 1: no context switch in 1.00 s: one context stayed"),
            "{text}"
        );
        let engine = EngineView {
            unknown_ns: 250_000_000,
            nobody_ns: 10_000_000,
            incomplete: 1,
            ..shared()
        };
        let gpu = GpuView {
            missing: 12,
            strange: 1,
            ..view(vec![engine])
        };
        let text = written(&[gpu], None, false);
        for part in [
            "not known                     25.00 %",
            "nobody had it                  1.00 %",
            "GPU 1: at least 12 records missing",
            "GPU 1: 1 record not understood",
            "GPU 1: 1 slice without a begin or an end",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn json_has_the_same() {
        let python = python();
        let mut out = Vec::new();
        let identity = |pid| (pid == 4711).then_some(&python);
        let views = [view(vec![shared()]), view(Vec::new())];
        let works = Works::default();
        json(&mut out, (&views, &works), identity, Some(&[4711]), true);
        let text = String::from_utf8(out).expect("text");
        let objects: Vec<Value> = { text.lines() }
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect();
        let [shared, nothing] = &objects[..] else {
            panic!("{text}");
        };
        let process = &shared["processes"][0];
        assert_eq!(process["pid"], 4711);
        assert_eq!(process["share"], 0.55);
        assert_eq!(
            (&process["pod"], &process["namespace"]),
            (&"notebook".into(), &"research".into())
        );
        assert_eq!(shared["others"]["processes"], 2);
        assert_eq!(
            (&shared["switches"], &shared["whole"]),
            (&540.into(), &true.into())
        );
        assert_eq!(nothing["unknown_seconds"], 1.0);
        assert_eq!(nothing["processes"], json!([]));
    }
}
