//! Results of a look at running processes, as far as a machine without a GPU has them.

use std::time::Duration;

use nvcap_decode::record::Record;
use nvcap_monitor::dump::{DumpOptions, look};
use nvcap_process::memory::{captured::SnapshotOptions, scan::Effort, snapshot::take};

fn monotonic() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for one timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    assert_eq!(failed, 0);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn options() -> DumpOptions {
    DumpOptions {
        stacks: true,
        last: 1,
        effort: Effort::Usual,
        chip: None,
        known_rings: Vec::new(),
        qmd_copies: |_| Vec::new(),
        kernels: |_, _| Vec::new(),
    }
}

/// Its times can be compared with those of traces and of other programs: the same clock, to the nanosecond.
#[test]
fn a_look_has_the_time_of_the_tracer_s_clock() {
    let own = std::process::id();
    let before = monotonic();
    let look = look(&[own], &options()).report;
    let between = monotonic();
    assert!(
        (before..=between).contains(&look.time_ns),
        "{before} {} {between}",
        look.time_ns
    );
    let options = SnapshotOptions {
        last: 1,
        before: 0,
        effort: Effort::Usual,
        known_rings: &[],
        patience: Duration::ZERO,
    };
    let (_, snapshot) = take(own, 0, options).expect("it is this process");
    let after = monotonic();
    let first = snapshot.records().next();
    let Some(Record::Process(process)) = first else {
        panic!("{first:?}")
    };
    for time in [snapshot.time_ns, process.at.time_ns] {
        assert!(
            (between..=after).contains(&time),
            "{between} {time} {after}"
        );
    }
}

mod statuses {
    use std::fs;

    use crate::common::cli::{Folder, nvcap, text};
    use crate::common::waiting::{Sleeper, until};

    const GONE: &str = "4194305";

    #[test]
    #[ignore = "needs the right to look into another process: cargo xtask test runs it as root"]
    fn a_process_without_a_gpu_has_a_status_of_its_own() {
        let folder = Folder::new("no-gpu");
        let file = folder.path("old");
        fs::write(&file, "of yesterday").unwrap();
        let sleeper = Sleeper::start();
        let pid = sleeper.0.id().to_string();
        for (args, status, says) in [
            (vec!["-p", &pid], 4, vec!["uses no GPU", "nvcap dump -a"]),
            (vec!["-p", &pid, "--json"], 4, vec!["uses no GPU"]),
            (vec!["-p", &pid, "--stream"], 4, vec!["uses no GPU"]),
            (vec!["-p", &pid, "--watch=0.1"], 4, vec!["uses no GPU"]),
            (vec!["-p", GONE], 1, vec!["no such process"]),
            (vec!["-p", GONE, "--stream"], 1, vec!["no such process"]),
            (
                vec!["-p", &pid, "-p", GONE],
                1,
                vec!["uses no GPU", "no such process"],
            ),
        ] {
            let args = [&["dump", "--force", "-o", &file][..], &args].concat();
            let out = nvcap(&args);
            let said = text(&out.stderr);
            if said.contains("cap_sys_ptrace") {
                println!(
                    "NOT RUN a_process_without_a_gpu_has_a_status_of_its_own: this user may not look into its own processes"
                );
                return;
            }
            assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
            for words in says {
                assert!(said.contains(words), "{args:?}: {said}");
            }
            assert_eq!(text(&out.stdout), "");
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                "of yesterday",
                "{args:?}: there was nothing to write"
            );
        }
    }

    /// A process that has ended and was not collected uses nothing any more; that does not say what it used.
    #[test]
    fn a_process_that_has_ended_is_not_one_without_a_gpu() {
        let mut sleeper = Sleeper::start();
        sleeper.0.kill().unwrap();
        let pid = sleeper.0.id().to_string();
        let is_dead = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.contains(") Z ")
        };
        until("the child has ended", is_dead);
        let out = nvcap(&["dump", "-p", &pid]);
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    }

    #[test]
    fn all_processes_where_none_uses_a_gpu() {
        // A process that does may be there all the same: a real one, or a software GPU of another test.
        let out = nvcap(&["dump", "-a"]);
        let (status, said) = (out.status.code(), text(&out.stderr));
        match status {
            Some(4) => assert!(said.contains("no process uses a GPU"), "{said}"),
            Some(1) => assert!(said.contains("root"), "{said}"),
            _ => assert!(
                text(&out.stdout).starts_with("process "),
                "{status:?} {said}"
            ),
        }
    }

    #[test]
    fn the_help_has_the_statuses_that_the_page_has() {
        let help = text(&nvcap(&["dump", "--help"]).stdout);
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hang.md");
        let page = fs::read_to_string(page).unwrap();
        let of = |text: &str, mark: &str| -> Vec<(u32, String)> {
            let from = text.find("Exit status").expect("it names them");
            let section = text[from..].split("\n## ").next().unwrap();
            let rows = section.lines().filter_map(|line| {
                let mut words = line.trim_start_matches('|').split_whitespace();
                let number = words.next()?.parse().ok()?;
                let word = words.find(|w| *w != mark)?;
                let word = word.trim_matches(|c: char| !c.is_alphanumeric());
                Some((number, word.to_lowercase()))
            });
            rows.collect()
        };
        let of_help = of(&help, "");
        assert_eq!(of_help.len(), 10, "{help}");
        assert_eq!(of_help, of(&page, "|"));
    }
}
