//! `nvcap` without arguments: the processes that use a GPU, and the next commands to type.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nvcap_decode::ledger::STATUS_USAGE;
use nvcap_live::how;
use nvcap_process::host::choice::Choice;
use nvcap_process::host::{self, Host, Uses};
use nvcap_process::procfs::{self, mem};
use nvcap_show::output::writer::Output;

mod page;
mod rates;

use page::{Access, MOST, Overview, Row, page};

/// Time limit of the command.
const WITHIN: Duration = Duration::from_millis(900);

/// Looks at the processes, and shows them. The status is that of a command line that asks for nothing, because 0 means that a trace is
/// complete.
pub(super) fn run() -> anyhow::Result<ExitCode> {
    let mut out = Output::stdout();
    let text = page(&look(), out.width());
    out.object().extend_from_slice(text.as_bytes());
    super::target::written(&mut out)?;
    Ok(ExitCode::from(STATUS_USAGE))
}

/// Looks for the processes.
fn look() -> Overview {
    let end = Instant::now() + WITHIN;
    let root = Path::new("/");
    let found = host::gpu_processes();
    let trap_refused = how::trap_refused();
    let mut host = Host::new(root);
    let mut rows: Vec<Row> = { found.all.iter() }
        .filter_map(|(pid, uses)| row(&mut host, *pid, uses, trap_refused.is_none()))
        .collect();
    let looked_at = |row: &&Row| row.submits && row.access != Access::Refused;
    let mut users: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for row in rows.iter().take(MOST).filter(looked_at) {
        users.entry(&row.user).or_default().push(row.pid);
    }
    let mut paces = rates::of(users.into_values().collect(), end);
    for row in &mut rows {
        row.pace = paces.remove(&row.pid);
    }
    Overview {
        rows,
        unknown: found.hidden.len(),
        hides: host::hidden_from_user(&Choice::default(), root),
        is_root: procfs::is_root(),
        remedy: mem::remedy(),
        trap_refused,
        lacks_driver: lacks_driver(),
        lacks_proc: !Path::new("/proc/self").exists(),
        is_checkout: is_checkout(),
    }
}

/// Makes the row of a process; `None` if it has ended meanwhile.
fn row(host: &mut Host, pid: u32, uses: &Uses, has_trap: bool) -> Option<Row> {
    let who = host.identity(pid, uses).ok()?;
    let uid = who.uid.map(|uid| uid.to_string());
    Some(Row {
        pid,
        user: who.user.or(uid).unwrap_or_default(),
        command: procfs::command_line(pid).unwrap_or(who.comm),
        gpus: uses.gpus.iter().copied().collect(),
        submits: uses.mapped,
        access: match mem::Memory::open(pid) {
            Ok(_) if has_trap => Access::Trap,
            Ok(_) => Access::Observe,
            Err(_) => Access::Refused,
        },
        pace: None,
    })
}

/// Tells whether neither NVIDIA's driver nor a replacement is loaded.
fn lacks_driver() -> bool {
    let there = ["/sys/module/nvidia", "/dev/nvidiactl"];
    !there.iter().any(|path| Path::new(path).exists())
        && env::var_os("NVCAP_DEVICES_BY_NAME").is_none()
}

/// Tells whether nvcap runs in a checkout of its repository, which has a software GPU.
fn is_checkout() -> bool {
    let here = env::current_dir().unwrap_or_default();
    let has = |folder: &Path| {
        ["xtask/Cargo.toml", "tests/softgpu/Cargo.toml"]
            .iter()
            .all(|file| folder.join(file).is_file())
    };
    here.ancestors().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_a_process_that_is_there() {
        let mut host = Host::new(Path::new("/"));
        let mut of = |pid| row(&mut host, pid, &Uses::default(), true);
        let own = of(std::process::id()).unwrap();
        let typed: Vec<String> = env::args().collect();
        assert!(own.command.starts_with(&typed[0]), "{}", own.command);
        assert!(!own.user.is_empty() && own.gpus.is_empty());
        assert_eq!(own.access, Access::Trap);
        assert!(of(u32::MAX).is_none());
    }
}
