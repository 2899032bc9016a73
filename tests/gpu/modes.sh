#!/bin/bash
# What fewer captured doorbells save (`nvcap --batch`, `--count`, `--duty`), beside the bare watchpoint and CUPTI; and whether they are true.
#
#   modes.sh [SECTION...]     sections, default all in this order:
#     cost     a launch loop untraced, under CUPTI, under the watchpoint without BPF, and in each mode, in turn (ROUNDS=9)
#     truth    a program that says how much it launched: --batch has every entry, --count each doorbell, --duty the number of entries
#     long     ten million launches (LONG) with nothing missing, and nvcap's memory meanwhile: not among the default
#
# Needs: root, nvcc with CUPTI's header, gcc, python3, and bin/nvcap beside this script or one folder up. Takes two minutes, `long` two more. Writes to
# $OUT, else to ./gpu-results: summary.txt, modes.txt.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
WIDTH=400
[ $# -gt 0 ] || set -- cost truth

section_cost() {
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" && gcc -O2 -o "$WORK/bp" "$HERE/bp.c" || { row FAIL cost "loop.cu or bp.c was not built"; return; }
    export CUPTI_LIBRARY=
    if build_cupti_log "$WORK/cupti_log.so"; then CUPTI_LIBRARY=$WORK/cupti_log.so; fi
    while IFS= read -r line; do
        case $line in
        ROW$'\t'*) IFS=$'\t' read -r _ result what detail <<<"$line"; row "$result" "$what" "$detail" ;;
        *) printf '%s\n' "$line" | tee -a "$OUT/modes.txt" ;;
        esac
    done < <(timeout -k 5 240 python3 "$HERE/cost/cost.py" modes "$NVCAP" "$WORK/loop" "$WORK/bp" "$WORK" 2>&1)
}
# counted WAY OPTIONS...: the launch loop from its start, traced that way; its ledger against the number of launches.
counted() {
    local way=$1 launches=200000
    shift
    "$NVCAP" "$@" -q --json -o "$WORK/$way.json" -- "$WORK/loop" $launches 1 >"$WORK/$way.out" 2>"$WORK/$way.err"
    check "$way: status 0" [ $? = 0 ]
    row note "$way: what nvcap says" "$(tail -n 1 "$WORK/$way.err")"
    # The loop warms up with 1,000 launches.
    check "$way: launches" python3 "$HERE/cost/ledger.py" "$way" $((launches + 1000)) "$WORK/$way.json"
}
section_truth() {
    [ -x "$WORK/loop" ] || nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" || { row FAIL truth "loop.cu was not built"; return; }
    counted strict
    counted batch --batch 8
    counted count --count
    counted duty --duty 10%
}
section_long() {
    local launches=${LONG:-10000000} tracer pid rss most=0 first=
    [ -x "$WORK/loop" ] || nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" || { row FAIL long "loop.cu was not built"; return; }
    "$NVCAP" -q --json -o "$WORK/long.json" -- "$WORK/loop" "$launches" 1 >"$WORK/long.out" 2>"$WORK/long.err" &
    tracer=$!
    sleep 5
    while rss=$(awk '/^VmRSS/ {print $2}' "/proc/$tracer/status" 2>/dev/null) && [ -n "$rss" ]; do
        first=${first:-$rss}
        [ "$rss" -le "$most" ] || most=$rss
        sleep 1
    done
    wait $tracer
    check "long: status 0" [ $? = 0 ]
    row note "long: what nvcap says" "$(tail -n 1 "$WORK/long.err")"
    row note "long: the program" "$(tail -n 1 "$WORK/long.out")"
    check "long: launches" python3 "$HERE/cost/ledger.py" strict $((launches + 1000)) "$WORK/long.json"
    row "$([ "$most" -le $((first + 8192)) ] && echo ok || echo FAIL)" "long: memory" "$first kB after 5 s, $most kB at most (limit: 8 MiB more)"
}
sections "$@"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
