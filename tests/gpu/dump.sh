#!/bin/bash
# nvcap dump on three real hangs and on a PyTorch process. Needs root, nvcc, python3 with torch. Writes to $OUT, prints rows.
# ROUNDS: how often the last 1,000 submissions are looked at (12).
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
RESULTS=${OUT:-$PWD/gpu-results-dump}
mkdir -p "$RESULTS"
# At most eight files come back: everything goes into one, and what is read first beside it.
OUT=$(mktemp -d)
trap 'cp "$OUT"/summary.txt "$OUT"/{spin,wait,peer,train}.txt "$RESULTS"/ 2>/dev/null; tar -C "$OUT" -cJf "$RESULTS/kept.tar.xz" .' EXIT
NVCAP=$HERE/bin/nvcap
WORK=$(mktemp -d)
chmod 755 "$WORK"
exec > >(tee "$OUT/summary.txt") 2>&1
uname -r; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$NVCAP" --version
nvcc -O2 -arch=native -o "$WORK/hang" "$HERE/hang.cu" -lcuda || nvcc -O2 -o "$WORK/hang" "$HERE/hang.cu" -lcuda || exit 1
# read_again NAME OPTION...: the recording of a look reads as the look did.
read_again() {
    local name=$1
    shift
    "$NVCAP" dump --json "$@" "$OUT/$name.pcapng" >"$OUT/$name-again.json" 2>>"$OUT/$name.err"
    if [ -s "$OUT/$name.json" ] && cmp "$OUT/$name.json" "$OUT/$name-again.json"; then echo "PASS  $name: the recording reads as the look did, $(stat -c %s "$OUT/$name.json") bytes"
    else echo "FAIL  $name: the recording does not read as the look did"; fi
}
until_says() { for _ in $(seq 400); do grep -q "$1" "$2" 2>/dev/null && return 0; sleep 0.05; done; return 1; }

for mode in spin wait peer; do
    "$WORK/hang" $mode 7 >"$OUT/$mode.log" 2>&1 &
    job=$!
    until_says '^hung' "$OUT/$mode.log" || { echo "FAIL  $mode: it did not come to hang"; cat "$OUT/$mode.log"; kill $job; continue; }
    sleep 0.5
    pid=$(sed -n 's/^hung.* pid=\([0-9]*\).*/\1/p' "$OUT/$mode.log")
    "$NVCAP" dump -p "$pid" --watch 1 --last 12 >"$OUT/$mode.txt" 2>"$OUT/$mode.err"; status=$?
    [ $status -eq 13 ] && echo "PASS  $mode: exit status 13, a hang" || echo "FAIL  $mode: exit status $status instead of 13"
    "$NVCAP" dump -p "$pid" --watch 0.5 --last 40 --json >"$OUT/$mode.json" 2>>"$OUT/$mode.err"
    "$NVCAP" dump -p "$pid" --last 40 --json --record "$OUT/$mode-once.pcapng" >"$OUT/$mode-once.json" 2>>"$OUT/$mode.err"
    read_again $mode-once --last 40
    "$NVCAP" dump -p "$pid" --last 2 -v >"$OUT/$mode-v.txt" 2>>"$OUT/$mode.err"
    cat "/proc/$pid/maps" | grep nvidia >"$OUT/$mode.maps"
    grep -q '^ended' "$OUT/$mode.log" && echo "FAIL  $mode: it ended before it was looked at"
    [ $mode = peer ] || setpriv --reuid=65534 --clear-groups "$NVCAP" dump -p "$pid" >"$OUT/$mode-other-user.txt" 2>&1
    wait $job
    grep -q '^ended' "$OUT/$mode.log" && echo "PASS  $mode: the program ended unharmed" || { echo "FAIL  $mode: the program did not end well"; tail -n 3 "$OUT/$mode.log"; }
    python3 "$HERE/dump_check.py" $mode "$OUT/$mode.json" "$OUT/$mode.log"
done
echo "      another user: $(cat "$OUT/spin-other-user.txt")"
# The same hang again, traced from its beginning: the program address as the trap sees it.
"$NVCAP" --json -e 'op=launch&&kind=user' -o "$OUT/trap.jsonl" -- "$WORK/hang" spin 4 >"$OUT/trap.log" 2>"$OUT/trap.err" &
job=$!
until_says '^hung' "$OUT/trap.log" && { sleep 0.3
    pid=$(sed -n 's/^hung.* pid=\([0-9]*\).*/\1/p' "$OUT/trap.log")
    "$NVCAP" dump -p "$pid" --watch 0.5 --last 40 --json >"$OUT/trapped.json"; }
wait $job
python3 - "$OUT" "$HERE" <<'P'
import sys; out, here = sys.argv[1:]
sys.path.insert(0, here); import dump_check as check
check.spin(f"{out}/trapped.json", f"{out}/trap.log", f"{out}/trap.jsonl")
P

python3 "$HERE/train.py" --seconds 45 >"$OUT/train.log" 2>&1 &
job=$!
until_says '^training' "$OUT/train.log" || sleep 10
pid=$(sed -n 's/^pid \([0-9]*\).*/\1/p' "$OUT/train.log")
sleep 3
python3 "$HERE/dump_check.py" speed "$NVCAP" "$pid" "$OUT"
"$NVCAP" dump -p "$pid" --last 3 --watch 1 -v >"$OUT/train.txt" 2>&1
head -12 "$OUT/train.txt" | cut -c1-200
"$NVCAP" dump -p "$pid" --last 20 --json --record "$OUT/train.pcapng" >"$OUT/train.json" 2>"$OUT/train.err"
read_again train --last 20
# A stopped process is an idle one: its rings do not move while they are read.
kill -STOP "$pid"; sleep 0.5
echo "      the same, stopped by SIGSTOP:"
python3 "$HERE/dump_check.py" speed "$NVCAP" "$pid" "$OUT" stopped
kill -CONT "$pid"
time "$NVCAP" dump -a --last 5 >"$OUT/all.txt"
"$NVCAP" dump -p "$pid" --last 1000 --stream -q >"$OUT/stream.txt" 2>&1; tail -1 "$OUT/stream.txt"
timeout 20 "$NVCAP" channels -p "$pid" --duration 2 --json >"$OUT/channels.json" 2>"$OUT/channels.err"
python3 "$HERE/dump_check.py" tokens "$OUT/train.json" "$OUT/channels.json"
kill "$pid" 2>/dev/null; wait $job 2>/dev/null
sleep 0.2
echo "$(grep -c '^PASS' "$OUT/summary.txt") passed, $(grep -c '^FAIL' "$OUT/summary.txt") failed"
