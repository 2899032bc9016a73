#!/bin/bash
# Whether `nvcap ranks` tells who holds up whom in a job of several ranks over NCCL (ranks/job.py), and whether such a job is traced whole.
#
#   [RANKS=N] ranks.sh [SECTION...]     N ranks on N GPUs, by default two; sections, default all in this order:
#     late       nobody late, and rank 1 late in three ways: the verdict, of a recording of the two ranks
#     live       the ranks, live
#     absent     rank 1 does not come to a collective for some seconds: who is awaited, live and by dumps of the ranks
#     ends       rank 1 crashes in a kernel of PyTorch's, or is killed: recorded by the trap from its start, attached and observed; the fault is told of it
#                alone, with its kernel, the traces end by themselves, and `ranks` tells who has not come
#     attached   attached by the trap and observed (TIMES=2): complete
#     start      from its start, by the trap: complete
#     recorded   every process of the host recorded with the GPU's times: complete
#     host       beside the job: share, counts, serve and top; each rank's GPU and load are in what they say
#     truth      arrivals and waiting sums against stamps of the GPUs' own clocks (ranks/stamps.cu, ranks/truth.py), recorded observed and by the trap
#     shapes     fully sharded, tensor parallel and a pipeline of two stages (of two ranks): complete, attached by the trap, observed, and recorded with times; no call unmatched
#     counts     each rank's kernels from its start against CUPTI's records of the same run
#     speed      steps a second untraced, observed, by the trap, in turns
#
# Needs: root, as many GPUs as ranks, nvcc, python3 with PyTorch and NCCL, and bin/nvcap beside this script or one folder up. Takes seven minutes.
# Writes to $OUT, else to ./gpu-results: summary.txt, ranks.txt; with KEEP=1 also what was judged, kept.tar.xz.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- late live absent ends attached start recorded host truth shapes counts speed
RANKS=${RANKS:-2}
# The launch of NCCL's multicast over NVLink is refused on some virtual machines.
export NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=1
LOG=$OUT/ranks.txt
WIDTH=500
if ! python3 -c 'import sys, torch; sys.exit(torch.cuda.device_count() < int(sys.argv[1]))' "$RANKS" 2>/dev/null; then
    row "NOT RUN" ranks "there are fewer than $RANKS GPUs, or no PyTorch"
    exit 2
fi

# launch ARGUMENT...: the job, as torch's launcher starts it.
launch() { python3 -m torch.distributed.run --nproc-per-node "$RANKS" --master-port $((20000 + RANDOM % 9000)) "$HERE/ranks/job.py" "$@"; }
# job SECONDS HOW: begins a job; once all ranks are ready, their processes are in PIDS (separated by commas) and in NAMED (--rank PID=RANK).
job() {
    rm -f "$WORK/job.txt"
    launch "$@" >"$WORK/job.txt" 2>&1 &
    JOB=$!
    local i ready
    for _ in $(seq 1 300); do
        mapfile -t ready < <(grep -o 'rank [0-9]* is process [0-9]*' "$WORK/job.txt" | sort -t ' ' -k 2n | grep -o '[0-9]*$')
        if [ ${#ready[@]} = "$RANKS" ]; then
            PIDS=$(IFS=,; echo "${ready[*]}")
            NAMED=()
            for i in "${!ready[@]}"; do NAMED+=(--rank "${ready[i]}=$i"); done
            return
        fi
        sleep 0.2
    done
    row FAIL job "the job did not begin: $(tail -n 3 "$WORK/job.txt" | cut -c1-300)"
    kill "$JOB" 2>/dev/null
    wait "$JOB"
    return 1
}
# keep NAME FILE...: for kept.tar.xz.
keep() {
    [ -n "${KEEP:-}" ] || return 0
    mkdir -p "$WORK/kept/$1"
    cp "${@:2}" "$WORK/kept/$1" 2>/dev/null
}
# made: waits for the job, whose ranks say how many steps they made.
made() {
    wait "$JOB"
    row note "$1: the job" "$(grep -o 'made [0-9]* steps' "$WORK/job.txt" | sort -u | tr '\n' ' ')"
}
# verdict TITLE PATTERN COMMAND...: the first line of what the command prints fits the pattern.
verdict() {
    local title=$1 wanted=$2
    shift 2
    "$@" >"$WORK/said.txt" 2>"$WORK/said.err"
    { echo "== $title"; cat "$WORK/said.txt" "$WORK/said.err"; } >>"$LOG"
    local said
    said=$(head -n 1 "$WORK/said.txt")
    if [[ $said =~ $wanted ]]; then row ok "$title" "${said:0:200}"; else row FAIL "$title" "${said:0:200}"; fi
}
# whole TITLE COMMAND...: the command's ledger says `complete`.
whole() {
    local title=$1
    shift
    "$@" >"$WORK/said.txt" 2>&1
    local said
    said=$(grep -E '^(in)?complete:' -i "$WORK/said.txt" | tail -n 1)
    { echo "== $title"; tail -n 12 "$WORK/said.txt"; } >>"$LOG"
    case $said in
    complete:*) row ok "$title" "${said:0:160}" ;;
    *) row FAIL "$title" "${said:-$(tail -n 1 "$WORK/said.txt" | cut -c1-300)}" ;;
    esac
}

section_late() {
    local how wanted
    for how in none kernels host slow; do
        job 4 "$how" || continue
        rm -f "$WORK/job.pcapng"
        sleep 0.5
        "$NVCAP" record -p "$PIDS" --how observe --gpu-time --duration 1 -o "$WORK/job.pcapng" >/dev/null 2>"$WORK/record.err"
        row note "late: $how: the recording" "$(tail -n 1 "$WORK/record.err" | cut -c1-160)"
        wanted='^rank 1 '
        [ "$how" = none ] && wanted='^(no rank holds up|rank )'
        verdict "late: $how" "$wanted" "$NVCAP" ranks "$WORK/job.pcapng" "${NAMED[@]}"
        made "late: $how"
    done
}
section_live() {
    job 6 host || return
    sleep 0.5
    verdict "live: host" '^rank 1 comes last' "$NVCAP" ranks -p "$PIDS" --duration 2
    made live
}
section_absent() {
    job 4 absent || return
    # It stays away from the first second on.
    sleep 2
    verdict "absent: live" '^rank 1 has not come' "$NVCAP" ranks -p "$PIDS" --duration 2
    local pid dumps=()
    for pid in ${PIDS//,/ }; do
        "$NVCAP" dump -p "$pid" --json -o "$WORK/dump.$pid" --force 2>>"$LOG"
        dumps+=("$WORK/dump.$pid")
    done
    verdict "absent: dumps" . "$NVCAP" dump --merge "${dumps[@]}"
    check "absent: dumps name it" grep 'has not come' "$WORK/said.txt"
    made absent
}
# told_end HOW TEXT: what is said of the end of rank 1, and of no other.
told_end() {
    local title=$1 text=$2 how=$3
    { echo "== $title"; tail -n 30 "$text"; } >>"$LOG"
    case $how in
    crash) check "$title: the fault and its kernel" grep -E '^complete, and the GPU faulted: Xid [0-9]+ in .*index' "$text" ;;
    *) check "$title: complete" grep -E '^complete: ' "$text" ;;
    esac
}
section_ends() {
    local how way observer
    for how in crash killed; do
        timeout 100 "$NVCAP" record --how trap -o "$WORK/$how.pcapng" --force -- python3 -m torch.distributed.run --nproc-per-node "$RANKS" \
            --master-port $((20000 + RANDOM % 9000)) "$HERE/ranks/job.py" 8 $how >"$WORK/said.txt" 2>&1
        row note "ends: $how, from the start: status" $?
        told_end "ends: $how, from the start" "$WORK/said.txt" $how
        "$NVCAP" ranks "$WORK/$how.pcapng" >"$WORK/said.txt" 2>&1
        row note "ends: $how: ranks says" "$(head -n 2 "$WORK/said.txt" | tr '\n' ' ' | cut -c1-300)"
        { echo "== ends: $how: ranks"; cat "$WORK/said.txt"; } >>"$LOG"
        for way in trap observe; do
            job 8 $how || continue
            timeout 60 "$NVCAP" -p "$PIDS" --how $way -q >"$WORK/said.txt" 2>&1 &
            observer=$!
            timeout 60 "$NVCAP" ranks -p "$PIDS" >"$WORK/live.txt" 2>&1 &
            local live=$!
            wait "$JOB"
            # Whoever is left is ended by the launcher: all traces end then.
            wait $observer
            row note "ends: $how, attached: $way: status" $?
            wait $live
            told_end "ends: $how, attached: $way" "$WORK/said.txt" $how
            row note "ends: $how: ranks, live" "$(head -n 2 "$WORK/live.txt" | tr '\n' ' ' | cut -c1-300)"
            { echo "== ends: $how: ranks, live"; cat "$WORK/live.txt"; } >>"$LOG"
        done
    done
}
section_recorded() {
    local how
    job 12 none || return
    for how in observe trap; do
        whole "recorded: $how" timeout 60 "$NVCAP" record -a --gpu-time --how $how --duration 1.5 -o "$WORK/recorded.pcapng" --force
        "$NVCAP" ranks "$WORK/recorded.pcapng" "${NAMED[@]}" --json >"$WORK/ranks.json" 2>>"$LOG"
        check "recorded: $how, matched" python3 "$HERE/ranks/matched.py" "$WORK/ranks.json"
    done
    made recorded
}
section_host() {
    local port=$((20000 + RANDOM % 9000)) pid
    job 20 none || return
    "$NVCAP" serve --by-process --listen 127.0.0.1:$port >"$WORK/serve.txt" 2>&1 &
    local serve=$!
    "$NVCAP" share -a --duration 2 --json >"$WORK/share.json" 2>>"$LOG"
    status_row $? "host: share" "$(python3 -c 'import json, sys; print([(g["gpu"], len(g["processes"])) for g in map(json.loads, open(sys.argv[1]))])' "$WORK/share.json" 2>&1 | tail -n 1)"
    "$NVCAP" counts -a --times 3 >"$WORK/counts.txt" 2>>"$LOG"
    status_row $? "host: counts" "$(tail -n 1 "$WORK/counts.txt" | cut -c1-160)"
    timeout -s INT 4 script -qec "stty cols 200 rows 60; '$NVCAP' top" "$WORK/top.txt" >/dev/null 2>&1
    curl -s http://127.0.0.1:$port/metrics >"$WORK/metrics.txt"
    for pid in ${PIDS//,/ }; do
        check "host: process $pid in counts" grep -c "$pid" "$WORK/counts.txt"
        check "host: process $pid in serve" grep -m 1 "^nvcap_submissions_total.*pid=.$pid." "$WORK/metrics.txt"
        check "host: process $pid in top" grep -ac "$pid" "$WORK/top.txt"
    done
    row note "host: serve's processor time" "$(ps -o cputimes=,etimes= -p $serve) (s, of s)"
    kill -INT $serve
    wait $serve
    { echo '== host'; cat "$WORK/share.json" "$WORK/counts.txt"; } >>"$LOG"
    made host
}
section_attached() {
    local how
    job $((6 + 5 * ${TIMES:-2})) none || return
    for how in trap observe; do
        for _ in $(seq 1 "${TIMES:-2}"); do
            whole "attached: $how" timeout 30 "$NVCAP" -p "$PIDS" --how $how -q --duration 1.5
        done
    done
    made attached
}
section_start() {
    rm -f "$WORK/start.pcapng"
    whole "start: trap" timeout 100 "$NVCAP" record --how trap -o "$WORK/start.pcapng" -- \
        python3 -m torch.distributed.run --nproc-per-node "$RANKS" --master-port $((20000 + RANDOM % 9000)) "$HERE/ranks/job.py" 3 none
}
section_truth() {
    nvcc -O2 -arch=sm_"${ARCH:-90}" -shared -Xcompiler -fPIC -o "$WORK/stamps.so" "$HERE/ranks/stamps.cu" || { row FAIL truth "stamps.cu was not built"; return; }
    export STAMPS=$WORK/stamps.so TRUTH=$WORK/truth
    local late how
    for late in none kernels host slow; do
        for how in observe trap; do
            rm -f "$WORK"/truth.*
            job 5 $late || continue
            sleep 0.5
            timeout -k 5 -s INT 30 "$NVCAP" record -p "$PIDS" --how $how --gpu-time --duration 1.5 -o "$WORK/recorded.pcapng" --force >/dev/null 2>"$WORK/record.err"
            row note "truth: $late, $how: the recording" "$(tail -n 1 "$WORK/record.err" | cut -c1-160)"
            made "truth: $late, $how"
            "$NVCAP" ranks "$WORK/recorded.pcapng" "${NAMED[@]}" --arrivals --json >"$WORK/ranks.json" 2>>"$LOG"
            keep "$late-$how" "$WORK/ranks.json" "$WORK"/truth.* "$WORK/record.err"
            check "truth: $late, $how" python3 "$HERE/ranks/truth.py" "$WORK/ranks.json" "$WORK/truth"
            { echo "== truth: $late, $how"; "$NVCAP" ranks "$WORK/recorded.pcapng" "${NAMED[@]}"; } >>"$LOG" 2>&1
        done
    done
    unset STAMPS TRUTH
}
section_shapes() {
    local shape how
    for shape in ${SHAPES:-fsdp tensor pipeline}; do
        job 14 kernels $shape || continue
        for how in trap observe; do whole "shapes: $shape, $how" timeout 30 "$NVCAP" -p "$PIDS" --how $how -q --duration 1; done
        for how in observe trap; do
            whole "shapes: $shape, recorded, $how" timeout 30 "$NVCAP" record -a --gpu-time --how $how --duration 1 -o "$WORK/$shape.pcapng" --force
            "$NVCAP" ranks "$WORK/$shape.pcapng" "${NAMED[@]}" --json >"$WORK/ranks.json" 2>>"$LOG"
            keep "$shape-$how" "$WORK/ranks.json"
            check "shapes: $shape, $how, matched" python3 "$HERE/ranks/matched.py" "$WORK/ranks.json"
            { echo "== shapes: $shape, $how"; "$NVCAP" ranks "$WORK/$shape.pcapng" "${NAMED[@]}"; } >>"$LOG" 2>&1
        done
        made "shapes: $shape"
    done
}
section_counts() {
    build_cupti_log "$WORK/cupti_log.so" || { row FAIL counts "CUPTI's log was not built"; return; }
    rm -f "$WORK"/cupti.*
    whole "counts: from the start" timeout 100 "$NVCAP" record --how trap -o "$WORK/counts.pcapng" --force -- \
        env CUDA_INJECTION64_PATH="$WORK/cupti_log.so" CUPTI_LOG="$WORK/cupti" \
        python3 -m torch.distributed.run --nproc-per-node "$RANKS" --master-port $((20000 + RANDOM % 9000)) "$HERE/ranks/job.py" 100x none
    local log pid
    for log in "$WORK"/cupti.*; do
        pid=${log##*.}
        grep -q '"type":"kernel"' "$log" || continue
        "$NVCAP" decode "$WORK/counts.pcapng" --json -e "pid=$pid&&op=launch&&kind=user&&part_of=none" >"$WORK/counts.$pid" 2>>"$LOG"
        keep counts "$log" "$WORK/counts.$pid"
        check "counts: a rank" python3 "$HERE/ranks/same.py" "$WORK/counts.$pid" "$log"
    done
}
section_speed() {
    local turn how
    for turn in $(seq 1 "${TURNS:-3}"); do
        for how in untraced observe trap; do
            job 5 none || continue
            # It ends with the processes.
            [ $how = untraced ] || timeout -k 5 -s INT 30 "$NVCAP" -p "$PIDS" --how $how -q >"$WORK/said.txt" 2>&1 &
            wait
            row note "speed: turn $turn, $how" "$(grep -o 'rank 0 made .*' "$WORK/job.txt" | tr '\n' ' ')$([ $how = untraced ] || grep -iE '^(in)?complete:' "$WORK/said.txt" | tail -n 1 | cut -c1-120)"
        done
    done
}

for section in "$@"; do
    echo "== $section ($(date -u +%T))"
    "section_$section"
    # Behind each: a limit of time may end the script.
    [ ! -d "$WORK/kept" ] || tar cf - -C "$WORK/kept" . | xz -2 -T0 >"$OUT/kept.tar.xz"
done
echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
