#!/bin/bash
# What `nvcap --how observe` must show on a GPU: nothing lost, nothing changed, nothing slowed down.
#
#   observe.sh [SECTION...]     sections: short cost same equal train idle (default: all of them, in this order), and reads:
#                               what reading another process's memory costs
#
# Needs: nvcc, gcc, python3 with torch (for train), root for `equal` alone (it compares with the trap), and
# bin/nvcap beside this script or one folder up (or BIN=FOLDER). Writes to $OUT, else to ./gpu-results.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
WIDTH=420
[ $# -gt 0 ] || set -- short cost same equal train idle

echo "== building ($(date -u +%T))"
for f in work loop; do nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/$f" "$HERE/$f.cu" & done
gcc -O2 -shared -fPIC -o "$WORK/oracle.so" "$HERE/oracle.c" -ldl -lpthread 2>"$WORK/oracle.log" || cat "$WORK/oracle.log"
wait
{ date -u; uname -sr; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$NVCAP" --version; timeout 30 "$NVCAP" doctor; } >"$OUT/machine.txt" 2>&1

# One process with many passes of the launch loop; nvcap comes and goes between them. On cores of their own where
# there are enough.
pin() { # CORES COMMAND...
    local cores=$1
    shift
    if [ "$(nproc)" -ge 12 ]; then exec taskset -c "$cores" "$@"; else exec "$@"; fi
}
pass() { # KIND NUMBER PID
    local tracer= line= status=0
    if [ "$1" = observed ]; then
        (pin 4-15 env ${TRACE_LOG:+NVCAP_LOG=$TRACE_LOG} "$NVCAP" --how observe --json -o "$WORK/loop-$2.json" -q -p "$3" 2>"${KEEP:-$WORK}/tracer-$2.log") &
        tracer=$!
        # With -q it does not say that it is attached.
        sleep 0.3
    fi
    echo -n g >&8
    # Nothing is started meanwhile: a process that begins takes some processor for 2 ms, and that may be nvcap's.
    while read -r -t 60 line <&7 && [ "${line#loop pass}" = "$line" ]; do :; done
    sleep 0.1
    if [ -n "$tracer" ]; then
        kill -INT "$tracer"
        wait "$tracer"
        status=$?
    fi
    line=${line#*issue_ns=}
    echo "$1 ${line%% *}" >>"$OUT/pairs.txt"
    if [ $status -ne 0 ]; then row FAIL "loop $2: nvcap's status" "$status: $(tail -n 1 "${KEEP:-$WORK}/tracer-$2.log" | cut -c1-300)"; fi
}
section_cost() {
    local i line= pid= pairs=${PAIRS:-10}
    : >"$OUT/pairs.txt"
    mkfifo "$WORK/fifo" "$WORK/said"
    exec 7<>"$WORK/said"
    (pin 2,3 "$WORK/loop" "${LAUNCHES:-300000}" $((2 * pairs)) turns <"$WORK/fifo" >"$WORK/said" 2>&1) &
    exec 8>"$WORK/fifo"
    while read -r -t 60 line <&7 && [ "$line" != ready ]; do pid=${line#pid }; done
    [ "$line" = ready ] || { row FAIL "loop" "it did not start"; return; }
    for i in $(seq "$pairs"); do
        if [ $((i % 2)) = 1 ]; then pass untraced "$i" "$pid"; pass observed "$i" "$pid"
        else pass observed "$i" "$pid"; pass untraced "$i" "$pid"; fi
    done
    exec 8>&-
    wait
    check "loop: ns a launch, ratio <= 1.01" python3 "$HERE/observe.py" pairs "$OUT/pairs.txt"
    for i in $(seq "$pairs"); do
        check "loop $i: all ${LAUNCHES:-300000}, nothing lost" python3 "$HERE/observe.py" ledger "$WORK/loop-$i.json" "${LAUNCHES:-300000}"
        tail -n 1 "$WORK/loop-$i.json" | sed 's/"margins":\[[^]]*\],//' | cut -c1-1500 >>"$OUT/loops.json"
    done
}

# The oracle captures in the process itself, nvcap observes it from outside: the same process, both at once.
section_same() {
    local args name
    for args in "all" "rate 10000"; do
        name=${args%% *}
        # shellcheck disable=SC2086
        timeout 120 "$NVCAP" --how observe --json -vv -e type=submission,entry -o "$WORK/$name.json" -- \
            env LD_PRELOAD="$WORK/oracle.so" ORACLE_OUT="$WORK/$name.orc" "$WORK/work" $args >"$WORK/$name.out" 2>"$WORK/$name.err"
        # 3 where the last moments alone were not seen: the program ends at once.
        row "$([ $? -eq 0 ] || grep -q 'untraced: its last [0-9.]* ms were not seen: it had submitted just before; captured' "$WORK/$name.err" && echo ok || echo FAIL)" "oracle $name: nvcap's status" "$(tail -n 1 "$WORK/$name.err" | cut -c1-300)"
        "$NVCAP" decode --from orc "$WORK/$name.orc" --json -vv -e type=submission,entry -o "$WORK/$name.orc.json" 2>"$WORK/$name.dec"
        check "oracle $name: byte for byte" python3 "$HERE/observe.py" same "$WORK/$name.json" "$WORK/$name.orc.json"
        rm -f "$WORK/$name".*json "$WORK/$name.orc"
    done
}

# Three equal runs of the loop: observed at full speed, trapped, and captured by the oracle. At the same addresses where
# that may be asked for, so that less of them need be masked.
section_equal() {
    local n=${LAUNCHES:-300000} fixed= run
    setarch -R true 2>/dev/null && fixed="setarch -R"
    run="-vv --json -e type=entry"
    check "equal: the check can fail" python3 "$HERE/equal.py" self-test
    # shellcheck disable=SC2086
    timeout 60 "$NVCAP" --how observe $run -o "$WORK/observed.json" -- $fixed "$WORK/loop" "$n" 1 >/dev/null 2>"$WORK/observed.err"
    status_row $? "equal: observed from the start" "$(tail -n 1 "$WORK/observed.err" | cut -c1-300)"
    check "equal: observed ledger" python3 "$HERE/observe.py" ledger "$WORK/observed.json" "$n"
    # shellcheck disable=SC2086
    timeout 60 "$NVCAP" --how trap $run -o "$WORK/trapped.json" -- $fixed "$WORK/loop" "$n" 1 >/dev/null 2>"$WORK/trapped.err"
    status_row $? "equal: trapped" "$(tail -n 1 "$WORK/trapped.err" | cut -c1-300)"
    # shellcheck disable=SC2086
    LD_PRELOAD="$WORK/oracle.so" ORACLE_OUT="$WORK/loop.orc" timeout 100 $fixed "$WORK/loop" "$n" 1 >/dev/null 2>"$WORK/oracle.err"
    # shellcheck disable=SC2086
    "$NVCAP" decode --from orc "$WORK/loop.orc" $run -o "$WORK/oracle.json" 2>"$WORK/oracle.dec"
    python3 "$HERE/equal.py" "$WORK/observed.json" "$WORK/oracle.json" "$n" >"$WORK/equal.oracle" 2>&1 &
    local compared=$!
    python3 "$HERE/equal.py" flips "$WORK/observed.json" "$WORK/trapped.json" >"$WORK/flips" 2>&1 &
    local flipped=$!
    check "equal: observed against trapped" python3 "$HERE/equal.py" "$WORK/observed.json" "$WORK/trapped.json" "$n"
    wait $compared
    status_row $? "equal: observed against oracle" "$(tail -n 1 "$WORK/equal.oracle" | cut -c1-420)"
    wait $flipped
    status_row $? "equal: bits flipped are noticed" "$(tail -n 1 "$WORK/flips" | cut -c1-300)"
    rm -f "$WORK"/{observed,trapped,oracle}.json "$WORK/loop.orc"
}

# A process that does nothing, with 20 channels: what following it takes.
# A process that does nothing: what nvcap takes in ten seconds, once it has found out that it sleeps.
section_idle() {
    local pid tracer nvcap before after threads
    mkfifo "$WORK/idle"
    "$WORK/loop" 1000 1 wait <"$WORK/idle" >"$WORK/idle.out" 2>&1 &
    pid=$!
    exec 9>"$WORK/idle"
    wait_for '^ready' "$WORK/idle.out" $pid
    timeout 30 "$NVCAP" --how observe --json -q -o "$WORK/idle.json" --duration 14 -p "$(sed -n 's/^pid //p' "$WORK/idle.out")" 2>"$WORK/idle.log" &
    tracer=$!
    sleep 3
    nvcap=$(pgrep -P $tracer nvcap || echo $tracer)
    threads() { cat /proc/"$1"/task/*/schedstat | awk '{ sum += $1 } END { print sum }'; }
    before=$(threads "$nvcap")
    sleep 10
    after=$(threads "$nvcap")
    wait $tracer
    status_row $? "idle: nvcap's status" "$(tail -n 1 "$WORK/idle.log" | cut -c1-300)"
    check "idle: at most 0.1 % of one core" python3 -c "import sys; p = ($after - $before) / 1e8; print(f'{p:.3f} %'); sys.exit(p > 0.1)"
    exec 9>&-
    wait $pid
}

# Commands that end at once after their last submission: they are stopped at their end, and seen whole.
section_short() {
    local i status whole=0 plain observed
    nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/vadd" "$HERE/vadd.cu" || { row FAIL "short" "nvcc"; return; }
    plain=$(date +%s%N)
    for i in $(seq 10); do "$WORK/vadd" >/dev/null 2>&1; done
    plain=$(($(date +%s%N) - plain))
    observed=$(date +%s%N)
    for i in $(seq 10); do
        timeout 60 "$NVCAP" --how observe --json -q --force -o "$WORK/short.json" -- "$WORK/vadd" >/dev/null 2>"$WORK/short.log"
        status=$?
        [ $status -eq 0 ] && whole=$((whole + 1))
        { echo "$status $(grep -a "nvcap:" "$WORK/short.log" | tail -n 1)"; } >>"$OUT/short.txt"
    done
    observed=$(($(date +%s%N) - observed))
    row "$([ $whole -eq 10 ] && echo ok || echo FAIL)" "short: complete" "$whole of 10; $(tail -n 1 "$OUT/short.txt" | cut -c1-160); $((plain / 10000000)) ms a run untraced, $((observed / 10000000)) ms with nvcap"
}

section_train() {
    local first steps reference observed pid tracer a b
    python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { row "NOT RUN" "train" "no torch with CUDA here"; return; }
    first=$(timeout 60 python3 "$HERE/train.py" --steps 400 | sed -n 's/.*us_per_step=\([0-9]*\).*/\1/p')
    steps=$((${TRAIN_SECONDS:-60} * 1000000 / ${first:-5000}))
    reference=$(timeout 170 python3 "$HERE/train.py" --steps "$steps" | tail -n 1)
    timeout 170 python3 "$HERE/train.py" --steps "$steps" >"$WORK/train.out" 2>&1 &
    pid=$!
    wait_for '^training' "$WORK/train.out" $pid || row FAIL "train" "it did not start"
    timeout 170 "$NVCAP" --how observe --json -q -o "$WORK/train.json" -p "$(sed -n 's/^pid //p' "$WORK/train.out")" 2>"$WORK/train.log" &
    tracer=$!
    wait $pid
    wait $tracer
    status_row $? "train: nvcap's status" "$(tail -n 1 "$WORK/train.log" | cut -c1-300)"
    observed=$(tail -n 1 "$WORK/train.out")
    check "train: nothing lost" python3 "$HERE/observe.py" ledger "$WORK/train.json" 100000
    if [ -n "$reference" ] && [ "${reference##*checksum=}" = "${observed##*checksum=}" ]; then row ok "train: results unchanged" "${reference##*loss=}"
    else row FAIL "train: results unchanged" "$reference / $observed"; fi
    a=$(sed 's/.*us_per_step=\([0-9.]*\).*/\1/' <<<"$reference") b=$(sed 's/.*us_per_step=\([0-9.]*\).*/\1/' <<<"$observed")
    check "train: us a step, $a and $b" python3 -c "import sys; r = $b / $a; print(f'ratio {r:.4f} over $steps steps'); sys.exit(r > 1.03)"
    tail -n 1 "$WORK/train.json" | cut -c1-3000 >"$OUT/train.json"
}

sections "$@"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
