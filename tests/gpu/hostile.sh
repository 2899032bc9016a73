#!/bin/bash
# Another user's programs do everything at once that costs nvcap much (hostile/stranger.py), beside a PyTorch training: the training's trace is
# complete, `nvcap serve` answers within 100 ms with less than 256 MiB, and `dump` of each of them ends within 20 s. Needs root, python3 with
# torch, an NVIDIA GPU; without /dev/fuse that mode did not run. Writes to $OUT, prints rows.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
PORT=${PORT:-9837} TOKEN=a-token-of-this-script
chmod 755 "$WORK"
cp "$HERE"/hostile/stranger.py "$WORK"
MODES="environment sections names fifos"
ended() { kill $(jobs -p) 2>/dev/null; umount -l "$WORK/silent" 2>/dev/null; rm -rf "$WORK"; }
trap ended EXIT
# as_stranger COMMAND...: as a user who is nobody else.
as_stranger() { exec python3 -c "import os,sys; os.setgroups([]); os.setgid(4711); os.setuid(4711); os.execvp(sys.argv[1], sys.argv[1:])" "$@"; }

mkdir "$WORK/silent"
tail -f /dev/null | python3 "$HERE/hostile/silent.py" "$WORK/silent" >"$WORK/fuse.out" 2>&1 &
if wait_for . "$WORK/fuse.out" $! && grep -q mounted "$WORK/fuse.out"; then MODES="$MODES fuse"
else row "not run" "a file that is never answered" "$(cat "$WORK/fuse.out")"; fi

python3 "$HERE/train.py" --seconds "${SECONDS_OF_TRAINING:-75}" >"$OUT/train.out" 2>&1 &
TRAIN=$!
wait_for training "$OUT/train.out" $TRAIN || { row FAIL "the training" "it did not begin"; exit 1; }
(umask 077; echo $TOKEN >"$WORK/token")
"$NVCAP" serve --token-file "$WORK/token" --listen 127.0.0.1:"$PORT" --by-process --sample 0.5% --budget 2% >"$OUT/serve.out" 2>&1 &
SERVE=$!
declare -A PIDS
for mode in $MODES; do
    (tail -f /dev/null | as_stranger python3 "$WORK/stranger.py" "$mode" "$WORK/silent") >"$OUT/$mode.out" 2>&1 &
    wait_for ready "$OUT/$mode.out" $! || row FAIL "$mode" "$(tail -n 1 "$OUT/$mode.out")"
    PIDS[$mode]=$(sed -n 's/^ready //p' "$OUT/$mode.out")
done
"$NVCAP" -p $TRAIN -q --duration 30 >"$OUT/trace.out" 2>&1 &
TRACE=$!
check "serve beside them and 256 clients" python3 "$HERE/hostile/clients.py" 127.0.0.1 "$PORT" $SERVE
for mode in $MODES; do
    began=$(date +%s%N)
    timeout 60 "$NVCAP" dump -p "${PIDS[$mode]}" >"$OUT/dump-$mode.txt" 2>&1
    status=$? took=$((($(date +%s%N) - began) / 1000000))
    [ $status -lt 124 ] && [ $took -lt 20000 ]
    status_row $? "dump of $mode" "status $status, $took ms: $(tail -n 1 "$OUT/dump-$mode.txt" | cut -c1-90)"
    said=$(curl -sf -o /dev/null -w '%{http_code} in %{time_total} s' --max-time 60 -H "Authorization: Bearer $TOKEN" "http://127.0.0.1:$PORT/dump?pid=${PIDS[$mode]}")
    status_row $? "/dump of $mode" "$said"
done
wait $TRACE
status_row $? "the training's trace" "$(tail -n 1 "$OUT/trace.out" | cut -c1-150)"
wait $TRAIN
status_row $? "the training" "$(tail -n 1 "$OUT/train.out" | cut -c1-150)"
sections
