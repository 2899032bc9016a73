#!/bin/bash
# nvcap --stacks on real programs: vadd and loop in CUDA C++, a training in PyTorch, from its start and attached. Needs root, nvcc,
# python3 with torch. Prints rows; everything goes to $OUT.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-$PWD/gpu-results-stacks}
mkdir -p "$OUT"
BIN=${BIN:-$HERE/bin}
[ -x "$BIN/nvcap" ] || BIN=$HERE/../bin
NVCAP=$(readlink -f "$BIN/nvcap")
WORK=$(mktemp -d)
chmod 755 "$WORK"
unset SUDO_UID SUDO_GID
exec > >(tee "$OUT/summary.txt") 2>&1
uname -r; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$NVCAP" --version
for runtime in static shared; do
    nvcc -O2 -g -cudart $runtime -o "$WORK/vadd-$runtime" "$HERE/vadd.cu" || exit 1
done
nvcc -O2 -o "$WORK/loop" "$HERE/loop.cu" || exit 1
strip -o "$WORK/vadd-stripped" "$WORK/vadd-static"

for program in vadd-static vadd-shared vadd-stripped; do
    "$NVCAP" --stacks --json -o "$OUT/$program.jsonl" -- "$WORK/$program" >"$OUT/$program.log" 2>&1
    echo "== $program: exit status $?"
    python3 "$HERE/stacks.py" "$OUT/$program.jsonl"
done
"$NVCAP" --stacks -e 'op=launch&&kind=user' -o "$OUT/vadd.txt" -- "$WORK/vadd-static" >/dev/null 2>&1
grep -A 12 ' launch ' "$OUT/vadd.txt" | head -14 | cut -c1-180

echo "== train.py from its start"
"$NVCAP" --stacks --json -o "$OUT/train.jsonl" -- python3 "$HERE/train.py" --steps 60 --warm 10 >"$OUT/train.log" 2>&1
echo "exit status $?"
python3 "$HERE/stacks.py" "$OUT/train.jsonl" --python train.py
echo "== train.py attached"
python3 "$HERE/train.py" --seconds 40 >"$OUT/attached.log" 2>&1 &
job=$!
for _ in $(seq 400); do grep -q '^training' "$OUT/attached.log" && break; sleep 0.1; done
pid=$(sed -n 's/^pid \([0-9]*\).*/\1/p' "$OUT/attached.log")
"$NVCAP" --stacks --json -o "$OUT/attached.jsonl" --duration 3 -p "$pid" 2>&1 | tail -n 3
python3 "$HERE/stacks.py" "$OUT/attached.jsonl" --python train.py
for by in submissions launches bytes; do
    "$NVCAP" stacks --by $by --duration 2 -o "$OUT/train-$by.folded" -p "$pid" 2>&1 | tail -n 1
    sort -t' ' -k2 "$OUT/train-$by.folded" | awk '{n=$NF; t+=n} END {print "   by '$by': " NR " stacks, sum " t}'
done
kill -INT $job; wait $job 2>/dev/null
tail -n 2 "$OUT/attached.log"

echo "== cost: ns a launch, three passes each, in turn"
for round in 1 2 3; do
    echo "untraced:   $("$WORK/loop" 2>&1 | tail -n 1)"
    echo "traced:     $("$NVCAP" -q -o /dev/null -- "$WORK/loop" 2>/dev/null | tail -n 1)"
    echo "stacks 4K:  $("$NVCAP" -q --stacks --stack-size 4K -o "$OUT/cost4.txt" -- "$WORK/loop" 2>/dev/null | tail -n 1)"
    echo "stacks 16K: $("$NVCAP" -q --stacks -o "$OUT/cost16.txt" -- "$WORK/loop" 2>/dev/null | tail -n 1)"
done
grep -h stack "$OUT/cost4.txt" "$OUT/cost16.txt"
# What is read first, and not the gigabytes.
gzip -f "$OUT"/*.jsonl
