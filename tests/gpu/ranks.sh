#!/bin/bash
# Whether `nvcap ranks` tells who holds up whom in a job of two ranks over NCCL (ranks/job.py), and whether such a job is traced whole.
#
#   ranks.sh [SECTION...]     sections, default all in this order:
#     late       nobody late, and rank 1 late in three ways: the verdict, of a recording of the two ranks
#     live       the two ranks, live
#     attached   attached by the trap and observed (TIMES=2): complete
#     start      from its start, by the trap: complete
#
# Needs: root, two GPUs, python3 with PyTorch and NCCL, and bin/nvcap beside this script or one folder up. Takes two minutes.
# Writes to $OUT, else to ./gpu-results: summary.txt, ranks.txt.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- late live attached start
# The launch of NCCL's multicast over NVLink is refused on some virtual machines.
export NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=1
LOG=$OUT/ranks.txt
if ! python3 -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)' 2>/dev/null; then
    row "NOT RUN" ranks "there are not two GPUs, or no PyTorch"
    exit 2
fi

# job SECONDS HOW: begins a job; its ranks' processes are in PIDS once both are ready.
job() {
    rm -f "$WORK/job.txt"
    timeout -k 5 120 python3 -m torch.distributed.run --nproc-per-node 2 --master-port $((20000 + RANDOM % 9000)) "$HERE/ranks/job.py" "$@" >"$WORK/job.txt" 2>&1 &
    JOB=$!
    for _ in $(seq 1 300); do
        mapfile -t PIDS < <(grep -o 'rank [01] is process [0-9]*' "$WORK/job.txt" | sort | grep -o '[0-9]*$')
        [ ${#PIDS[@]} = 2 ] && return
        sleep 0.2
    done
    row FAIL job "the job did not begin: $(tail -n 3 "$WORK/job.txt")"
    exit 1
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
# whole TITLE COMMAND...: what the command says last is `complete`.
whole() {
    local title=$1
    shift
    "$@" >"$WORK/said.txt" 2>&1
    local said
    said=$(tail -n 1 "$WORK/said.txt")
    { echo "== $title"; tail -n 12 "$WORK/said.txt"; } >>"$LOG"
    case $said in
    *complete:*) row ok "$title" "${said:0:160}" ;;
    *) row FAIL "$title" "${said:0:160}" ;;
    esac
}

section_late() {
    local how wanted
    for how in none kernels host slow; do
        job 4 "$how"
        rm -f "$WORK/job.pcapng"
        sleep 0.5
        "$NVCAP" record -p "${PIDS[0]},${PIDS[1]}" --how observe --gpu-time --duration 1 -o "$WORK/job.pcapng" >/dev/null 2>"$WORK/record.err"
        row note "late: $how: the recording" "$(tail -n 1 "$WORK/record.err" | cut -c1-160)"
        wanted='^rank 1 '
        [ "$how" = none ] && wanted='^(no rank holds up|rank )'
        verdict "late: $how" "$wanted" "$NVCAP" ranks "$WORK/job.pcapng" --rank "${PIDS[0]}=0" --rank "${PIDS[1]}=1"
        made "late: $how"
    done
}
section_live() {
    job 6 host
    sleep 0.5
    verdict "live: host" '^rank 1 comes last' "$NVCAP" ranks -p "${PIDS[0]},${PIDS[1]}" --duration 2
    made live
}
section_attached() {
    local how
    job $((6 + 5 * ${TIMES:-2})) none
    for how in trap observe; do
        for _ in $(seq 1 "${TIMES:-2}"); do
            whole "attached: $how" timeout 30 "$NVCAP" -p "${PIDS[0]},${PIDS[1]}" --how $how -q --duration 1.5
        done
    done
    made attached
}
section_start() {
    rm -f "$WORK/start.pcapng"
    whole "start: trap" timeout 100 "$NVCAP" record --how trap -o "$WORK/start.pcapng" -- \
        python3 -m torch.distributed.run --nproc-per-node 2 --master-port $((20000 + RANDOM % 9000)) "$HERE/ranks/job.py" 3 none
}

for section in "$@"; do
    echo "== $section ($(date -u +%T))"
    "section_$section"
done
echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
[ "$failed" -eq 0 ]
