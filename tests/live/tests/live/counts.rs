//! `nvcap counts` and `nvcap serve`: what is counted is what was submitted, and what a trap counts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use live::programs::{Folder, GUARD, Running, Until, nvcap, softgpu};
use serde_json::Value;

use super::attach::attach_to;
use super::dump::{plan, start};
use super::refusals::{NOBODY, copy_for_all};
use super::setup::need_breakpoints;

/// Ends a test that hangs.
const LIMIT: Duration = GUARD;

/// The newest line about a process.
pub fn newest(text: &str, pid: u32) -> Option<Value> {
    let lines = text.lines().rev();
    let mut parsed = lines.filter_map(|l| serde_json::from_str::<Value>(l).ok());
    parsed.find(|v| v["type"] == "process" && v["pid"] == pid)
}

/// A number of a process's only GPU.
fn number(process: &Value, name: &str) -> Option<u64> {
    process["gpus"][0][name].as_u64()
}

/// The first thread has ended: the process is counted, and nobody is said to forbid it.
pub fn first_thread_ended() -> Result<()> {
    let mut gpu = start(
        &plan(50, 4, 400),
        &[
            "--leaderless",
            "--wait-stdin",
            "--before-wait=3",
            "--linger-ms=900000",
        ],
    )?;
    gpu.wait_for_line("waiting")?;
    let pid = gpu.pid().to_string();
    let args = ["counts", "-p", &pid, "--json", "--interval=0.1"];
    let mut counts = Running::start(&nvcap()?, args)?;
    let id = gpu.pid();
    let done = |r: &Running| newest(&r.stdout(), id).and_then(|l| number(&l, "done_in_all"));
    counts.wait_until("counting", LIMIT, |r| done(r) == Some(12))?;
    gpu.write(b"g")?;
    counts.wait_until("all counted", LIMIT, |r| done(r) == Some(400))
}

/// A process without a GPU is said to use none, with the status and the words that a trace of it has.
pub fn without_a_gpu() -> Result<()> {
    let sleeper = Running::start(Path::new("sleep"), ["900"])?;
    let pid = sleeper.pid().to_string();
    let ended =
        Running::start(&nvcap()?, ["counts", "-p", &pid, "--times=1", "--json"])?.end(LIMIT)?;
    ended.expect_code(4)?;
    let said = &ended.stderr;
    ensure!(
        said.contains("no GPU was used: ") && said.contains("(sleep)"),
        "{said}"
    );
    ensure!(!said.contains("counting 1 process"), "{said}");
    Ok(())
}

/// Readings come until the duration has passed, the last one at its end, however long the interval is.
pub fn until_a_duration_has_passed() -> Result<()> {
    let sleeper = Running::start(Path::new("sleep"), ["900"])?;
    let pid = sleeper.pid().to_string();
    let args = ["counts", "-p", &pid, "--json", "--interval=1h"];
    let times = |more: &[&str]| -> Result<Vec<f64>> {
        let ended = Running::start(&nvcap()?, args.iter().chain(more))?.end(LIMIT)?;
        ended.expect_code(4)?;
        let hosts = ended.stdout.lines().map(serde_json::from_str::<Value>);
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?.into_iter();
        let hosts = hosts.filter(|line| line["type"] == "host");
        Ok(hosts.filter_map(|line| line["time"].as_f64()).collect())
    };
    let begun = Instant::now();
    let all = times(&["--duration=0.3s"])?;
    ensure!(all.len() == 2, "{all:?}");
    ensure!(begun.elapsed() >= Duration::from_millis(300), "{all:?}");
    let all = times(&["--duration=1h", "--times=1"])?;
    ensure!(all.len() == 1, "{all:?}");
    Ok(())
}

/// Counted beside a trap, with the submissions that were there before: both say what the program says.
pub fn as_the_trap_counts() -> Result<()> {
    need_breakpoints()?;
    const EACH: u64 = 3;
    const CHANNELS: u64 = 20;
    let folder = Folder::new()?;
    let channels = folder.file("channels.txt");
    std::fs::write(&channels, softgpu::layout::channels_file(1))?;
    let plan = plan(51, CHANNELS as usize, 6000);
    let stay = Until::new(&folder, "stay")?;
    let mut gpu = start(
        &plan,
        &[
            "--wait-stdin",
            "--before-wait=3",
            "--threads=3",
            &stay.stay(),
        ],
    )?;
    gpu.wait_for_line("waiting")?;
    let pid = gpu.pid().to_string();
    let trace = folder.file("trace.json");
    let asked = ["--json", "-e", "type=submission"].map(Into::into);
    let trap = attach_to(gpu.pid(), &trace, channels, &asked)?;
    let mut counts = Running::start(
        &nvcap()?,
        ["counts", "-p", &pid, "--json", "--interval=0.1"],
    )?;
    counts.wait_until("counting", LIMIT, |r| {
        newest(&r.stdout(), gpu.pid()).is_some()
    })?;
    let before = newest(&counts.stdout(), gpu.pid()).context("no line")?;
    ensure!(number(&before, "submitted") == Some(0), "{before}");
    ensure!(
        number(&before, "done_in_all") == Some(CHANNELS * EACH),
        "{before}"
    );
    gpu.write(b"g")?;
    let id = gpu.pid();
    // Its mappings are compared again some readings after they changed: until then there might be another channel.
    counts.wait_until("all counted, exactly", LIMIT, |r| {
        newest(&r.stdout(), id).is_some_and(|l| {
            number(&l, "done_in_all") == Some(6000) && l["gpus"][0]["exact"] == true
        })
    })?;
    let last = newest(&counts.stdout(), id).context("no line")?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let (trap, counts) = (trap.end(LIMIT)?, counts.end(LIMIT)?);
    trap.expect_code(0)?;
    counts.expect_code(0)?;
    let text = std::fs::read_to_string(trace)?;
    let mut lines = text.lines().rev();
    let ledger = lines.find(|l| l.contains("\"ledger\""));
    let ledger = ledger.context("no ledger")?;
    let ledger: Value = serde_json::from_str(ledger)?;
    ensure!(last["gpus"][0]["exact"] == true, "{last}");
    for (name, truth) in [
        ("submitted", 6000 - CHANNELS * EACH),
        ("done", 6000 - CHANNELS * EACH),
        ("submitted_in_all", 6000),
        ("pending", 0),
    ] {
        ensure!(
            number(&last, name) == Some(truth),
            "{name}: not {truth}: {last}"
        );
    }
    ensure!(
        ledger["submissions"].as_u64() == number(&last, "submitted"),
        "{ledger}"
    );
    Ok(())
}

/// Children that submit to the channels that they have from their parent: counted once.
pub fn forks_are_counted_once() -> Result<()> {
    let plan = plan(52, 8, 4000);
    let folder = Folder::new()?;
    let stay = Until::new(&folder, "stay")?;
    let mut gpu = start(&plan, &["--fork=2", "--wait-stdin", &stay.stay()])?;
    gpu.wait_for_line("waiting")?;
    let mut counts = Running::start(&nvcap()?, ["counts", "-a", "--json", "--interval=0.2"])?;
    counts.wait_until("counting", LIMIT, |r| {
        newest(&r.stdout(), gpu.pid()).is_some()
    })?;
    gpu.write(b"g")?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let all =
        |r: &Running| newest(&r.stdout(), gpu.pid()).and_then(|p| number(&p, "submitted_in_all"));
    counts.wait_until("all counted", LIMIT, |r| all(r) == Some(4000))?;
    // Long enough for the children to be found, too.
    let rounds = |r: &Running| r.stdout().matches("\"type\":\"host\"").count();
    let least = rounds(&counts) + 10;
    counts.wait_until("ten more readings", LIMIT, |r| rounds(r) >= least)?;
    ensure!(all(&counts) == Some(4000), "{}", counts.stdout());
    let text = counts.stdout();
    let others = text
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let twice = others.filter(|v| {
        v["type"] == "process"
            && v["pid"] != gpu.pid()
            && number(v, "submitted_in_all") == Some(4000)
    });
    ensure!(twice.count() == 0, "{text}");
    Ok(())
}

/// Asks a server; the status and what it says.
pub fn ask(address: &str, path: &str, token: Option<&str>) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let token = token.map_or(String::new(), |t| format!("Authorization: Bearer {t}\r\n"));
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\n{token}Connection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    Ok((status.context("no status")?, body.to_owned()))
}

/// The value of a metric with these labels among its own.
pub fn value(text: &str, name: &str, labels: &[String]) -> Option<f64> {
    let of = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|r| r.starts_with([' ', '{']))
            && labels.iter().all(|l| line.contains(l.as_str()))
    };
    text.lines().find(of)?.rsplit(' ').next()?.parse().ok()
}

pub fn serve(args: &[&str]) -> Result<(Running, String)> {
    let all = [
        &[
            "serve",
            "--listen=127.0.0.1:0",
            "--interval=0.1",
            "--by-process",
            "--budget=50%",
        ],
        args,
    ]
    .concat();
    let mut serve = Running::start(&nvcap()?, all)?;
    let address = |r: &Running| {
        let said = r.stderr();
        let (_, rest) = said.split_once("serving http://")?;
        Some(rest.split_once('/')?.0.to_owned())
    };
    serve.wait_until("serving", LIMIT, |r| address(r).is_some())?;
    let address = address(&serve).context("no address")?;
    Ok((serve, address))
}

/// Metrics of two processes, one of which ends; reports for those alone who have the token; the time in which none ran.
pub fn served() -> Result<()> {
    let folder = Folder::new()?;
    let (token, state) = (folder.file("token"), folder.file("state"));
    std::fs::write(&token, "a-token-of-this-test\n")?;
    let arg = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
    let args = [arg("token-file", &token), arg("state", &state)];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let open = Running::start(&nvcap()?, ["serve", "--listen=127.0.0.1:0", args[0]])?.end(LIMIT)?;
    open.expect_code(1)?;
    ensure!(open.stderr.contains("chmod 600"), "{}", open.stderr);
    Running::start(
        std::path::Path::new("/bin/chmod"),
        ["600".as_ref(), token.as_os_str()],
    )?
    .end(LIMIT)?;
    let (server, address) = serve(&args)?;
    let long = start(&plan(53, 4, 2000), &["--linger-ms=900000"])?;
    let stay = Until::new(&folder, "stay")?;
    let short = start(&plan(54, 4, 700), &[&stay.stay()])?;
    let scrape = || Ok::<_, anyhow::Error>(ask(&address, "/metrics", None)?.1);
    let submissions =
        |text: &str, pid: u32| value(text, "nvcap_submissions_total", &[format!("pid=\"{pid}\"")]);
    let wait = |what: &str, done: &dyn Fn(&str) -> bool| -> Result<String> {
        let begun = std::time::Instant::now();
        while begun.elapsed() < GUARD {
            let text = scrape()?;
            if done(&text) {
                return Ok(text);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        anyhow::bail!("guard: not {what}:\n{}", scrape()?)
    };
    let (long_pid, short_pid) = (long.pid(), short.pid());
    let text = wait("counted", &|text| {
        let idle = [format!("pid=\"{long_pid}\""), "state=\"idle\"".to_owned()];
        submissions(text, long_pid) == Some(2000.0)
            && submissions(text, short_pid) == Some(700.0)
            && value(text, "nvcap_channels", &idle) == Some(4.0)
    })?;
    ensure!(
        text.ends_with("# EOF\n") && text.contains("nvcap_build_info{version="),
        "{text}"
    );
    let of = |name: &str, more: &str| {
        value(
            &text,
            name,
            &[format!("pid=\"{long_pid}\""), more.to_owned()],
        )
    };
    ensure!(
        of("nvcap_channels", "state=\"idle\"") == Some(4.0),
        "{text}"
    );
    ensure!(
        of("nvcap_pending_submissions", "stage=\"unfetched\"") == Some(0.0),
        "{text}"
    );
    ensure!(
        of("nvcap_submissions_created", "").is_some_and(|t| t > 1e9),
        "{text}"
    );
    stay.release()?;
    short.end(LIMIT)?.expect_code(0)?;
    let gone = format!("pid=\"{short_pid}\"");
    let text = wait("ended", &|text| {
        value(text, "nvcap_channels", std::slice::from_ref(&gone)).is_none()
    })?;
    ensure!(
        submissions(&text, short_pid) == Some(700.0),
        "its sum went away: {text}"
    );
    ensure!(ask(&address, "/healthz", None)?.0 == 200 && ask(&address, "/readyz", None)?.0 == 200);
    let path = format!("/dump?pid={long_pid}");
    ensure!(ask(&address, &path, None)?.0 == 401);
    let (status, report) = ask(&address, &path, Some("a-token-of-this-test"))?;
    ensure!(
        status == 200 && report.contains(&format!("process {long_pid}")),
        "{status} {report}"
    );
    let own = format!("/dump?pid={}", std::process::id());
    ensure!(ask(&address, &own, Some("a-token-of-this-test"))?.0 == 404);
    // Killed: the next one knows for how long there was none, and begins anew with what is there.
    let alive = std::time::Instant::now();
    drop(server);
    std::thread::sleep(Duration::from_millis(2200));
    let (_server, address) = serve(&args)?;
    // There are no metrics before its first reading.
    let begun = std::time::Instant::now();
    while ask(&address, "/readyz", None)?.0 != 200 && begun.elapsed() < GUARD {
        std::thread::sleep(Duration::from_millis(100));
    }
    let text = ask(&address, "/metrics", None)?.1;
    // It wrote at most ten seconds before that it is alive; on a busy machine earlier.
    let most = alive.elapsed().as_secs_f64() + 60.0;
    let blind = value(
        &text,
        "nvcap_blind_seconds_total",
        &["not_running".to_owned()],
    );
    ensure!(
        blind.is_some_and(|s| (1.0..most).contains(&s)),
        "{blind:?}: {text}"
    );
    Ok(())
}

/// The newest line about the host.
fn newest_of_host(text: &str) -> Option<Value> {
    let lines = text.lines().rev();
    let mut parsed = lines.filter_map(|l| serde_json::from_str::<Value>(l).ok());
    parsed.find(|v| v["type"] == "host")
}

/// nvcap as nobody: a process of nobody's is counted, one of root's is named as long as it runs, and told in the table.
pub fn of_another_user() -> Result<()> {
    let folder = Folder::new()?;
    let own_nvcap = copy_for_all(&folder, &nvcap()?, "nvcap")?;
    let own_gpu = copy_for_all(&folder, &softgpu()?, "counts-own")?;
    let other_gpu = copy_for_all(&folder, &softgpu()?, "counts-other")?;
    let args = |seed: u64| {
        let seed = format!("--seed={seed}");
        let more = [
            "--gpus=1",
            "--channels=4",
            "--submissions=400",
            "--linger-ms=900000",
        ];
        [
            vec!["--files".to_owned(), seed],
            more.map(str::to_owned).to_vec(),
        ]
        .concat()
    };
    let own = Running::start_as(&own_gpu, args(55), Some(NOBODY))?;
    let mut other = Running::start(&other_gpu, [args(56), vec!["--wait-stdin".into()]].concat())?;
    other.wait_for_line("waiting")?;
    let options = ["counts", "-a", "--comm=counts-o*", "--interval=0.1"];
    let json = [&options[..], &["--json"]].concat();
    let mut counts = Running::start_as(&own_nvcap, json, Some(NOBODY))?;
    counts.wait_until("counting its own", LIMIT, |r| {
        newest(&r.stdout(), own.pid()).and_then(|p| number(&p, "submitted_in_all")) == Some(400)
    })?;
    let host = newest_of_host(&counts.stdout()).context("no line of the host")?;
    let refused = &host["not_readable"];
    ensure!(
        refused[0]["pid"] == other.pid()
            && refused[0]["comm"] == "counts-other"
            && refused[0]["user"] == "root"
            && refused[0]["uses_gpu"].is_null()
            && refused[0]["why"]
                .as_str()
                .is_some_and(|why| why.contains("ermission denied"))
            && refused.as_array().is_some_and(|all| all.len() == 1),
        "{host}"
    );
    let blind = |host: &Value| host["blind_seconds"]["unreadable"].as_f64();
    counts.wait_until("blind", LIMIT, |r| {
        newest_of_host(&r.stdout()).is_some_and(|h| blind(&h) > Some(0.0))
    })?;
    let table = [&options[..], &["--times=2"]].concat();
    let table = Running::start_as(&own_nvcap, table, Some(NOBODY))?.end(LIMIT)?;
    table.expect_code(0)?;
    let line = format!(
        "{:>8} counts-other    of user root is not counted",
        other.pid()
    );
    ensure!(
        table.stdout.matches(&line).count() == 1 && table.stdout.contains("; 1 not counted"),
        "{}",
        table.stdout
    );
    // It ends; the rest goes on.
    drop(other);
    counts.wait_until("none is missing", LIMIT, |r| {
        newest_of_host(&r.stdout()).is_some_and(|h| h["not_readable"] == serde_json::json!([]))
    })?;
    let still = newest(&counts.stdout(), own.pid()).context("no line")?;
    ensure!(number(&still, "submitted_in_all") == Some(400), "{still}");
    Ok(())
}

/// Commands that may not serve, or may not count, say so at once.
pub fn refused() -> Result<()> {
    for (args, code, said) in [
        (&["counts"][..], 2, "nothing to count"),
        (&["counts", "-p", "4194303"], 1, "no such process"),
        (
            &["serve", "--listen", "0.0.0.0:0"],
            2,
            "--tls-cert FILE --tls-key FILE --token-file FILE",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--token-file",
                "/nowhere",
            ],
            1,
            "token file /nowhere",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--state",
                "/nowhere/file",
            ],
            1,
            "--state",
        ),
    ] {
        let ended = Running::start(&nvcap()?, args.iter().copied())?.end(LIMIT)?;
        ended.expect_code(code)?;
        ensure!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    }
    Ok(())
}
