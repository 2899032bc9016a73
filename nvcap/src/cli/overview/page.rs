//! Text of `nvcap` without arguments.

use std::fmt::Write as _;

use nvcap_monitor::counts::channel::State;
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::style::{Plain, plain_line};

use super::rates::{APART, Pace};

/// The most processes that are shown.
pub(super) const MOST: usize = 20;
/// The most columns of a user's name.
const MOST_USER: usize = 16;

/// Ways in which nvcap's user may look into a process, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// With the trap.
    Trap,
    /// Without the trap.
    Observe,
    /// Not at all.
    Refused,
}

/// A process that uses a GPU.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub pid: u32,
    pub user: String,
    pub command: String,
    pub gpus: Vec<u32>,
    /// True if the process has memory of a GPU mapped, so that it can submit.
    pub submits: bool,
    pub access: Access,
    /// Pace of the process's submissions; `None` if it was not looked at in time, or may not be.
    pub pace: Option<Pace>,
}

impl Row {
    /// Returns rate and state in words.
    fn doing(&self) -> [String; 2] {
        let [rate, state] = match &self.pace {
            None => ["-", "-"].map(str::to_owned),
            Some(Pace::NoChannel) => ["-", "no channel"].map(str::to_owned),
            Some(Pace::Like(parent)) => ["-".to_owned(), format!("as {parent}")],
            Some(Pace::Submits {
                rate,
                is_least,
                state: (_, words),
            }) => {
                let least = if *is_least { "~" } else { "" };
                [format!("{least}{rate:.0}"), words.clone()]
            }
        };
        [rate, state]
    }

    fn state(&self) -> Option<State> {
        match self.pace {
            Some(Pace::Submits {
                state: (state, _), ..
            }) => Some(state),
            _ => None,
        }
    }
}

/// Processes that use a GPU, and the rights of nvcap's user.
#[derive(Clone, Debug, Default)]
pub(super) struct Overview {
    pub rows: Vec<Row>,
    /// Number of processes that may not be looked into.
    pub unknown: usize,
    /// Message that `/proc` hides processes.
    pub hides: Option<String>,
    pub is_root: bool,
    /// Remedy if a process may not be looked into.
    pub remedy: &'static str,
    /// Reason why the trap is refused.
    pub trap_refused: Option<String>,
    /// True if NVIDIA's driver is not loaded.
    pub lacks_driver: bool,
    /// True if `/proc` is not mounted.
    pub lacks_proc: bool,
    /// True if a software GPU is available.
    pub is_checkout: bool,
}

/// Returns the whole text; lines of the table are cut to `width` columns.
pub(super) fn page(overview: &Overview, width: Option<usize>) -> String {
    let mut text = match overview.rows.len() {
        0 => nobody(overview),
        _ => table(overview, width),
    };
    unknown(overview, &mut text);
    text.push('\n');
    match { overview.rows.iter() }.min_by_key(|row| {
        let is_other_s = matches!(row.pace, Some(Pace::Like(_)));
        (row.access, !row.submits, is_other_s)
    }) {
        Some(row) => {
            let _ = writeln!(text, "For process {}:", row.pid);
            lines(&mut text, &for_process(row, overview.is_root));
        }
        None => {
            text.push_str("To begin:\n");
            lines(&mut text, &to_begin(overview));
        }
    }
    text + "\nnvcap -h lists all commands and the options of every day.\n"
}

/// Returns the line that says that there is no process to show.
fn nobody(overview: &Overview) -> String {
    if overview.lacks_proc {
        return "It is not known which processes use a GPU: /proc is not mounted (sudo mount -t proc proc /proc).\n"
            .to_owned();
    }
    if overview.lacks_driver {
        return "No process uses a GPU: NVIDIA's driver is not loaded on this machine.\n"
            .to_owned();
    }
    match overview.unknown > 0 || overview.hides.is_some() {
        true => "No process that you may look into uses a GPU.\n".to_owned(),
        false => "No process uses a GPU now.\n".to_owned(),
    }
}

/// Returns the table of processes, and the meaning of its words.
fn table(overview: &Overview, width: Option<usize>) -> String {
    let trace = |row: &Row| match row.access {
        Access::Trap => "yes",
        Access::Observe => "observe",
        Access::Refused if overview.is_root => "no",
        Access::Refused => "sudo",
    };
    let cells = |row: &Row| {
        let gpus: Vec<String> = row.gpus.iter().map(u32::to_string).collect();
        let user = plain_line(&row.user, Some(MOST_USER));
        let [rate, state] = row.doing();
        [user, gpus.join(","), rate, state, trace(row).to_owned()]
    };
    let heads = ["USER", "GPU", "/s", "STATE", "TRACE"].map(str::to_owned);
    let shown = overview.rows.iter().take(MOST);
    let cells: Vec<[String; 5]> = std::iter::once(heads)
        .chain(shown.clone().map(cells))
        .collect();
    let widest = |n: usize| cells.iter().map(|row| row[n].chars().count()).max();
    let [user, gpu, rate, state, trace] = [0, 1, 2, 3, 4].map(|n| widest(n).unwrap_or(0));
    let mut text = "Processes that use a GPU:\n".to_owned();
    let begins = std::iter::once(("PID".to_owned(), "COMMAND"))
        .chain(shown.map(|row| (row.pid.to_string(), row.command.as_str())));
    for ((pid, command), [a, b, c, d, e]) in begins.zip(&cells) {
        let line = format!(
            "{pid:>8}  {a:<user$}  {b:<gpu$}  {c:>rate$}  {d:<state$}  {e:<trace$}  {command}"
        );
        let _ = writeln!(text, "{}", plain_line(&line, width));
    }
    if let Some(more @ 1..) = overview.rows.len().checked_sub(MOST) {
        let _ = writeln!(text, "{:>8}  and {more} more: nvcap top shows all", "");
    }
    meaning(overview, &mut text);
    text
}

/// Appends the meaning of the words in the table.
fn meaning(overview: &Overview, text: &mut String) {
    let shown = || overview.rows.iter().take(MOST);
    if let Some(row) = shown().find(|row| row.state() == Some(State::Waiting)) {
        let _ = writeln!(
            text,
            "waiting: none of its pending work ended in {} ms: a long kernel, or a hang; nvcap dump -p {} tells",
            APART.as_millis(),
            row.pid
        );
    }
    if let Some(row) = shown().find(|row| row.state() == Some(State::Stopped)) {
        let [_, words] = row.doing();
        let first = words.to_lowercase();
        let first = first.split(',').next().unwrap_or_default();
        let _ = writeln!(
            text,
            "{words}: the driver has stopped it after an error; nvcap dump -p {}, nvcap explain {first}",
            row.pid,
        );
    }
    if shown().any(|row| row.submits && row.access != Access::Refused && row.pace.is_none()) {
        text.push_str("- : it could not be looked at in the time that this command takes\n");
    }
    let any = |access| overview.rows.iter().any(|row| row.access == access);
    if any(Access::Observe) {
        let why = overview.trap_refused.as_deref().unwrap_or("unknown");
        let _ = writeln!(
            text,
            "observe: without the trap (nvcap --how observe), which is refused here: {}",
            Plain(why)
        );
    }
    if any(Access::Refused) && overview.is_root {
        let _ = writeln!(text, "no: {}", overview.remedy);
    } else if any(Access::Refused) {
        text.push_str("sudo: not yours to look into: sudo nvcap -p PID\n");
    }
}

/// Appends the number of processes about which nothing is known.
fn unknown(overview: &Overview, text: &mut String) {
    if overview.unknown > 0 {
        let others = plural_of(overview.unknown as u64, "process", "processes");
        let use_one = match overview.unknown {
            1 => "it uses",
            _ => "they use",
        };
        let next = match overview.is_root {
            true => overview.remedy,
            false => "sudo nvcap shows those that do",
        };
        let _ = writeln!(
            text,
            "{others} may not be looked into, whether or not {use_one} a GPU: {next}"
        );
    }
    if let Some(hides) = &overview.hides {
        let _ = writeln!(text, "{}", Plain(hides));
    }
}

/// Appends commands, each with its purpose.
fn lines(text: &mut String, all: &[(String, &str)]) {
    let width = all.iter().map(|(command, _)| command.len()).max();
    let width = width.unwrap_or(0);
    for (command, purpose) in all {
        let _ = writeln!(text, "  {command:<width$}  {purpose}");
    }
}

/// Returns the commands for a process, in the form in which this user may give them.
fn for_process(row: &Row, is_root: bool) -> Vec<(String, &'static str)> {
    let pid = row.pid;
    let sudo = |needed: bool| if needed && !is_root { "sudo " } else { "" };
    let looks = sudo(row.access == Access::Refused);
    let traps = sudo(row.access != Access::Trap);
    let (traces, how) = match row.access {
        Access::Observe => ("", " --how observe"),
        Access::Trap | Access::Refused => (traps, ""),
    };
    vec![
        (
            format!("{traces}nvcap{how} -p {pid}"),
            "what it submits, until Ctrl-C",
        ),
        (
            format!("{looks}nvcap top -p {pid}"),
            "its rates, channels and kernels on a screen",
        ),
        (
            format!("{traces}nvcap record{how} -p {pid}"),
            "into a file, for nvcap decode, stats, report",
        ),
        (
            format!("{looks}nvcap time -p {pid} --duration 10"),
            "which kernels take the GPU's time",
        ),
        (
            format!("{looks}nvcap dump -p {pid}"),
            "what it waits for, if it hangs or is slow",
        ),
    ]
}

/// Returns the commands to begin with if there is no process.
fn to_begin(overview: &Overview) -> Vec<(String, &'static str)> {
    let sudo = if overview.is_root { "" } else { "sudo " };
    // Traces would fail here.
    if overview.lacks_driver {
        let mut all = vec![
            (
                "nvcap stats FILE".to_owned(),
                "what a recording of another machine has",
            ),
            (
                "nvcap decode FILE".to_owned(),
                "all of it, submission by submission",
            ),
        ];
        all.extend(anywhere(overview));
        return all;
    }
    let mut all = vec![
        (
            format!("{sudo}nvcap -- ./your-program"),
            "a program from its beginning",
        ),
        (
            format!("{sudo}nvcap -a"),
            "waits for processes that will use a GPU",
        ),
    ];
    if !overview.is_root {
        let observe = "nvcap --how observe -- ./your-program";
        all.push((observe.to_owned(), "the same program without root or trap"));
    }
    all.extend(anywhere(overview));
    all
}

/// Returns the commands that need no GPU.
fn anywhere(overview: &Overview) -> Vec<(String, &'static str)> {
    let mut all = vec![(
        "nvcap doctor".to_owned(),
        "what this machine allows, and what it lacks",
    )];
    if overview.is_checkout {
        let run = "cargo xtask run".to_owned();
        all.push((run, "traces the software GPU of this checkout"));
        let tour = "cargo xtask run --tour".to_owned();
        all.push((tour, "five commands on a recording, each explained"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, user: &str, command: &str, access: Access) -> Row {
        Row {
            pid,
            user: user.to_owned(),
            command: command.to_owned(),
            gpus: vec![0],
            submits: true,
            access,
            pace: None,
        }
    }

    fn submits(rate: f64, is_least: bool, state: State, words: &str) -> Option<Pace> {
        Some(Pace::Submits {
            rate,
            is_least,
            state: (state, words.to_owned()),
        })
    }

    #[test]
    fn what_processes_do() {
        let mut rows = Vec::from_iter((1..=7).map(|pid| row(pid, "ann", "x", Access::Trap)));
        rows[0].pace = Some(Pace::Like(2));
        rows[1].pace = submits(27_744.4, false, State::Working, "working");
        rows[2].pace = submits(0.0, true, State::Waiting, "waiting");
        rows[3].pace = submits(0.0, false, State::Stopped, "Xid 13, 31");
        rows[4].pace = Some(Pace::NoChannel);
        rows[6].access = Access::Refused;
        let mut overview = Overview {
            rows,
            is_root: true,
            ..Overview::default()
        };
        let text = page(&overview, Some(80));
        let expected = "\
     PID  USER  GPU     /s  STATE       TRACE  COMMAND
       1  ann   0        -  as 2        yes    x
       2  ann   0    27744  working     yes    x
       3  ann   0       ~0  waiting     yes    x
       4  ann   0        0  Xid 13, 31  yes    x
       5  ann   0        -  no channel  yes    x
       6  ann   0        -  -           yes    x
       7  ann   0        -  -           no     x
waiting: none of its pending work ended in 300 ms: a long kernel, or a hang; nvcap dump -p 3 tells
Xid 13, 31: the driver has stopped it after an error; nvcap dump -p 4, nvcap explain xid 13
- : it could not be looked at in the time that this command takes
no: ";
        assert!(text.contains(expected), "{text}");
        // The forked process is not the one to look at.
        assert!(text.contains("\nFor process 2:\n"), "{text}");
        overview.rows.truncate(2);
        let text = page(&overview, Some(80));
        assert!(!text.contains("waiting:") && !text.contains("Xid") && !text.contains("- :"));
    }

    #[test]
    fn no_command_that_would_fail() {
        let overview = Overview {
            lacks_driver: true,
            is_root: true,
            ..Overview::default()
        };
        let text = page(&overview, Some(80));
        assert!(
            text.starts_with("No process uses a GPU: NVIDIA's driver is not loaded"),
            "{text}"
        );
        assert!(text.contains("nvcap decode FILE") && text.contains("nvcap doctor"));
        assert!(
            !text.contains("nvcap -a") && !text.contains("your-program"),
            "{text}"
        );
        let overview = Overview {
            lacks_proc: true,
            ..overview
        };
        let text = page(&overview, Some(80));
        assert!(
            text.starts_with("It is not known") && text.contains("/proc"),
            "{text}"
        );
    }

    #[test]
    fn no_process() {
        let root = Overview {
            is_root: true,
            ..Overview::default()
        };
        let text = page(&root, Some(80));
        assert!(
            text.starts_with("No process uses a GPU now.\n\nTo begin:\n"),
            "{text}"
        );
        assert!(text.contains("\n  nvcap -- ./your-program  ") && text.contains("nvcap doctor"));
        assert!(!text.contains("sudo") && !text.contains("cargo"), "{text}");
        let user = Overview {
            unknown: 214,
            is_checkout: true,
            ..Overview::default()
        };
        let text = page(&user, Some(80));
        for said in [
            "No process that you may look into uses a GPU.\n",
            "214 processes may not be looked into, whether or not they use a GPU: sudo nvcap shows those that do\n",
            "\n  sudo nvcap -- ./your-program  ",
            "\n  nvcap --how observe -- ./your-program  ",
            "\n  cargo xtask run  ",
            "\n  cargo xtask run --tour  ",
            "\nnvcap -h ",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }

    #[test]
    fn one_of_ones_own() {
        let mut overview = Overview {
            rows: vec![row(4711, "ann", "python train.py", Access::Observe)],
            trap_refused: Some("it needs root".to_owned()),
            ..Overview::default()
        };
        let text = page(&overview, Some(80));
        for said in [
            "     PID  USER  GPU  /s  STATE  TRACE    COMMAND\n    4711  ann   0     -  -      observe  python train.py\n",
            "which is refused here: it needs root\n",
            "\n  nvcap --how observe -p 4711  ",
            "\n  nvcap top -p 4711  ",
            "\n  nvcap record --how observe -p 4711  ",
            "\n  nvcap time -p 4711 --duration 10  ",
            "\n  nvcap dump -p 4711  ",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        overview.rows[0].access = Access::Trap;
        overview.is_root = true;
        let text = page(&overview, Some(80));
        assert!(
            text.contains("0     -  -      yes    python") && !text.contains("sudo"),
            "{text}"
        );
        assert!(!text.contains("observe"), "{text}");
    }

    #[test]
    fn several_of_other_users() {
        let mut idle = row(7, "bob", "nvidia-smi", Access::Refused);
        idle.submits = false;
        let mut big = row(
            812_345,
            "a-user-with-a-very-long-name",
            "train",
            Access::Refused,
        );
        big.gpus = vec![0, 3];
        let mut overview = Overview {
            rows: vec![idle, big],
            ..Overview::default()
        };
        let text = page(&overview, None);
        for said in [
            "       7  bob               0     -  -      sudo   nvidia-smi\n",
            "  812345  a-user-with-a...  0,3   -  -      sudo   train\n",
            "\nsudo: not yours to look into: sudo nvcap -p PID\n",
            "\n  sudo nvcap -p 812345  ",
            "\n  sudo nvcap dump -p 812345  ",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        overview.is_root = true;
        overview.remedy = "run nvcap elsewhere";
        overview.unknown = 1;
        let text = page(&overview, None);
        assert!(text.contains("0,3   -  -      no     train"), "{text}");
        let said = "\n1 process may not be looked into, whether or not it uses a GPU: run nvcap elsewhere\n";
        assert!(text.contains(said), "{text}");
        assert!(
            text.contains("\nno: run nvcap elsewhere\n") && !text.contains("  sudo nvcap"),
            "{text}"
        );
        overview.rows = (1..=23)
            .map(|pid| row(pid, "ann", "x", Access::Trap))
            .collect();
        let text = page(&overview, None);
        assert!(text.contains("and 3 more: nvcap top"), "{text}");
    }

    #[test]
    fn long_and_hostile_command_lines() {
        let long = format!("python {}", "--option ".repeat(100));
        let hostile = "\x1b[2Jevil\nname\u{202e} \u{fffd}";
        let overview = Overview {
            rows: vec![
                row(1, "ann", &long, Access::Trap),
                row(2, "b\x07b", hostile, Access::Trap),
            ],
            is_root: true,
            ..Overview::default()
        };
        let text = page(&overview, Some(60));
        let cut = text.lines().nth(2).unwrap();
        assert!(cut.chars().count() <= 60 && cut.ends_with("..."), "{cut}");
        assert!(cut.contains("python --option"), "{cut}");
        let line = text.lines().nth(3).unwrap();
        assert!(
            line.contains("b?b") && line.ends_with("?[2Jevil?name? \u{fffd}"),
            "{line}"
        );
        let whole = page(&overview, None);
        assert!(whole.contains(long.trim_end()), "{whole}");
    }
}
