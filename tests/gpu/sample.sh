#!/bin/bash
# Whether `nvcap sample` tells the kernels inside graphs by their share of the GPU's time: beside a program that measures its kernels alone (sample/graph.cu).
#
#   sample.sh [SECTION...]     sections, default all in this order:
#     learn      without a register programme, with CUPTI's, of a file
#     graph      shares against the kernels' times alone, at two periods; every sample in a kernel, every byte understood
#     speed      the program's replays a second with nvcap and without, in PAIRS (default 5) pairs: a note
#     two        two processes on one GPU, each sampled: none of the other's kernels; two nvcaps at once
#     killed     nvcap killed KILLS (default 30) times at random moments
#     contexts   two contexts of a process, three of two, every process: in turns, each with its own kernels
#     planted    a process with another's client handle in its memory is refused
#     command    a command to its end, its output and status; PyTorch, where it is
#     code       a kernel's code with samples beside its instructions
#     recorded   samples of a recording as those of the live sampling; the time of graph replays divided by them, against the kernels' times alone
#
# Needs: root, nvcc, python3, CUPTI (libcupti.so), and bin/nvcap beside this script or one folder up. Takes five minutes.
# Writes to $OUT, else to ./gpu-results: summary.txt, samples.txt.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- learn graph speed two killed contexts planted command code recorded
if ! nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/graph" "$HERE/sample/graph.cu" 2>"$WORK/nvcc.log"; then
    row "NOT RUN" sample "nvcc does not build graph.cu: $(tail -n 1 "$WORK/nvcc.log")"
    exit 2
fi
if ! nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/contexts" "$HERE/sample/contexts.cu" -lcuda -lnvrtc 2>"$WORK/nvcc.log"; then
    row "NOT RUN" sample "nvcc does not build contexts.cu: $(tail -n 1 "$WORK/nvcc.log")"
    exit 2
fi

for section in "$@"; do
    echo "== $section ($(date -u +%T))"
    while IFS=$'\t' read -r kind result what detail; do
        case $kind in
        ROW) row "$result" "$what" "$detail" ;;
        NOTE) printf '%-8s %-34s %s\n' note "$what" "$detail" | tee -a "$SUMMARY" ;;
        '') ;;
        Traceback*) row FAIL "$section" "sample.py ended: see samples.txt" ;;
        *) printf '%s\n' "$kind $result $what $detail" ;;
        esac
    done < <(python3 "$HERE/sample/sample.py" "$section" "$NVCAP" "$WORK/graph" "$WORK" 2>&1 | tee -a "$OUT/samples.txt")
done
echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
[ "$failed" -eq 0 ]
