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
    "$NVCAP" --stacks --json --force -o "$OUT/$program.jsonl" -- "$WORK/$program" >"$OUT/$program.log" 2>&1
    echo "== $program: exit status $?"
    python3 "$HERE/stacks.py" "$OUT/$program.jsonl"
done
"$NVCAP" --stacks -e 'op=launch&&kind=user' --force -o "$OUT/vadd.txt" -- "$WORK/vadd-static" >/dev/null 2>&1
grep -A 12 ' launch ' "$OUT/vadd.txt" | head -14 | cut -c1-180

echo "== train.py from its start"
"$NVCAP" --stacks --json --force -o "$OUT/train.jsonl" -- python3 "$HERE/train.py" --steps 60 --warm 10 >"$OUT/train.log" 2>&1
echo "exit status $?"
python3 "$HERE/stacks.py" "$OUT/train.jsonl" --python train.py
echo "== train.py attached"
python3 "$HERE/train.py" --seconds 40 >"$OUT/attached.log" 2>&1 &
job=$!
for _ in $(seq 400); do grep -q '^training' "$OUT/attached.log" && break; sleep 0.1; done
pid=$(sed -n 's/^pid \([0-9]*\).*/\1/p' "$OUT/attached.log")
"$NVCAP" --stacks --json --force -o "$OUT/attached.jsonl" --duration 3 -p "$pid" 2>&1 | tail -n 3
python3 "$HERE/stacks.py" "$OUT/attached.jsonl" --python train.py
for by in submissions launches bytes; do
    "$NVCAP" stacks --by $by --duration 2 --force -o "$OUT/train-$by.folded" -p "$pid" 2>&1 | tail -n 1
    sort -t' ' -k2 "$OUT/train-$by.folded" | awk '{n=$NF; t+=n} END {print "   by '$by': " NR " stacks, sum " t}'
done
echo "== samples and filters, of the training"
"$NVCAP" stacks --leaf --by launches --stacks=10 --duration 2 --force -o "$OUT/train-leaf.folded" -p "$pid" 2>&1 | tail -n 2
sed 's/.*;//' "$OUT/train-leaf.folded" | awk '{n=$NF; $NF=""; t[$0]+=n} END {for (k in t) print t[k], k}' | sort -rn | head -8 | cut -c1-140
"$NVCAP" --stacks=10 --json -e 'api~cu*Launch*' --force -o "$OUT/filtered.jsonl" --duration 1 -p "$pid" 2>&1 | tail -n 1
python3 - "$OUT/filtered.jsonl" <<'END'
import collections, json, sys
kept = [json.loads(line) for line in open(sys.argv[1])]
print("   filtered by api:", dict(collections.Counter(o.get("api") for o in kept if o["type"] == "operation")))
print("   ledger:", [o["stacks"] for o in kept if o["type"] == "ledger"])
END
echo "== code by the address of a program: 20 programs of the training, each by name and by address"
python3 - "$NVCAP" "$pid" "$OUT/attached.jsonl" <<'END'
import json, subprocess, sys
nvcap, pid, trace = sys.argv[1:]
programs = {}
for line in open(trace):
    if '"op":"launch"' in line:
        o = json.loads(line)
        if o.get("kernel_mangled") and o.get("kernel_certain") and o.get("program"):
            programs.setdefault(o["program"], o["kernel_mangled"])
right = wrong = none = sure = 0
for program, name in list(programs.items())[:20]:
    r = subprocess.run([nvcap, "code", hex(program), "-p", pid, "--json"], capture_output=True, text=True)
    if r.returncode:
        none += 1
        print("   none:", name[:80], r.stderr.strip().splitlines()[-1][:120])
        continue
    shown = json.loads(r.stdout)
    sure += shown["kernel_certain"]
    right, wrong = right + (shown["kernel_mangled"] == name), wrong + (shown["kernel_mangled"] != name)
print(f"   {right} right, {wrong} wrong, {none} without a name; {sure} certain")
END
kill -INT $job; wait $job 2>/dev/null
tail -n 2 "$OUT/attached.log"

echo "== names of an observed program that ends at once: ten runs"
for run in $(seq 10); do
    "$NVCAP" --how observe --json -e 'op=launch && kind=user' --force -o "$WORK/short.jsonl" -- "$WORK/vadd-static" >/dev/null 2>&1
    grep '"op":"launch"' "$WORK/short.jsonl" | sed 's/.*"kernel":\("[^"]*"\|null\).*/   \1/'
done | sort | uniq -c

echo "== cost: ns a launch, three passes each, in turn"
for round in 1 2 3; do
    echo "untraced:   $("$WORK/loop" 2>&1 | tail -n 1)"
    echo "traced:     $("$NVCAP" -q -o /dev/null -- "$WORK/loop" 2>/dev/null | tail -n 1)"
    echo "stacks 4K:  $("$NVCAP" -q --stacks --stack-size 4K --force -o "$OUT/cost4.txt" -- "$WORK/loop" 2>/dev/null | tail -n 1)"
    echo "one in 10:  $("$NVCAP" -q --stacks=10 --force -o "$OUT/cost10.txt" -- "$WORK/loop" 2>/dev/null | tail -n 1)"
    echo "one in 100: $("$NVCAP" -q --stacks=100 --force -o "$OUT/cost100.txt" -- "$WORK/loop" 2>/dev/null | tail -n 1)"
    echo "stacks 16K: $("$NVCAP" -q --stacks --force -o "$OUT/cost16.txt" -- "$WORK/loop" 2>/dev/null | tail -n 1)"
done
grep -h stack "$OUT"/cost*.txt
# What is read first, and not the gigabytes.
gzip -f "$OUT"/*.jsonl
