#!/bin/bash
# Whether `nvcap --precommit` stops before a doorbell is rung, and what that costs.
#
#   precommit.sh [SECTION...]     sections, default all in this order:
#     proof     a program that waits for each kernel (time/truth.cu sync), attached to with and without --precommit: where GP_GET was at
#               each trap. Before the doorbell the GPU has fetched nothing of the submission; behind it, it may have
#     modes     the launch loop untraced, under the bare watchpoint, trapped, with names, with stacks, with --precommit, observed, in turn
#
# Needs: root, nvcc, gcc, and bin/nvcap beside this script or one folder up. Takes a minute. Writes to $OUT, else to ./gpu-results:
# summary.txt, modes.txt.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
WIDTH=400
[ $# -gt 0 ] || set -- proof modes

# at_traps WAY OPTIONS...: the program traced that way.
at_traps() {
    local way=$1 pid tracer feed run=$WORK/$1
    shift
    mkfifo "$run.fifo"
    "$WORK/truth" -w -o "$run.truth" sync <"$run.fifo" >"$run.out" 2>&1 &
    pid=$!
    exec {feed}>"$run.fifo"
    wait_for '^ready' "$run.out" $pid || { row FAIL "$way" "truth did not start"; return; }
    "$NVCAP" "$@" --how trap --explain-streams --json -e type=submission -o "$run.json" -p $pid >"$run.trace" 2>&1 &
    tracer=$!
    wait_for 'process [0-9]* attached\(:\|$\)' "$run.trace" $tracer || row FAIL "$way" "nvcap did not attach: $(tail -n 1 "$run.trace")"
    echo go >&"$feed"
    wait_for '^done' "$run.out" $pid
    kill -INT $tracer
    wait $tracer
    row "$([ $? = 0 ] && echo ok || echo FAIL)" "$way: complete" "$(grep '^nvcap:' "$run.trace" | tail -n 1)"
    echo end >&"$feed"
    exec {feed}>&-
    wait $pid
    check "$way: GP_GET at the trap" python3 "$HERE/precommit.py" "$way" "$run.json"
}
section_proof() {
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/truth" "$HERE/time/truth.cu" || { row FAIL proof "nvcc did not build truth.cu"; return; }
    at_traps trapped
    at_traps precommit --precommit
}
section_modes() {
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" && gcc -O2 -o "$WORK/bp" "$HERE/bp.c" || { row FAIL modes "loop.cu or bp.c was not built"; return; }
    while IFS= read -r line; do
        case $line in
        ROW$'\t'*) IFS=$'\t' read -r _ result what detail <<<"$line"; row "$result" "$what" "$detail" ;;
        *) printf '%s\n' "$line" | tee -a "$OUT/modes.txt" ;;
        esac
    done < <(timeout -k 5 120 python3 "$HERE/cost/cost.py" ways "$NVCAP" "$WORK/loop" "$WORK/bp" "$WORK" 2>&1)
}
sections "$@"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
