#!/bin/bash
# All that is said of machines with many GPUs, in one call: one process on every GPU, then a job of a rank for each GPU.
#
#   [GPUS=N] eight.sh [SECTION...]     on N GPUs, by default eight; sections, default all in this order:
#     one        one process on every GPU, from its start: each operation on its GPU (two_gpus.cu)
#     attached   one process on every GPU, attached by the trap with four debug registers and with one, and observed (many_gpus.py)
#     ranks      ranks.sh with N ranks: live, absent, attached, start, recorded, host, late, counts, speed
#
# Needs: root, N GPUs, nvcc, gcc, python3 with PyTorch and NCCL, and bin/nvcap beside this script or one folder up. Takes nine minutes.
# With fewer GPUs it runs nothing, says so and ends with 2; GPUS=2 tries it on two.
# Writes to $OUT, else to ./gpu-results: summary.txt, attached.txt, ranks/.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
[ $# -gt 0 ] || set -- one attached ranks
GPUS=${GPUS:-8}
WIDTH=500
there=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .)
if [ "$there" -lt "$GPUS" ]; then
    row "NOT RUN" eight "$there GPUs here, $GPUS wanted"
    exit 2
fi

section_one() {
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/two_gpus" "$HERE/two_gpus.cu" || { row FAIL one "two_gpus.cu was not built"; return; }
    timeout 100 "$NVCAP" --json -e type=operation -o "$WORK/one.json" -- "$WORK/two_gpus" >"$WORK/one.out" 2>&1
    status_row $? "one: from its start" "$(grep -E '^(in)?complete:' -i "$WORK/one.out" | tail -n 1 | cut -c1-200)"
    check "one: right results" grep 'wrong 0$' "$WORK/one.out"
    timeout 100 "$NVCAP" channels --json -o "$WORK/channels.json" -- "$WORK/two_gpus" >/dev/null 2>&1
    check "one: each operation on its GPU" python3 "$HERE/check.py" two "$WORK/one.json" "$WORK/channels.json" "$WORK/one.out"
}
section_attached() {
    gcc -O2 -o "$WORK/bp" "$HERE/bp.c" || { row FAIL attached "bp.c was not built"; return; }
    timeout 240 python3 "$HERE/many_gpus.py" "$NVCAP" "$WORK/bp" >"$OUT/attached.txt" 2>&1
    local status=$?
    grep -E '^(ok|FAILED)' "$OUT/attached.txt"
    status_row $status "attached: all ways" "$(grep -c '^ok' "$OUT/attached.txt") of 4"
}
section_ranks() {
    mkdir -p "$OUT/ranks"
    RANKS=$GPUS OUT=$OUT/ranks bash "$HERE/ranks.sh" live absent attached start recorded host late counts speed
    status_row $? "ranks: $GPUS ranks" "$(tail -n 1 "$OUT/ranks/summary.txt")"
}
sections "$@"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
