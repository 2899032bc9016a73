#!/bin/bash
# Whether the GPU times of `nvcap --gpu-time` are true: against kernels that write the GPU's clock themselves, and against CUPTI.
#
#   time.sh [SECTION...]     sections, default all in this order:
#     start attached observed   time/truth.cu, traced from its start, attached to, observed: errors of starts and durations by phase,
#                               the share of launches with them, the host clock, the time in the queue, copies, graphs
#     busy                      what `nvcap time` sums up of recordings of time/truth.cu, attached and observed: the share of time with
#                               work, overlaps, gaps and waits of single phases; one of 300,000 submissions a second (observed)
#     cupti                     time/truth.cu under CUPTI: what CUPTI calls a kernel's duration; times between starts against those of
#                               the sections before that were run
#     speed                     a launch loop untraced, observed and under CUPTI in turn, ten times
#     train                     train.py (kernels of 1 to 9 us, nothing queued) and a transformer (10 to 1,000 us, queued) by the trap
#                               and observed: sums by kernel against CUPTI's of an equal run
#     ahead                     time/ahead.cu (work that ends seconds after its submission): what `nvcap time` says of it attached, observed, and of a
#                               recording, against %globaltimer
#     summary                   `nvcap time` on train.py while it runs, whole and as a sample: to be read in time.txt
#
# The limits are in time/time.py; rows OVER are limits that are known not to be held, and say why. PHASES="queue sync" chooses phases of truth.cu (they are listed there); WAYS="observed" those of train.
# Needs: root, nvcc with CUPTI's header (speed, train), gcc, python3 with torch (train), and bin/nvcap beside this script or one folder
# up. Takes about three minutes. Writes to $OUT, else to ./gpu-results: summary.txt, time.txt with the tables; traces with KEEP=1.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- start attached observed busy cupti speed train ahead summary
FILTER='type=submission||op=launch&&kind=user||op=graph||op=copy&&op!=inline,launch'
: >"$OUT/time.txt"

echo "== building ($(date -u +%T))"
{ date -u; uname -sr; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$NVCAP" --version; } | tee "$OUT/machine.txt"
nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/truth" "$HERE/time/truth.cu" &
nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" &
cupti=
case " $* " in *" cupti "* | *" speed "* | *" train "*) if build_cupti_log "$WORK/cupti_log.so"; then cupti=$WORK/cupti_log.so; fi ;; esac
wait
[ -x "$WORK/truth" ] && [ -x "$WORK/loop" ] || { echo "nvcc did not build truth.cu and loop.cu: its errors are above" >&2; exit 2; }

# judge FILE: tables of what time.py printed go to time.txt, its rows are counted.
judge() {
    local mark result what detail
    grep -v '^ROW' "$1" >>"$OUT/time.txt"
    grep -q '^ROW' "$1" || row FAIL "$1" "no rows: $(tail -n 1 "$1" | cut -c1-200)"
    while IFS=$'\t' read -r mark result what detail; do row "$result" "$what" "$detail"; done < <(grep '^ROW' "$1")
}
# status_of STATUS WHAT LOG: nvcap's status as a row. 3: something is missing (the ledger says what), 5: not all was understood.
status_of() { case $1 in 0) row ok "$2" "complete" ;; 3 | 5) row note "$2" "status $1: $(grep '^nvcap:' "$3" | tail -n 1 | cut -c1-250)" ;; *) row FAIL "$2" "status $1: $(tail -n 1 "$3" | cut -c1-250)" ;; esac; }

# truth WAY [busy]: the program prepares itself, then is traced that way; `busy`: recorded.
truth() {
    local way=$1 kind=${2:-} run=$WORK/$1${2:-} pid= target= tracer= feed= status=0 phases=${PHASES:-}
    local -a trace=(--gpu-time --json -e "$FILTER" -o "$run.json")
    if [ "$kind" = busy ]; then
        trace=(record --gpu-time -o "$run.pcapng")
        phases=${PHASES:-pause two copy graph load rate}
    fi
    mkfifo "$run.fifo"
    # shellcheck disable=SC2086
    if [ "$way" = start ]; then
        "$NVCAP" "${trace[@]}" -- "$WORK/truth" -w -o "$run.truth" $phases <"$run.fifo" >"$run.out" 2>"$run.trace" &
        tracer=$!
    else
        "$WORK/truth" -w -o "$run.truth" $phases <"$run.fifo" >"$run.out" 2>"$run.err" &
        target=$!
    fi
    exec {feed}>"$run.fifo"
    if ! wait_for '^ready' "$run.out" "${tracer:-$target}"; then
        exec {feed}>&-
        row FAIL "$way" "truth did not start: $(cat "$run.err" "$run.trace" 2>/dev/null | tail -n 1 | cut -c1-200)"
        return
    fi
    pid=$(sed -n 's/^pid //p' "$run.out")
    if [ -z "$tracer" ]; then
        local how=trap
        [ "$way" != observed ] || how=observe
        "$NVCAP" "${trace[@]}" --how $how -p "$pid" >"$run.trace" 2>&1 &
        tracer=$!
        if ! wait_for 'process [0-9]* attached\(:\|$\)' "$run.trace" $tracer; then
            row FAIL "$way" "nvcap did not attach: $(tail -n 1 "$run.trace" | cut -c1-200)"
        fi
    fi
    echo go >&"$feed"
    wait_for '^done' "$run.out" "${target:-$tracer}" || row FAIL "$way" "truth did not end: $(cat "$run.err" 2>/dev/null | tail -n 1 | cut -c1-200)"
    if [ -n "$target" ]; then
        kill -INT $tracer
        wait $tracer
        status=$?
    fi
    echo end >&"$feed"
    exec {feed}>&-
    if [ -n "$target" ]; then wait "$target"; else wait $tracer; status=$?; fi
    status_of $status "$way${kind:+, $kind}: nvcap" "$run.trace"
    sed -n "s/^\(fast\|rate\): /$way, \1: /p" "$run.out" >>"$OUT/time.txt"
    if [ "$kind" = busy ]; then
        "$NVCAP" decode --json -e "$FILTER" -o "$run.json" "$run.pcapng" >>"$run.trace" 2>&1
        python3 "$HERE/time/time.py" busy "$way" "$run.json" "$run.truth" "$NVCAP" "$run.pcapng" >"$run.busy" 2>&1
        judge "$run.busy"
        return
    fi
    # The next way runs meanwhile.
    { python3 "$HERE/time/time.py" truth "$way" "$run.json" "$run.truth" >"$run.rows.part" 2>&1; mv "$run.rows.part" "$run.rows"; } &
}
section_start() { truth start; }
section_attached() { truth attached; }
section_observed() { truth observed; }
section_busy() {
    truth attached busy
    truth observed busy
}
# What is still judged in the background.
judge_truths() {
    local way
    wait
    for way in start attached observed; do [ ! -e "$WORK/$way.rows" ] || judge "$WORK/$way.rows"; done
}

section_cupti() {
    [ -n "$cupti" ] || { row "NOT RUN" cupti "no CUPTI here"; return; }
    CUDA_INJECTION64_PATH=$cupti CUPTI_LOG=$WORK/truth.cupti "$WORK/truth" -o "$WORK/cupti.truth" queue sync pause write load >"$WORK/cupti.said" 2>&1
    python3 "$HERE/time/time.py" cupti "$WORK/cupti.truth" "$WORK"/truth.cupti.* >"$WORK/cupti.rows" 2>&1
    judge "$WORK/cupti.rows"
    local way
    for way in start attached observed; do
        [ -s "$WORK/$way.json" ] && [ -s "$WORK/$way.truth" ] || continue
        python3 "$HERE/time/time.py" starts "$WORK/cupti.truth" "$WORK"/truth.cupti.* "$way" "$WORK/$way.json" "$WORK/$way.truth" >"$WORK/$way.starts" 2>&1
        judge "$WORK/$way.starts"
    done
}

# pass KIND: one pass of a loop that waits; its ns a launch to pairs.txt.
pass() {
    local kind=$1 tracer= line= to=$plain_in from=$plain_out
    if [ "$kind" = cupti ]; then to=$cupti_in from=$cupti_out; fi
    if [ "$kind" = observed ]; then
        "$NVCAP" --how observe --gpu-time --json -e "$FILTER" --force -o "$WORK/speed.json" -p "$plain_pid" >"$WORK/speed.trace" 2>&1 &
        tracer=$!
        wait_for 'process [0-9]* attached\(:\|$\)' "$WORK/speed.trace" $tracer
    fi
    echo -n g >&"$to"
    while read -r -t 60 line <&"$from" && [ "${line#loop pass}" = "$line" ]; do :; done
    if [ -n "$tracer" ]; then
        sleep 0.1
        kill -INT $tracer
        wait $tracer
    fi
    line=${line#*total_ns=}
    echo "$kind ${line%% *}" >>"$OUT/pairs.txt"
}
section_speed() {
    local i pairs=${PAIRS:-10} launches=${LAUNCHES:-60000} name line= kinds
    local plain_in plain_out cupti_in cupti_out plain_pid= one two
    : >"$OUT/pairs.txt"
    mkfifo "$WORK/plain.in" "$WORK/plain.out" "$WORK/cupti.in" "$WORK/cupti.out"
    exec {plain_out}<>"$WORK/plain.out" {cupti_out}<>"$WORK/cupti.out"
    "$WORK/loop" "$launches" $((2 * pairs)) turns <"$WORK/plain.in" >"$WORK/plain.out" 2>&1 &
    one=$!
    exec {plain_in}>"$WORK/plain.in"
    while read -r -t 60 line <&"$plain_out" && [ "$line" != ready ]; do plain_pid=${line#pid }; done
    [ "$line" = ready ] || { row FAIL "speed" "the loop did not start"; return; }
    kinds="untraced observed"
    if [ -n "$cupti" ]; then
        CUDA_INJECTION64_PATH=$cupti CUPTI_LOG=$WORK/loop.cupti "$WORK/loop" "$launches" "$pairs" turns <"$WORK/cupti.in" >"$WORK/cupti.out" 2>&1 &
        two=$!
        exec {cupti_in}>"$WORK/cupti.in"
        line=
        while read -r -t 60 line <&"$cupti_out" && [ "$line" != ready ]; do :; done
        [ "$line" != ready ] || kinds="untraced observed cupti"
    fi
    for i in $(seq "$pairs"); do
        # As many of each order.
        if [ $((i % 2)) = 0 ] && [ "$kinds" = "untraced observed cupti" ]; then name="cupti observed untraced"
        elif [ $((i % 2)) = 0 ]; then name="observed untraced"
        else name=$kinds; fi
        for kind in $name; do pass "$kind"; done
    done
    exec {plain_in}>&-
    [ -z "${two:-}" ] || exec {cupti_in}>&-
    wait "$one" ${two:-}
    python3 "$HERE/time/time.py" pairs "$OUT/pairs.txt" >"$WORK/speed.rows" 2>&1
    judge "$WORK/speed.rows"
}

# trained NAME COMMAND...: sums by kernel of an equal run, both ways; two runs under CUPTI say how equal runs are.
trained() {
    local name=$1 way how again
    shift
    # One after the other: they would wait for each other on the GPU.
    for again in "" -again; do
        CUDA_INJECTION64_PATH=$cupti CUPTI_LOG=$WORK/$name.cupti "$@" >"$WORK/$name-cupti$again.out" 2>&1
        mv "$WORK/$name.cupti.$(sed -n 's/^pid //p' "$WORK/$name-cupti$again.out")" "$WORK/$name.cupti$again"
    done
    python3 "$HERE/time/time.py" equal "$name" "$WORK/$name.cupti" "$WORK/$name.cupti-again" >"$WORK/$name-equal.rows" 2>&1
    for way in ${WAYS:-start observed}; do
        how=trap
        [ "$way" != observed ] || how=observe
        "$NVCAP" --how $how --gpu-time --json -e "$FILTER" -o "$WORK/$name-$way.json" -- "$@" >"$WORK/$name-$way.out" 2>"$WORK/$name-$way.trace"
        status_of $? "$name, $way: nvcap" "$WORK/$name-$way.trace"
        python3 "$HERE/time/time.py" sums "$name, $way" "$WORK/$name-$way.json" "$WORK/$name.cupti" >"$WORK/$name-$way.rows" 2>&1 &
    done
    wait
    judge "$WORK/$name-equal.rows"
    for way in ${WAYS:-start observed}; do judge "$WORK/$name-$way.rows"; done
}
section_train() {
    local checksums
    python3 -c 'import torch' 2>/dev/null || { row "NOT RUN" train "no Python package torch here"; return; }
    [ -n "$cupti" ] || { row "NOT RUN" train "no CUPTI here"; return; }
    trained train python3 "$HERE/train.py" --steps "${STEPS:-250}" --warm 50
    checksums=$(sed -n 's/.*checksum=//p' "$WORK"/train-*.out | sort -u | wc -l)
    row "$([ "$checksums" = 1 ] && echo ok || echo FAIL)" "train: the same result" "$(grep -h -o 'us_per_step=.*' "$WORK"/train-*.out | tr '\n' ';' | cut -c1-250)"
    if python3 -c 'import transformers' 2>/dev/null; then trained transformer python3 "$HERE/meaning/workload.py" transformer -n 40
    else row "NOT RUN" transformer "no Python package transformers here"; fi
}

# ahead_of MODE WAY: the sums of one trace of time/ahead.cu.
ahead_of() {
    local mode=$1 way=$2 run=$WORK/ahead-$1-$2 how=trap target= tracer= feed= status=0 text
    local -a trace=(time --json -o "$run.json")
    [ "$way" = attached ] || how=observe
    [ "$way" != recorded ] || trace=(record --gpu-time -o "$run.pcapng")
    mkfifo "$run.fifo"
    "$WORK/ahead" "$mode" <"$run.fifo" >"$run.out" 2>"$run.err" &
    target=$!
    exec {feed}>"$run.fifo"
    if ! wait_for '^ready' "$run.out" $target; then row FAIL "ahead, $mode" "did not start: $(tail -n 1 "$run.err")"; return; fi
    "$NVCAP" "${trace[@]}" --how $how -p $target >"$run.trace" 2>&1 &
    tracer=$!
    wait_for 'process [0-9]* attached\(:\|$\)' "$run.trace" $tracer || row FAIL "ahead, $mode, $way" "nvcap did not attach: $(tail -n 1 "$run.trace" | cut -c1-200)"
    echo go >&"$feed"
    wait_for '^truth' "$run.out" $target || row FAIL "ahead, $mode, $way" "did not end: $(tail -n 1 "$run.err")"
    kill -INT $tracer
    wait $tracer
    status=$?
    echo end >&"$feed"
    exec {feed}>&-
    wait $target
    status_of $status "ahead, $mode, $way: nvcap" "$run.trace"
    [ "$way" != recorded ] || "$NVCAP" time --json -o "$run.json" "$run.pcapng" >>"$run.trace" 2>&1
    printf '\n## ahead, %s, %s\n' "$mode" "$way" >>"$OUT/time.txt"
    [ "$way" != recorded ] || "$NVCAP" time "$run.pcapng" 2>&1 | head -n 40 >>"$OUT/time.txt"
    python3 "$HERE/time/time.py" ahead "$mode, $way" "$run.json" "$run.out" >"$run.rows" 2>&1
    judge "$run.rows"
}
section_ahead() {
    local mode way
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/ahead" "$HERE/time/ahead.cu" || { row FAIL ahead "nvcc did not build ahead.cu"; return; }
    for mode in queue long beside; do
        for way in attached observed recorded; do ahead_of "$mode" "$way"; done
    done
}

section_summary() {
    local job pid status text share
    python3 -c 'import torch' 2>/dev/null || { row "NOT RUN" summary "no Python package torch here"; return; }
    python3 "$HERE/train.py" --seconds 15 >"$WORK/summary.out" 2>&1 &
    job=$!
    if ! wait_for '^training' "$WORK/summary.out" $job; then row FAIL summary "train.py did not start"; return; fi
    pid=$(sed -n 's/^pid //p' "$WORK/summary.out")
    for share in "" "--gpu-time-cpu=5%"; do
        # shellcheck disable=SC2086
        text=$("$NVCAP" time $share --duration 2 -p "$pid" 2>&1)
        status=$?
        printf '\n## nvcap time %s\n%s\n' "$share" "$text" >>"$OUT/time.txt"
        status_row $status "summary ${share:-whole}" "$(printf '%s\n' "$text" | wc -l) lines in time.txt"
    done
    kill $job
    wait $job 2>/dev/null
}

for section in "$@"; do
    case $section in busy | cupti | speed | train | ahead | summary) judge_truths ;; esac
    echo "== $section ($(date -u +%T))"
    "section_$section"
    case $section in busy | cupti | speed | train | ahead | summary) rm -f "$WORK"/{start,attached,observed}.rows ;; esac
done
judge_truths
cat "$OUT/time.txt"
echo "$passed passed, $failed failed, $(grep -c '^OVER' "$SUMMARY") limits known not to be held, $skipped with these and what was skipped or is a note ($(date -u +%T))" | tee -a "$SUMMARY"
if [ -n "${KEEP:-}" ]; then (cd "$WORK" && tar cf - ./*.json ./*.truth ./*.trace ./*.out ./*.pcapng 2>/dev/null | xz -2 -T0 >"$OUT/kept.tar.xz"); fi
rm -rf "$WORK"
[ "$failed" -eq 0 ]
