#!/bin/bash
# Whether recordings hold what the live trace showed, on a GPU: byte for byte, by every way to see, and what recording costs.
#
#   recordings.sh [SECTION...]     sections, default all in this order:
#     same      train.py recorded and shown at once (--record): from its start, attached to, observed with the GPU's times, with stacks;
#               `nvcap decode` of each gives the same bytes
#     readers   stats, stacks, time, ioctls, channels, diff, and the exports of those recordings: their statuses, times and memory
#     cost      a launch loop under -q and under record in turn, six times (PAIRS): a launch's time, as a ratio
#
# Needs: root, python3 with torch, nvcc (cost), and bin/nvcap beside this script or one folder up. Takes about two minutes.
# Writes to $OUT, else to ./gpu-results: summary.txt; recordings.txt with the first lines of each answer; the recordings with KEEP=1.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- same readers cost
: >"$OUT/recordings.txt"
python3 -c 'import torch' 2>/dev/null || { row "NOT RUN" "all" "no Python package torch here"; exit 0; }
STEPS=${STEPS:-60}

# compare WAY OPTIONS...: the live JSON against that of the recording.
compare() {
    local way=$1 status
    shift
    "$NVCAP" decode --json "$@" -o "$WORK/$way.decoded" "$WORK/$way.pcapng" >"$WORK/$way.said" 2>&1
    status=$?
    case $status in 0 | 3 | 5) ;; *) row FAIL "$way: decode" "status $status: $(tail -n 1 "$WORK/$way.said")"; return ;; esac
    if cmp -s "$WORK/$way.live" "$WORK/$way.decoded"; then
        row ok "$way: the same bytes" "$(stat -c %s "$WORK/$way.live") B of JSON, $(stat -c %s "$WORK/$way.pcapng") B recorded, status $status"
    else
        row FAIL "$way: the same bytes" "$(cmp "$WORK/$way.live" "$WORK/$way.decoded" 2>&1 | cut -c1-200)"
        diff <(head -n 200000 "$WORK/$way.live") <(head -n 200000 "$WORK/$way.decoded") | head -n 6 | cut -c1-400 >>"$OUT/recordings.txt"
    fi
}

# attached WAY OPTIONS...: train.py warm, then recorded for three seconds.
attached() {
    local way=$1 program
    shift
    python3 "$HERE/train.py" --seconds 30 >"$WORK/$way.out" 2>&1 &
    program=$!
    wait_for training "$WORK/$way.out" $program || { row FAIL "$way" "train.py did not start"; return; }
    "$NVCAP" "$@" --json -o "$WORK/$way.live" --record "$WORK/$way.pcapng" --duration 3 -p $program >"$WORK/$way.trace" 2>&1
    row "$([ -s "$WORK/$way.live" ] && echo ok || echo FAIL)" "$way: traced" "$(grep '^nvcap:' "$WORK/$way.trace" | tail -n 1 | cut -c1-200)"
    kill $program
    wait $program 2>/dev/null
    compare "$way"
}

section_same() {
    "$NVCAP" --json -o "$WORK/start.live" --record "$WORK/start.pcapng" -- python3 "$HERE/train.py" --steps "$STEPS" --warm 5 >"$WORK/start.out" 2>"$WORK/start.trace"
    row "$([ -s "$WORK/start.live" ] && echo ok || echo FAIL)" "start: traced" "$(grep '^nvcap:' "$WORK/start.trace" | tail -n 1 | cut -c1-200)"
    compare start
    attached attached
    attached observed --how observe --gpu-time
    attached stacks --stacks
}

# answer NAME FILE COMMAND...: its status, time and memory, and its first lines.
answer() {
    local name=$1 file=$2 status
    shift 2
    /usr/bin/env time -f '%e s, %M KiB' -o "$WORK/measured" "$NVCAP" "$@" >"$WORK/answer" 2>"$WORK/said"
    status=$?
    { echo "---- nvcap $*" | sed "s#$WORK/##g"; head -n "${LINES_SHOWN:-25}" "$WORK/answer" | cut -c1-180; tail -n 2 "$WORK/said" | cut -c1-200; } >>"$OUT/recordings.txt"
    case $status in 0 | 3 | 5) row ok "$name" "status $status; $(cat "$WORK/measured" 2>/dev/null); $(stat -c %s "$file" 2>/dev/null) B" ;; *) row FAIL "$name" "status $status: $(tail -n 1 "$WORK/said" | cut -c1-200)" ;; esac
}

section_readers() {
    local run=$WORK/observed.pcapng
    [ -s "$WORK/start.pcapng" ] && [ -s "$run" ] || { row FAIL readers "there are no recordings: run the section same, too"; return; }
    answer "stats" "$WORK/start.pcapng" stats "$WORK/start.pcapng"
    answer "stats, GPU times" "$run" stats "$run" --by kernel
    answer "time" "$run" time "$run"
    answer "stacks" "$WORK/stacks.pcapng" stacks "$WORK/stacks.pcapng"
    answer "ioctls" "$WORK/start.pcapng" ioctls "$WORK/start.pcapng"
    answer "channels" "$WORK/start.pcapng" channels "$WORK/start.pcapng"
    answer "export perfetto" "$run" export perfetto "$run" -o "$WORK/run.pftrace"
    answer "export parquet" "$run" export parquet "$run" -o "$WORK/run.tables"
    answer "export csv" "$run" export csv "$run" --table kernels -o "$WORK/kernels.csv"
    answer "export wireshark" "$run" export wireshark "$run" -o "$WORK/run.wireshark.pcapng"
    answer "export pcapng, redacted" "$WORK/start.pcapng" export pcapng --redact "$WORK/start.pcapng" -o "$WORK/shared.pcapng"
    answer "decode, redacted" "$WORK/shared.pcapng" decode "$WORK/shared.pcapng"
    "$NVCAP" record -o "$WORK/again.pcapng" -- python3 "$HERE/train.py" --steps "$STEPS" --warm 5 >/dev/null 2>&1
    "$NVCAP" diff "$WORK/start.pcapng" "$WORK/again.pcapng" >"$WORK/diff" 2>"$WORK/said"
    row "$([ $? -lt 2 ] && echo ok || echo FAIL)" "diff of two equal runs" "$(tail -n 3 "$WORK/diff" | tr '\n' ';' | cut -c1-250)"
    head -n 40 "$WORK/diff" | cut -c1-180 >>"$OUT/recordings.txt"
    [ -z "${KEEP:-}" ] || cp "$WORK"/*.pcapng "$WORK"/run.pftrace "$OUT"
}

# once KIND: a launch's time, ns, of the loop under it.
once() {
    case $1 in
        quiet) "$NVCAP" -q -- "$WORK/loop" 60000 1 >"$WORK/loop.out" 2>/dev/null ;;
        record) "$NVCAP" record -o "$WORK/loop.pcapng" -- "$WORK/loop" 60000 1 >"$WORK/loop.out" 2>/dev/null ;;
        plain) "$WORK/loop" 60000 1 >"$WORK/loop.out" 2>/dev/null ;;
    esac
    echo "$1 $(grep -o 'total_ns=[0-9.]*' "$WORK/loop.out" | tail -n 1 | cut -d= -f2)" >>"$OUT/recording-cost.txt"
}

section_cost() {
    local i
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" 2>/dev/null || { row "NOT RUN" cost "nvcc did not build loop.cu"; return; }
    : >"$OUT/recording-cost.txt"
    for i in $(seq "${PAIRS:-6}"); do once plain; once quiet; once record; done
    python3 - "$OUT/recording-cost.txt" >"$WORK/cost" <<'PYTHON'
import statistics, sys
times = {}
for line in open(sys.argv[1]):
    kind, *ns = line.split()
    if ns: times.setdefault(kind, []).append(float(ns[0]))
plain, quiet, record = (statistics.median(times[k]) for k in ("plain", "quiet", "record"))
print(f"a launch: {plain:.0f} ns untraced, {quiet:.0f} with -q, {record:.0f} recorded: record/-q {record / quiet:.3f}")
sys.exit(record > 1.05 * quiet)
PYTHON
    status_row $? "cost: no more than -q does" "$(tail -n 1 "$WORK/cost")"
}
sections "$@"
[ "$failed" -eq 0 ]
