//! Tests of the user that a command runs as, and of the names and ids by which processes and threads are traced.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use live::debugger::threads;
use live::harness::not_run;
use live::in_step::Step;
use live::programs::{Ended, Folder, Running, Until, nvcap, so_far, softgpu};
use live::verify::{Expected, Extent, verify};

use crate::attach::{at_work, waiting};
use crate::refusals::refused;
use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args};

/// A line of /etc/passwd: a user other than root, with a name, and with as many groups as possible.
struct Account {
    name: String,
    uid: String,
    gid: String,
    home: String,
    groups: Vec<String>,
}

fn sorted(groups: &str) -> Vec<String> {
    let mut all: Vec<String> = groups.split_whitespace().map(str::to_owned).collect();
    all.sort();
    all
}

fn account() -> Result<Account> {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("not root, so no other user can be taken");
    }
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let all = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, gid, _, home, _] = fields.as_slice() else {
            return None;
        };
        let told = Command::new("id").args(["-G", name]).output().ok()?;
        Some(Account {
            name: name.to_owned(),
            uid: uid.to_owned(),
            gid: gid.to_owned(),
            home: home.to_owned(),
            groups: sorted(&String::from_utf8_lossy(&told.stdout)),
        })
    });
    match all.filter(|a| a.uid != "0").max_by_key(|a| a.groups.len()) {
        Some(account) => Ok(account),
        None => not_run("no user but root has an account here"),
    }
}

/// The identity that a command prints when started by an nvcap with groups of its own.
fn who(environment: &[&str], flags: &[&str]) -> Result<Ended> {
    let mut args: Vec<OsString> = ["--groups", "4,24", "env"].map(OsString::from).to_vec();
    args.extend(environment.iter().map(OsString::from));
    args.extend([nvcap()?.into(), "-q".into()]);
    // No channels: that the command has none is not missed then. Observing needs none, and takes no doorbell alone.
    if !flags.contains(&"observe") {
        let page = softgpu::layout::doorbell_page(0, 1) + softgpu::layout::DOORBELL;
        args.push(format!("--doorbell={page:#x}").into());
    }
    args.extend(flags.iter().map(OsString::from));
    args.extend(["--", "/bin/sh", "-c"].map(OsString::from));
    args.push("id -u; id -g; id -G; echo $HOME; echo $USER $LOGNAME; cat /proc/self/status".into());
    Running::start(Path::new("setpriv"), args)?.end(LIMIT)
}

fn is(ended: &Ended, account: &Account) -> Result<()> {
    // It used no GPU.
    ended.expect_code(4)?;
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [uid, gid, groups, home, names, ..] = lines.as_slice() else {
        bail!("{}", ended.stdout);
    };
    ensure!((*uid, *gid) == (&account.uid, &account.gid), "{lines:?}");
    ensure!(sorted(groups) == account.groups, "{lines:?}");
    ensure!(*home == account.home, "{lines:?}");
    ensure!(*names == format!("{0} {0}", account.name), "{lines:?}");
    let right = lines.iter().find(|l| l.starts_with("CapEff:"));
    ensure!(
        right.is_some_and(|l| l.ends_with("\t0000000000000000")),
        "{right:?}"
    );
    Ok(())
}

/// A command under sudo runs as the user who called sudo, and one line says so.
pub fn of_sudo() -> Result<()> {
    need_tracing()?;
    let account = account()?;
    let sudo = [
        format!("SUDO_UID={}", account.uid),
        format!("SUDO_GID={}", account.gid),
        "HOME=/of/root".to_owned(),
    ];
    let sudo: Vec<&str> = sudo.iter().map(String::as_str).collect();
    for how in ["trap", "observe"] {
        let ended = who(&sudo, &["--how", how])?;
        is(&ended, &account).with_context(|| how)?;
        let line = format!(
            "running /bin/sh as {} (from SUDO_UID; --user root for root)",
            account.name
        );
        ensure!(ended.stderr.contains(&line), "{}", ended.stderr);
    }
    let ended = who(&sudo, &["--user", "root"])?;
    ended.expect_code(4)?;
    ensure!(ended.stdout.starts_with("0\n0\n"), "{}", ended.stdout);
    ensure!(!ended.stderr.contains("SUDO_UID"), "{}", ended.stderr);
    Ok(())
}

/// `--user` by name and by number, for all commands that start a program; and users that cannot be taken.
pub fn named() -> Result<()> {
    need_tracing()?;
    let (account, folder) = (account()?, Folder::new()?);
    for user in [&account.name, &account.uid] {
        let ended = who(&[], &["--user", user])?;
        is(&ended, &account)?;
        ensure!(!ended.stderr.contains("running"), "{}", ended.stderr);
    }
    for view in ["ioctls", "channels", "maps"] {
        let args = [view, "--user", &account.name, "--", "id", "-u"];
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        // Without a driver none of them traces.
        if !ended.stderr.contains("driver is not loaded") {
            ensure!(ended.stdout.trim() == account.uid, "{view}: {ended:?}");
        }
    }
    let ended = who(&[], &["--user", "no-such-user"])?;
    refused(&ended, 1, &["no-such-user", "getent passwd"])?;
    // A command that this user may not execute.
    let mut args: Vec<OsString> = vec!["-q".into(), "--channels".into(), folder.channels()?.into()];
    args.extend(["--user", &account.name, "--", "/etc/shadow"].map(OsString::from));
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    refused(&ended, 1, &["/etc/shadow as", &account.name])
}

/// Another user's submissions are all seen, by the trap and by observing.
pub fn traced() -> Result<()> {
    need_tracing()?;
    let account = account()?;
    for how in ["trap", "observe"] {
        let plan = plan(91, 800);
        let folder = Folder::new()?;
        let (program, trace) = (folder.file("softgpu"), folder.file("trace.json"));
        std::fs::copy(softgpu()?, &program)?;
        let mut args: Vec<OsString> = ["--how", how, "--user", &account.name]
            .map(OsString::from)
            .to_vec();
        args.extend(["--json", "-vv", "-e", "type=submission,entry", "-o"].map(OsString::from));
        args.extend([trace.clone().into(), "--channels".into()]);
        args.extend([folder.channels()?.into(), "--".into(), program.into()]);
        args.extend(plan_args(&plan).into_iter().map(OsString::from));
        let stay = Until::new(&folder, "stay")?;
        args.extend(["--sleep-us=200", "--leave-mapped", &stay.stay()].map(OsString::from));
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_until("showing all", LIMIT, |_| {
            so_far(&trace, "\"type\":\"entry\"") >= 800
        })?;
        stay.release()?;
        let ended = nvcap.end(LIMIT)?;
        expect_result(&ended.stdout, &plan).with_context(|| ended.stderr.clone())?;
        let report = verify(&trace, &Expected::part(plan, Extent::Whole))?;
        report.expect_complete()?;
    }
    Ok(())
}

/// `-p` with the id of a thread: all threads of its process are traced, and one line says so.
pub fn thread_id() -> Result<()> {
    need_tracing()?;
    let plan = plan(92, 8000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let gpu = at_work(&plan, &step, 3, &[])?;
    let pid = gpu.pid();
    let another = threads(pid)?.into_iter().find(|tid| *tid != pid);
    let tid = another.context("its threads have ended")?.to_string();
    let mut args: Vec<OsString> = ["--json", "-vv", "-e", "type=submission,entry", "-o"]
        .map(OsString::from)
        .to_vec();
    args.extend([trace.clone().into(), "--channels".into()]);
    args.push(folder.channels()?.into());
    // Both ids belong to one process.
    args.extend(["-p", &tid, "-p", &pid.to_string()].map(OsString::from));
    let nvcap = step.nvcap(args)?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let line = format!("nvcap: {tid} is a thread of process {pid} (");
    ensure!(lines[0].starts_with(&line), "{}", ended.stderr);
    let attached = format!("process {pid} attached");
    ensure!(
        ended.stderr.matches(&attached).count() == 1,
        "{}",
        ended.stderr
    );
    let report = verify(&trace, &Expected::part(plan, Extent::Suffix))?;
    report.expect_complete()?;
    ensure!(report.threads.len() > 1, "threads {:?}", report.threads);
    Ok(())
}

/// The lines of a thread's status that say what it may do.
fn rights(status: &str) -> Vec<(&str, &str)> {
    let lines = status.lines().filter_map(|l| l.split_once(":\t"));
    lines
        .filter(|(name, _)| ["CapPrm", "CapEff", "NoNewPrivs", "Seccomp"].contains(name))
        .collect()
}

/// A trace keeps the capabilities that it needs, the thread that decodes fewer, and the command all that it would have without.
pub fn rights_given_up() -> Result<()> {
    need_tracing()?;
    const BPF: u64 = 1 << 39 | 1 << 38;
    const READS_MEMORY: u64 = 1 << 19;
    // CAP_SYS_MODULE, CAP_NET_ADMIN, CAP_SYS_BOOT.
    const OF_NO_USE: u64 = 1 << 16 | 1 << 12 | 1 << 22;
    let plan = plan(23, crate::setup::sized(100, 100));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan, &["--before-wait=7"])?;
    let mut nvcap = crate::attach::attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    // The thread that decodes may not have come so far when the other one has attached.
    let decodes = format!("/proc/{}/status", nvcap.pid());
    nvcap.wait_until("decoding without rights", LIMIT, |_| {
        let status = std::fs::read_to_string(&decodes).unwrap_or_default();
        rights(&status).contains(&("Seccomp", "2"))
    })?;
    let mut seen = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{}/task", nvcap.pid()))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let name = status.lines().find_map(|l| l.strip_prefix("Name:\t"));
        let rights = rights(&status);
        let bits = |name| {
            let value = rights.iter().find(|r| r.0 == name).context("no line")?.1;
            u64::from_str_radix(value, 16).context("no number")
        };
        let name = name.context("a thread without a name")?.to_owned();
        ensure!(bits("CapEff")? & OF_NO_USE == 0, "{name}: {rights:?}");
        ensure!(bits("CapEff")? & READS_MEMORY != 0, "{name}: {rights:?}");
        seen.push((
            name,
            bits("CapEff")? & BPF,
            bits("Seccomp")?,
            bits("NoNewPrivs")?,
        ));
    }
    let is = |name: &str, rights| {
        seen.iter()
            .any(|s| s.0 == name && (s.1, s.2, s.3) == rights)
    };
    ensure!(is("nvcap", (0, 2, 1)), "{seen:?}");
    ensure!(is("nvcap-reader", (BPF, 0, 0)), "{seen:?}");
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::From(7)))?.expect_complete()?;

    let page = softgpu::layout::doorbell_page(0, 1) + softgpu::layout::DOORBELL;
    let doorbell = format!("--doorbell={page:#x}");
    let command = [
        "-q",
        &doorbell,
        "--user=root",
        "--",
        "cat",
        "/proc/self/status",
    ];
    let traced = Running::start(&live::programs::nvcap()?, command)?.end(LIMIT)?;
    traced.expect_code(4)?;
    let own = std::fs::read_to_string("/proc/self/status")?;
    ensure!(rights(&traced.stdout) == rights(&own), "{}", traced.stdout);
    Ok(())
}
