#!/bin/bash
# Whether `nvcap share` tells who had the GPU: beside programs that measure their own working time on the GPU (share/work.cu).
#
#   share.sh [SECTION...]     sections, default all in this order:
#     working    three programs, two of which always work: their working time, with the saving of their state, is nvcap's; the sum of all
#     ends       one program that ends meanwhile, one that has a context and does nothing
#     gone       two programs that end, and nobody after them
#     alone      one program alone: the driver tells of no switch
#     eight      eight programs, their speed with and without nvcap in PAIRS (default 10) pairs, and nvcap's processor time
#     killed_program   one of three programs is killed
#     often      many switches: nothing is lost, nvcap's processor time; nvcap stopped for 12 s: its losses are told
#     recorded   three programs, of one a recording with their slices: shares as live, kernels within slices of their own program, by both clocks
#     preempted  kernels longer than a turn: what of their time was another's, against the gaps that they saw
#     killed     nvcap killed, then two at once; Ctrl-C; not root
#
# Needs: root, nvcc, python3, and bin/nvcap beside this script or one folder up. Takes five minutes (PAIRS=3 SECONDS_OF=3: two).
# Writes to $OUT, else to ./gpu-results: summary.txt, shares.txt.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- working ends killed_program gone alone eight often recorded preempted killed
if ! nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/work" "$HERE/share/work.cu" 2>"$WORK/nvcc.log"; then
    row "NOT RUN" share "nvcc does not build work.cu: $(tail -n 1 "$WORK/nvcc.log")"
    exit 2
fi

for section in "$@"; do
    echo "== $section ($(date -u +%T))"
    while IFS=$'\t' read -r kind result what detail; do
        case $kind in
        ROW) row "$result" "$what" "$detail" ;;
        NOTE) printf '%-8s %-34s %s\n' note "$what" "$detail" | tee -a "$SUMMARY" ;;
        '') ;;
        Traceback*) row FAIL "$section" "share.py ended: see shares.txt" ;;
        *) printf '%s\n' "$kind $result $what $detail" ;;
        esac
    done < <(python3 "$HERE/share/share.py" "$section" "$NVCAP" "$WORK/work" "$WORK" 2>&1 | tee -a "$OUT/shares.txt")
done
echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
[ "$failed" -eq 0 ]
