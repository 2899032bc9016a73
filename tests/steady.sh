#!/usr/bin/env bash
# Whether the tests say the same each time: runs README's test command N times, a third of them beside three busy loops, a third on one processor, a
# third plain, and prints a table of the tests whose outcomes differ or are failures, and of the runs.
#
#   tests/steady.sh 15 [ARGUMENTS OF cargo xtask test...]      sudo or root, as for cargo xtask test
#   tests/steady.sh --more 15                                  goes on behind the runs that an earlier call has finished, up to the 15th
#
# The logs of run K are in target/steady/K, a line a run in target/steady/runs. Status 1 where a run had a failure.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 2
more=
[ "${1:-}" != --more ] || { more=1 && shift; }
case "${1:-}" in
'' | *[!0-9]*)
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
runs=$1
shift
loops=()
quiet() {
    [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null
    loops=()
}
trap quiet EXIT
[ -n "$more" ] || rm -rf target/steady
mkdir -p target/steady
touch target/steady/runs
first=$(($(wc -l <target/steady/runs) + 1))
# Compiled before, and not beside the loops: what is tested is tests.
cargo xtask test --no-live --no-vm >target/steady/first.log 2>&1 || echo "the first run (compiling, unit tests) failed: target/steady/first.log"
commit=$(git rev-parse --short=8 HEAD)
for ((run = first; run <= runs; run++)); do
    how=plain
    prefix=()
    case $((run % 3)) in
    1)
        how="three busy loops"
        for _ in 1 2 3; do
            (while :; do :; done) &
            loops+=($!)
        done
        ;;
    2)
        how="one processor"
        prefix=(taskset -c 0)
        ;;
    esac
    from=$SECONDS
    "${prefix[@]}" cargo xtask test "$@" >"target/steady/$run.log" 2>&1
    status=$?
    quiet
    wait 2>/dev/null
    mkdir -p "target/steady/$run"
    cp target/xtask-test/*.log "target/steady/$run/"
    echo "run $run of $commit ($how): status $status, $((SECONDS - from)) s, $(grep -E '^[0-9]+ passed, ' "target/steady/$run.log" | tail -n 1)" |
        tee -a target/steady/runs
done
# A line `test NAME ... OUTCOME` of each log, by name: how often each outcome.
python3 - "$runs" <<'P'
import collections, glob, re, sys
runs = int(sys.argv[1])
seen = collections.defaultdict(dict)
for run in range(1, runs + 1):
    for log in sorted(glob.glob(f"target/steady/{run}/*.log")):
        suite = log.rsplit("/", 1)[1].removesuffix(".log")
        for line in open(log, errors="replace"):
            found = re.match(r"test (\S+) \.\.\. (ok|FAILED|NOT RUN|ignored)", line)
            if found:
                seen[f"{suite} {found[1]}"][run] = found[2]
columns = "".join(f"{run:>4}" for run in range(1, runs + 1))
print(f"\n{'test':<70}{columns}")
marks = {"ok": ".", "FAILED": "F", "NOT RUN": "-", "ignored": "i"}
unsteady = 0
for name, outcomes in sorted(seen.items()):
    of = [outcomes.get(run, "not there") for run in range(1, runs + 1)]
    if len(set(of)) > 1 or "FAILED" in of:
        unsteady += 1
        print(f"{name:<70}" + "".join(f"{marks.get(o, '?'):>4}" for o in of))
print(f"{len(seen)} tests, {unsteady} of them not the same each time or failed")
P
! grep -qv 'status 0,' target/steady/runs
