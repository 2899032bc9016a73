"""`nvcap study sharing` on a GPU: whether the trace is complete, finds every kernel and copy, and agrees with `nvcap stats` and with the times.

    python3 sharing.py NVCAP FOLDER        # as root; half a minute on a GPU; writes the study into FOLDER

What is a fact of the study itself is checked; what a GPU may do otherwise (the rules) is printed. FOLDER gets, beside the study, its tables
(`sharing.txt`) and what the program said in each run, a line a kernel that was not short (`raw.txt`). Exit status 1 where something does not hold.
"""

import json
import pathlib
import subprocess
import sys
import time

FAILED = []
LIMIT_S = 110


def check(what, holds, said=""):
    print(f"{'PASS' if holds else 'FAIL'}: {what}{': ' if said else ''}{said}", flush=True)
    if not holds:
        FAILED.append(what)


def run(command):
    """Runs it; its standard output, or None. What it says of errors goes on."""
    begin = time.monotonic()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S, text=True)
    except subprocess.TimeoutExpired as error:
        check(f"{command[1:3]} ends within {LIMIT_S} s", False)
        return error.stdout and error.stdout.decode(errors="replace")
    check(f"{' '.join(command[1:3])} ends with 0", done.returncode == 0, f"{done.returncode}, {time.monotonic() - begin:.1f} s")
    return done.stdout


def raw(folder, out):
    """What the program said in each run, some lines a scene: enough to mend the study by."""
    for name in ["alone", "traced"]:
        path = folder / f"sharing.{name}.json"
        if not path.exists():
            print(f"{name}: {path} is not there", file=out)
            continue
        told = json.loads(path.read_text())
        print(f"\n{name}: {told['device']} {told['notes']}", file=out)
        for scene in told["scenes"]:
            for process in scene["processes"]:
                kernels, copies = process["kernels"], process["copies"]
                base = min([k["called"] for k in kernels] + [c["called"] for c in copies])
                said = [scene["name"], f"pid {process['pid']}", f"clock +-{process['clock_error']} ns"]
                firsts = {}
                for k in kernels:
                    firsts.setdefault(k["stream"], (k["start"] - k["returned"]) // 1000)
                said.append("first starts after the launch, us: " + " ".join(f"{s}:{us}" for s, us in firsts.items()))
                for k in kernels:
                    if k["pauses"] or k["blocks"] > 1:
                        pauses = [((a - base) // 1000, (b - a) // 1000) for a, b in k["pauses"][:12]]
                        ran = (k["start"] - base) // 1000, (k["end"] - base) // 1000
                        said.append(f"{k['stream']}: {k['blocks']} blocks, ran {ran} us, {len(k['pauses'])} pauses (at, for us) {pauses}")
                for c in copies:
                    gaps = sorted((b - a) // 1000 for a, b in zip(c["ends"], c["ends"][1:]))
                    picked = gaps[:3] + gaps[len(gaps) // 2 : len(gaps) // 2 + 3] + gaps[-12:]
                    said.append(f"{c['way']} {c['bytes']} B x {len(c['ends'])}: us apart, least, middle, most: {picked}")
                print("  " + "\n      ".join(said), file=out)


def agrees(nvcap, folder, study):
    """The study's counts are those of other commands of nvcap on the same recording."""
    recording, phases = str(folder / "sharing.pcapng"), str(folder / "sharing.traced.phases")
    said = run([nvcap, "decode", "--json", recording, "--phases", phases, "-e", "op=launch && kind=user"]) or ""
    launches = [json.loads(line) for line in said.splitlines()]
    launches = [line for line in launches if line.get("op") == "launch"]
    scenes = {}
    for line in launches:
        scenes.setdefault(line.get("phase"), []).append(line["channel"])
    for scene in study["scenes"]:
        if scene["kernels"]:
            own = sorted(k["channel"] if k["channel"] is not None else -1 for k in scene["kernels"])
            seen = sorted(scenes.get(scene["name"], []))
            check(f"{scene['name']}: decode has the same launches in the same channels", own == seen, "" if own == seen else f"{own} and {seen}")


def main():
    nvcap, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    text = run([nvcap, "study", "sharing", "-o", str(folder)])
    (folder / "sharing.txt").write_text(text or "")
    with open(folder / "raw.txt", "w") as out:
        raw(folder, out)
    # The tables of kernels are in the file.
    print((text or "(it said nothing)").split("\n\nstreams_")[0])
    figures = folder / "sharing.json"
    if not figures.exists():
        check("there are figures", False)
        sys.exit(1)
    study = json.loads(figures.read_text())["study"]
    check("the trace is complete", study["ledger"].startswith("complete"), study["ledger"])
    check("everything was done", not study["notes"], "; ".join(study["notes"]))
    kernels = [k for s in study["scenes"] for k in s["kernels"]]
    unseen = [k["stream"] for k in kernels if k["channel"] is None]
    check(f"the channel of each of {len(kernels)} kernels is known", kernels and not unseen, f"{len(unseen)} are not: {unseen[:8]}" if unseen else "")
    for copies in (c for s in study["scenes"] for c in s["copies"]):
        same = copies["seen"] == copies["copies"] and len(copies["channels"]) == 1
        check(f"{copies['way']} of {copies['bytes']} B: all {copies['copies']} copies in one channel", same, f"{copies['seen']}, {copies['channels']}")
    used = [c for c in study["channels"] if c["used"]]
    for member in ["token", "runlist", "group", "engines"]:
        lacking = [c["number"] for c in used if c[member] in (None, [])]
        check(f"{member} of each channel with work", not lacking, str(lacking) if lacking else "")
    of_process = [sum(c["pid"] == pid for c in study["channels"]) for pid in {c["pid"] for c in study["channels"]}]
    print(f"channels of each process: {of_process}")
    agrees(nvcap, folder, study)
    print(f"{len(FAILED)} failed: {FAILED}" if FAILED else "all held")
    sys.exit(1 if FAILED else 0)


main()
