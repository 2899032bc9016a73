#!/bin/bash
# What tracing costs, with and without names and stacks, as ratios of one run.
#
#   cost.sh
#
# - two processes with 2 GB of private memory (names.py), one traced and one observed: the time from a launch to its name;
# - a launch loop (loop.cu) at its full speed: untraced, under the bare watchpoint (bp.c: the floor), under the trap without names, with
#   names, with stacks, and observed, one after the other in rounds, each right after an untraced pass;
# - a minute of PyTorch training (workload.py's) under the trap: nvcap's processor time for names;
# - the same training in rounds as the loop.
#
# The limits are in cost/cost.py. Needs: root, nvcc, gcc, python3 with torch, and bin/nvcap beside this script or one folder up. Takes
# about three minutes. Writes to $OUT, else to ./gpu-results: summary.txt, cost.txt with the tables, logs with KEEP=1.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
WIDTH=400

echo "== building ($(date -u +%T))"
{ date -u; uname -sr; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$NVCAP" --version; } | tee "$OUT/machine.txt"
nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/loop" "$HERE/loop.cu" || { echo "nvcc did not build loop.cu: its errors are above" >&2; exit 2; }
gcc -O2 -o "$WORK/bp" "$HERE/bp.c" || { echo "gcc did not build bp.c: its errors are above" >&2; exit 2; }
python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || { row "NOT RUN" cost "no Python package torch here"; exit 2; }

echo "== measuring ($(date -u +%T))"
# Rows as they come: what is stopped early has said what it saw.
while IFS= read -r line; do
    case $line in
    ROW$'\t'*) IFS=$'\t' read -r _ result what detail <<<"$line"; row "$result" "$what" "$detail" ;;
    *) printf '%s\n' "$line" | tee -a "$OUT/cost.txt" ;;
    esac
done < <(timeout -k 5 240 python3 "$HERE/cost/cost.py" run "$NVCAP" "$WORK/loop" "$WORK/bp" "$WORK" 2>&1)
echo "$passed passed, $failed failed, $skipped noted ($(date -u +%T))" | tee -a "$SUMMARY"
if [ -n "${KEEP:-}" ]; then (cd "$WORK" && tar cf - ./*.log | xz -2 -T0 >"$OUT/kept.tar.xz"); fi
rm -rf "$WORK"
# What measures nothing proves nothing.
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
