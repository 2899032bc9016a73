#!/bin/bash
# Whether `nvcap counts` counts exactly what the trap sees, and what `nvcap serve` costs.
#
#   counts.sh [SECTION...]     sections, default all in this order:
#     beside     one PyTorch process (counts/one.py): launches, copies, streams, graphs, forked workers, a slow kernel; counted and trapped at once
#     lone       a kernel that runs for seconds with nothing behind it (hang.cu peer): counts show one pending submission and its age, then none
#     shares     a PyTorch training (counts/shares.py): shares of kernels by `nvcap counts --sample 1%`, 50 s, against CUPTI's
#     eight      eight PyTorch processes (counts/busy.py): their speed with and without `nvcap serve --sample 0.5%` in turn (PAIRS, default
#                10), its processor time over SECONDS_OF (default 300) while it is scraped every 5 s
#
# Needs: root, python3 with torch, curl, and bin/nvcap beside this script or one folder up. Takes ten minutes (PAIRS=3 SECONDS_OF=60: four).
# Writes to $OUT, else to ./gpu-results: summary.txt, metrics.txt, channels.txt,
# shares.txt, judged.txt.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
WIDTH=400
[ $# -gt 0 ] || set -- beside lone shares eight
ADDRESS=127.0.0.1:9837
python3 -c 'import torch' 2>/dev/null || { row "NOT RUN" counts "no Python package torch here"; exit 2; }

judged() {
    local result what detail
    while IFS=$'\t' read -r _ result what detail; do row "$result" "$what" "$detail"; done \
        < <("$@" 2>&1 | tee -a "$OUT/judged.txt" | sed '/^NOTE /d; /^ROW\t/!s/^/ROW\tFAIL\tcounts.py\t/')
}

# newest PID: the last line of counts of a process.
newest() { grep "\"pid\":$1[,}]" "$WORK/counts.json" | tail -n 1; }

section_beside() {
    local pid counts tracer kind before to
    mkfifo "$WORK/one.in"
    python3 -u "$HERE/counts/one.py" <"$WORK/one.in" >"$WORK/one.out" 2>"$WORK/one.err" &
    exec {to}>"$WORK/one.in"
    if ! wait_for '^ready' "$WORK/one.out" $!; then row FAIL beside "one.py did not start: $(tail -n 1 "$WORK/one.err")"; return; fi
    pid=$(sed -n 's/^ready //p' "$WORK/one.out")
    "$NVCAP" counts -p "$pid" --times 2 --channels >"$OUT/channels.txt" 2>&1
    "$NVCAP" counts -a --json --interval 0.5 >"$WORK/counts.json" 2>"$WORK/counts.err" &
    counts=$!
    for kind in launches copies streams graphs workers slow; do
        "$NVCAP" --json -e type=chip --force -o "$WORK/trap.json" -p "$pid" >"$WORK/trap.log" 2>&1 &
        tracer=$!
        wait_for 'process [0-9]* attached\(:\|$\)' "$WORK/trap.log" $tracer || row FAIL "$kind" "nvcap did not attach: $(tail -n 1 "$WORK/trap.log")"
        sleep 1.5
        before=$(newest "$pid")
        echo $kind >&"$to"
        wait_for "^over $kind" "$WORK/one.out" "$pid" || row FAIL "$kind" "it did not end"
        sleep 1.5
        kill -INT $tracer
        wait $tracer
        judged python3 "$HERE/counts/counts.py" beside $kind "$before" "$(newest "$pid")" "$WORK/trap.json"
    done
    kill $counts
    exec {to}>&-
    wait
}

section_lone() {
    local job counts
    if ! nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/hang" "$HERE/hang.cu" -lcuda 2>"$WORK/hang.log"; then
        row "NOT RUN" lone "nvcc does not build hang.cu: $(tail -n 1 "$WORK/hang.log")"
        return
    fi
    "$WORK/hang" peer 6 >"$WORK/lone.log" 2>&1 &
    job=$!
    if ! wait_for '^hung' "$WORK/lone.log" $job; then row FAIL lone "it did not come to hang"; return; fi
    "$NVCAP" counts -a --json --interval 0.5 >"$WORK/lone.json" 2>/dev/null &
    counts=$!
    wait $job
    kill $counts
    wait $counts
    judged python3 "$HERE/counts/counts.py" lone "$WORK/lone.json"
}

section_shares() {
    local job to
    mkfifo "$WORK/shares.in"
    python3 -u "$HERE/counts/shares.py" <"$WORK/shares.in" >"$WORK/shares.out" 2>"$WORK/shares.err" &
    job=$!
    exec {to}>"$WORK/shares.in"
    if ! wait_for '^ready' "$WORK/shares.out" $job; then row FAIL shares "shares.py did not start: $(tail -n 1 "$WORK/shares.err")"; exec {to}>&-; return; fi
    timeout -s INT 50 "$NVCAP" counts -p $job --sample 1% --interval 5 --json >"$WORK/shares.json" 2>"$OUT/shares.err"
    timeout -s INT 7 "$NVCAP" counts -p $job --sample 1% --interval 5 >"$OUT/shares.txt" 2>&1
    echo profile >&"$to"
    exec {to}>&-
    wait $job
    grep '^{' "$WORK/shares.out" >"$WORK/profile.json"
    cp "$WORK/profile.json" "$OUT/profile.json"
    tail -n 2 "$WORK/shares.json" >"$OUT/shares.json"
    judged python3 "$HERE/counts/counts.py" shares "$WORK/shares.json" "$WORK/profile.json"
}

# ticks PID: its processor time, 10 ms each.
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }

# window plain|served SECONDS
window() {
    local server= from
    if [ "$1" = served ]; then
        "$NVCAP" serve --listen $ADDRESS --budget 1% --sample 0.5% >"$WORK/serve.log" 2>&1 &
        server=$!
        sleep 1
    fi
    from=$(date +%s.%N)
    sleep "$2"
    echo "$1 $from $(date +%s.%N)" >>"$WORK/windows.txt"
    [ -z "$server" ] || { kill $server; wait $server 2>/dev/null; }
}

section_eight() {
    local i jobs=() server before after seconds=${SECONDS_OF:-300} from
    for i in 1 2 3 4 5 6 7 8; do
        python3 "$HERE/counts/busy.py" >"$WORK/busy.$i" 2>"$WORK/busy.$i.err" &
        jobs+=($!)
    done
    for i in 1 2 3 4 5 6 7 8; do wait_for ' ' "$WORK/busy.$i" "${jobs[i - 1]}" || row FAIL eight "busy.py did not start: $(tail -n 1 "$WORK/busy.$i.err")"; done
    sleep 3
    : >"$WORK/windows.txt"
    for i in $(seq "${PAIRS:-10}"); do
        if [ $((i % 2)) = 1 ]; then window plain 6; window served 6; else window served 6; window plain 6; fi
    done
    # The processes say their numbers of steps twice a second: behind the last window, too.
    sleep 2
    judged python3 "$HERE/counts/counts.py" speed "$WORK/windows.txt" "$WORK"/busy.[1-8]
    "$NVCAP" serve --listen $ADDRESS --by-process --budget 1% --sample 0.5% >"$OUT/serve.log" 2>&1 &
    server=$!
    sleep 5
    before=$(ticks $server) from=$SECONDS
    while [ $((SECONDS - from)) -lt "$seconds" ]; do sleep 5; curl -s http://$ADDRESS/metrics >"$OUT/metrics.txt"; done
    after=$(ticks $server)
    row "$([ $((after - before)) -lt "$seconds" ] && [ "$(grep -c '^nvcap_submissions_total{' "$OUT/metrics.txt")" -ge 8 ] && echo ok || echo FAIL)" \
        "serve: processor time" "$((after - before)) ticks of 10 ms in $seconds s (limit 1 % of a core), $(grep -c '^nvcap_submissions_total{' "$OUT/metrics.txt") processes"
    kill $server "${jobs[@]}"
    wait 2>/dev/null
}

for section in "$@"; do
    echo "== $section ($(date -u +%T))"
    "section_$section"
done
echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
