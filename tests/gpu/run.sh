#!/bin/bash
# Everything that nvcap must show on a GPU, in one script for a machine without Rust.
#
#   run.sh [SECTION...]     sections: oracle vadd train cost reads refuse ioctls egl vulkan nvdec (default: all, in this
#                           order), fatbin (with cuobjdump), two (several GPUs), and keep: what the sections before it recorded, in one file
#
# Needs: nvcc, gcc, python3 with torch (for train), root, and bin/{nvcap,compare} beside this script or one folder up
# (or BIN=FOLDER). egl and vulkan need their loaders, or packages of them in debs/ beside this script. Writes a summary
# and what it is based on to $OUT when that is set, else to ./gpu-results.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
COMPARE=$(readlink -f "$BIN/compare")
[ $# -gt 0 ] || set -- oracle vadd train cost reads refuse ioctls egl vulkan nvdec
# wait_armed PID: until the nvcap under this timeout has its breakpoints, or 20 s have passed.
wait_armed() {
    local i child
    for i in $(seq 200); do
        child=$(pgrep -P "$1" | head -n 1)
        if [ -n "$child" ] && [ "$(ls -l "/proc/$child/fd" 2>/dev/null | grep -c 'perf_event')" -gt 0 ]; then
            sleep 0.3
            return 0
        fi
        kill -0 "$1" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

echo "== building ($(date -u +%T))"
# needs NAME SECTION...: one of the sections will run.
needs() {
    local name=$1 section
    shift
    for section in "$@"; do case " $SECTIONS " in *" $section "*) return 0 ;; esac done
    return 1
}
SECTIONS="$*"
cuda() { needs "$@" && nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/$1" "$HERE/$1.cu" & }
cuda work oracle
cuda vadd vadd ioctls
cuda loop cost refuse
cuda reads reads
cuda two_gpus two
gcc -O2 -shared -fPIC -o "$WORK/oracle.so" "$HERE/oracle.c" -ldl -lpthread 2>"$WORK/oracle.log" || cat "$WORK/oracle.log"
gcc -O2 -shared -fPIC -o "$WORK/ioctl_log.so" "$HERE/ioctl_log.c" -ldl
for f in bp egl vulkan nvdec; do gcc -O2 -Wall -o "$WORK/$f" "$HERE/$f.c" -ldl; done
wait
{
    date -u
    uname -sr
    nvidia-smi --query-gpu=name,driver_version,pci.bus_id --format=csv,noheader
    nvcc --version | tail -n 2
    "$NVCAP" --version
    timeout 30 "$NVCAP" doctor
} >"$OUT/machine.txt" 2>&1
cat "$OUT/machine.txt"

# The oracle captures in the process itself, nvcap from outside: the same process, both at once.
oracle_run() { # NAME ARGS...
    local name=$1 status
    shift
    timeout 120 "$NVCAP" --json -vv -e type=submission,entry -o "$WORK/$name.json" -- \
        env LD_PRELOAD="$WORK/oracle.so" ORACLE_OUT="$WORK/$name.orc" "$WORK/work" "$@" >"$WORK/$name.out" 2>"$WORK/$name.err"
    status=$?
    grep -v '^\[oracle\] \(bp\|channel\|token\)' "$WORK/$name.err" | tail -n 4 | cut -c1-300
    if [ $status -eq 0 ]; then row ok "oracle $name: nvcap's status" "0, complete"; else row FAIL "oracle $name: nvcap's status" "$status"; fi
    if ! "$NVCAP" decode --from orc "$WORK/$name.orc" --json -vv -e type=submission,entry -o "$WORK/$name.orc.json" 2>"$WORK/$name.dec"; then
        row FAIL "oracle $name: decode --from orc" "$(tail -n 1 "$WORK/$name.dec")"
    fi
    "$COMPARE" "$WORK/$name.json" "$WORK/$name.orc.json" >"$OUT/compare-$name.txt" 2>&1
    status=$?
    cat "$OUT/compare-$name.txt"
    if [ $status -eq 0 ]; then row ok "oracle $name: byte for byte" "$(tail -n 1 "$OUT/compare-$name.txt")"
    else row FAIL "oracle $name: byte for byte" "$(tail -n 1 "$OUT/compare-$name.txt")"; fi
}
section_oracle() {
    oracle_run all all
    oracle_run rate rate 10000
}

section_vadd() {
    local mode
    timeout 60 "$NVCAP" -- "$WORK/vadd" >"$OUT/vadd.txt" 2>&1
    local status=$?
    if [ $status -eq 0 ]; then row ok "vadd as text" "$(wc -l <"$OUT/vadd.txt") lines"; else row FAIL "vadd as text" "status $status"; fi
    grep -E 'launch|copy' "$OUT/vadd.txt" | head -n 12
    for mode in pinned pageable; do
        timeout 60 "$NVCAP" --json -e type=operation -o "$WORK/vadd-$mode.json" -- "$WORK/vadd" $mode >"$WORK/vadd.out" 2>&1 ||
            row FAIL "vadd $mode: trace" "$(tail -n 1 "$WORK/vadd.out")"
        check "vadd $mode: right results" grep ' 0 wrong' "$WORK/vadd.out"
        check "vadd $mode: launch and copies" python3 "$HERE/check.py" vadd "$WORK/vadd-$mode.json"
    done
}

section_train() {
    local steps=${TRAIN_STEPS:-3000} reference traced pid tracer status
    python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { row "NOT RUN" "train" "no torch with CUDA here"; return; }
    reference=$(timeout 120 python3 "$HERE/train.py" --steps "$steps" | tail -n 1)
    timeout 170 python3 "$HERE/train.py" --steps "$steps" >"$WORK/train.out" 2>&1 &
    pid=$!
    # The process that has the GPU, not the timeout around it.
    wait_for '^training' "$WORK/train.out" $pid || row FAIL "train" "it did not start"
    traced=$(sed -n 's/^pid //p' "$WORK/train.out")
    timeout 170 "$NVCAP" --json -e type=submission -o "$WORK/train.json" -p "$traced" >"$WORK/train.log" 2>&1 &
    tracer=$!
    wait $pid
    wait $tracer
    status=$?
    tail -n 2 "$WORK/train.log" | cut -c1-300
    echo "untraced: $reference"
    echo "traced:   $(tail -n 1 "$WORK/train.out")"
    if [ $status -eq 0 ]; then row ok "train: nvcap's status" "0, complete"; else row FAIL "train: nvcap's status" "$status"; fi
    check "train: 100,000 without a gap" python3 "$HERE/check.py" ledger "$WORK/train.json" 100000
    check "train: positions contiguous" python3 "$HERE/check.py" contiguous "$WORK/train.json" 100000
    if [ -n "$reference" ] && [ "${reference##*checksum=}" = "$(sed -n 's/.*checksum=//p' "$WORK/train.out")" ]; then
        row ok "train: results unchanged" "${reference##*loss=}"
    else
        row FAIL "train: results unchanged" "untraced ${reference##*loss=}, traced $(tail -n 1 "$WORK/train.out")"
    fi
    { echo "untraced: $reference"; tail -n 1 "$WORK/train.out"; tail -n 1 "$WORK/train.json" | cut -c1-4000; } >"$OUT/train.txt"

    # Again with every word, for as long as 30,000 submissions: the payloads of the semaphores follow too.
    timeout 170 python3 "$HERE/train.py" --steps "$steps" >"$WORK/train2.out" 2>&1 &
    pid=$!
    wait_for '^training' "$WORK/train2.out" $pid
    timeout 100 "$NVCAP" --json -vv -e type=submission,entry --max-submissions 30000 -o "$WORK/train2.json" \
        -p "$(sed -n 's/^pid //p' "$WORK/train2.out")" >"$WORK/train2.log" 2>&1
    wait $pid
    check "train: payloads contiguous" python3 "$HERE/check.py" contiguous "$WORK/train2.json" 29000
    rm -f "$WORK"/train*.json
}

# Median ns a launch of a loop: untraced, with the bare watchpoint, under nvcap, in turn and several times.
cost_one() { # KIND
    local kind=$1 pid tracer
    rm -f "$WORK/fifo" "$WORK/fifo2"
    mkfifo "$WORK/fifo" "$WORK/fifo2"
    timeout 60 "$WORK/loop" "${COST_LAUNCHES:-30000}" 3 wait <"$WORK/fifo" >"$WORK/loop.out" 2>&1 &
    exec 8>"$WORK/fifo"
    wait_for '^ready' "$WORK/loop.out" $! || return
    pid=$(sed -n 's/^pid //p' "$WORK/loop.out")
    : >"$WORK/tracer.log"
    tracer=
    case $kind in
    watchpoint)
        timeout 60 "$WORK/bp" "$pid" <"$WORK/fifo2" >"$WORK/tracer.log" 2>&1 &
        tracer=$!
        exec 9>"$WORK/fifo2"
        wait_for '^armed' "$WORK/tracer.log" $tracer
        ;;
    nvcap-ledger) timeout 60 "$NVCAP" -q -p "$pid" >"$WORK/tracer.log" 2>&1 & tracer=$! ;;
    nvcap-text) timeout 60 "$NVCAP" --force -o "$WORK/cost.txt" -p "$pid" >"$WORK/tracer.log" 2>&1 & tracer=$! ;;
    esac
    case $kind in nvcap*) wait_armed "$tracer" ;; esac
    echo g >&8
    exec 8>&-
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    exec 9>&-
    [ -z "$tracer" ] || wait "$tracer"
    local status=$?
    # What a failed tracer did not trace is no cost.
    [ $status -ne 0 ] || sed -n "s/^loop pass=.* issue_ns=\([0-9.]*\) .*/$kind \1/p" "$WORK/loop.out" >>"$OUT/costs.txt"
    case $kind in nvcap*) [ $status -eq 0 ] || row FAIL "cost: $kind complete" "status $status: $(tail -n 1 "$WORK/tracer.log" | cut -c1-160)" ;; esac
    grep -h '^hits' "$WORK/tracer.log"
    wait
}
section_cost() {
    local i kind
    : >"$OUT/costs.txt"
    for i in $(seq "${COST_ROUNDS:-3}"); do
        for kind in untraced watchpoint nvcap-ledger nvcap-text; do cost_one $kind; done
    done
    check "cost: below 1.6 watchpoints" python3 "$HERE/check.py" costs "$OUT/costs.txt"
    python3 "$HERE/check.py" costs "$OUT/costs.txt" | tee -a "$SUMMARY"
}

# What the reads cost that the doorbell program makes: no check, the figures of docs/verification.md.
section_reads() {
    "$WORK/reads" | tee "$OUT/reads.txt"
}

# refuse WHAT WORD COMMAND...: status 1 and one line on standard error that has the word.
refuse() {
    local what=$1 word=$2 status
    shift 2
    timeout 20 "$@" >"$WORK/refuse.out" 2>"$WORK/refuse.err"
    status=$?
    if [ $status -eq 1 ] && [ "$(grep -c . "$WORK/refuse.err")" -eq 1 ] && grep -qi -- "$word" "$WORK/refuse.err"; then
        row ok "refuse: $what" "$(cut -c1-180 "$WORK/refuse.err")"
    else
        row FAIL "refuse: $what" "status $status: $(head -n 3 "$WORK/refuse.err" | tr '\n' '|' | cut -c1-250)"
    fi
}
section_refuse() {
    local pid gone
    chmod 755 "$WORK"
    cp "$NVCAP" "$WORK/nvcap-nobody"
    chmod 755 "$WORK/nvcap-nobody"
    mkfifo "$WORK/fifo3"
    timeout 100 "$WORK/loop" 10 1 wait <"$WORK/fifo3" >"$WORK/loop3.out" 2>&1 &
    exec 7>"$WORK/fifo3"
    wait_for '^ready' "$WORK/loop3.out" $!
    pid=$(sed -n 's/^pid //p' "$WORK/loop3.out")
    (exit 0) & gone=$!
    wait $gone
    local nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    refuse "not root" sudo "${nobody[@]}" "$WORK/nvcap-nobody" -- /bin/true
    refuse "process of another user" sudo "${nobody[@]}" "$WORK/nvcap-nobody" -p "$pid"
    refuse "process gone" process "$NVCAP" -p "$gone"
    refuse "doorbell not mapped" 'mapped' "$NVCAP" --doorbell 0x1090 -p "$pid"
    mkfifo "$WORK/fifo4"
    "$WORK/bp" "$pid" fill <"$WORK/fifo4" >"$WORK/fill.out" 2>&1 &
    local filler=$!
    exec 6>"$WORK/fifo4"
    if wait_for '^armed' "$WORK/fill.out" $filler; then
        refuse "no debug register left" 'debug register' "$NVCAP" -p "$pid"
    else
        row FAIL "refuse: no debug register left" "bp could not take them: $(tail -n 1 "$WORK/fill.out")"
    fi
    exec 6>&-
    echo g >&7
    exec 7>&-
    wait
    grep -q '^loop pass=0' "$WORK/loop3.out" && row ok "refuse: target unharmed" "$(tail -n 1 "$WORK/loop3.out")" || row FAIL "refuse: target unharmed" ""
}

# The same process seen from without and from within (ioctl_log.c): every ioctl, its order, its bytes.
ioctls_of() { # NAME COMMAND...
    local name=$1
    shift
    timeout 90 "$NVCAP" ioctls --json -vv -o "$WORK/$name-ioctls.json" -- \
        env LD_PRELOAD="$WORK/ioctl_log.so" IOCTL_LOG="$WORK/$name-ioctl.log" "$@" >"$WORK/$name-ioctls.out" 2>&1
    local status=$?
    if [ $status -eq 0 ]; then row ok "$name: nvcap ioctls' status" "$(tail -n 1 "$WORK/$name-ioctls.out" | cut -c1-120)"
    else row FAIL "$name: nvcap ioctls' status" "$status: $(tail -n 1 "$WORK/$name-ioctls.out" | cut -c1-160)"; fi
    check "$name: ioctls equal the log" python3 "$HERE/check.py" ioctls "$WORK/$name-ioctls.json" "$WORK/$name-ioctl.log"
    "$NVCAP" channels --from ioctl-log "$WORK/$name-ioctl.log" >"$OUT/$name-channels-of-log.txt" 2>&1
}
section_ioctls() {
    ioctls_of vadd "$WORK/vadd"
    ioctls_of vadd-pageable "$WORK/vadd" pageable
}

# Loaders from debs/, where the machine has none, and the driver's own files where it keeps them elsewhere.
loaders() {
    local f root=$WORK/loaders
    [ -z "${LOADERS:-}" ] || return 0
    LOADERS=done
    if ! ldconfig -p | grep -q libvulkan.so.1 || ! ldconfig -p | grep -q libEGL.so.1; then
        for f in "$HERE"/debs/*.deb; do [ -e "$f" ] && dpkg -x "$f" "$root"; done
        [ ! -d "$root" ] || export LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
    local share=/usr/local/nvidia/share
    [ ! -d /usr/local/nvidia/lib64 ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64"
    [ ! -e $share/vulkan/icd.d/nvidia_icd.json ] || export VK_DRIVER_FILES=$share/vulkan/icd.d/nvidia_icd.json
    [ ! -e $share/glvnd/egl_vendor.d/10_nvidia.json ] || export __EGL_VENDOR_LIBRARY_FILENAMES=$share/glvnd/egl_vendor.d/10_nvidia.json
}

# A program that is not CUDA's alone: it runs right untraced and traced, and all it submits is read and decoded.
client() { # NAME WANTS COMMAND...
    local name=$1 wants=$2 status
    shift 2
    if ! timeout 60 "$@" >"$WORK/$name.plain" 2>&1; then
        row "NOT RUN" "$name" "untraced it fails: $(tail -n 1 "$WORK/$name.plain" | cut -c1-160)"
        return
    fi
    cat "$WORK/$name.plain"
    timeout 100 "$NVCAP" --json -vv -o "$WORK/$name.json" -- "$@" >"$WORK/$name.out" 2>&1
    status=$?
    if [ $status -eq 0 ]; then row ok "$name: nvcap's status" "0, complete"
    else row FAIL "$name: nvcap's status" "$status: $(grep -a nvcap "$WORK/$name.out" | tail -n 1 | cut -c1-200)"; fi
    grep wrong "$WORK/$name.plain" >"$WORK/$name.right"
    grep wrong "$WORK/$name.out" | cmp -s - "$WORK/$name.right" && row ok "$name: results unchanged" "$(tail -n 1 "$WORK/$name.right")" ||
        row FAIL "$name: results unchanged" "$(grep wrong "$WORK/$name.out" | tail -n 1)"
    # shellcheck disable=SC2086
    check "$name: decoded, nothing lost" python3 "$HERE/check.py" client "$WORK/$name.json" $wants
    python3 "$HERE/check.py" client "$WORK/$name.json" | cut -c1-1500
    timeout 60 "$NVCAP" channels --force -o "$OUT/$name-channels.txt" -- "$@" >/dev/null 2>&1
    cat "$OUT/$name-channels.txt"
    # With the capture from within: byte for byte of one run. CUDA and NVDEC have three doorbell pages, and two tracers
    # would need six of the four debug registers; nor does the oracle find these channels' USERD. It counts doorbells.
    if [ "$name" = nvdec ]; then
        LD_PRELOAD="$WORK/oracle.so" ORACLE_OUT="$WORK/$name.orc" timeout 100 "$@" >"$WORK/$name-both.out" 2>&1
        check "$name: as many as the oracle's hits" python3 "$HERE/check.py" doorbells "$WORK/$name.json" "$WORK/$name-both.out"
        ioctls_of "$name" "$@"
        return
    fi
    timeout 100 "$NVCAP" --json -vv -e type=submission,entry -o "$WORK/$name-both.json" -- \
        env LD_PRELOAD="$WORK/oracle.so" ORACLE_OUT="$WORK/$name.orc" "$@" >"$WORK/$name-both.out" 2>&1
    "$NVCAP" decode --from orc "$WORK/$name.orc" --json -vv -e type=submission,entry -o "$WORK/$name.orc.json" 2>/dev/null
    check "$name: byte for byte" "$COMPARE" "$WORK/$name-both.json" "$WORK/$name.orc.json"
    "$COMPARE" "$WORK/$name-both.json" "$WORK/$name.orc.json" >"$OUT/compare-$name.txt" 2>&1
    grep '^\[oracle\] hits' "$WORK/$name-both.out"
    rm -f "$WORK/$name.orc.json" "$WORK/$name-both.json"
    ioctls_of "$name" "$@"
}
section_egl() { loaders && client egl "draw>=8" "$WORK/egl"; }
section_vulkan() {
    loaders && client vulkan "launch>=3" "$WORK/vulkan"
    # When the GPU worked, against the program's own timestamp queries.
    timeout 100 "$NVCAP" --gpu-time --json -e type=submission -o "$WORK/vulkan-time.json" -- "$WORK/vulkan" >"$WORK/vulkan-time.out" 2>&1
    if grep -q '^ticks' "$WORK/vulkan-time.out"; then
        check "vulkan: GPU times against its queries" python3 "$HERE/check.py" ticks "$WORK/vulkan-time.json" "$WORK/vulkan-time.out"
        python3 "$HERE/check.py" ticks "$WORK/vulkan-time.json" "$WORK/vulkan-time.out"
    else row "NOT RUN" "vulkan: GPU times" "$(tail -n 1 "$WORK/vulkan-time.out" | cut -c1-160)"; fi
}
section_nvdec() {
    python3 "$HERE/stream.py" 128 64 8 >"$WORK/s.h264"
    client nvdec "video>=8" "$WORK/nvdec" "$WORK/s.h264"
}

# Images in the fat binaries of programs, compressed in each way that nvcc knows: nvcap's against cuobjdump's. And the names that their code
# gives to launches, against those of libcuda's records.
FATBIN_KERNEL=_Z4vaddPKfS0_Pfi
fatbin_one() { # NAME OPTION...
    local name=$1 sm other wrong=0 same=0
    shift
    local file=$WORK/fat-$name folder=$WORK/fat-$name.d
    mkdir -p "$folder"
    if ! nvcc -O2 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_"$ARCH",code=sm_"$ARCH" -gencode arch=compute_"$ARCH",code=compute_"$ARCH" \
        "$@" -o "$file" "$HERE/vadd.cu" 2>"$WORK/fat-$name.log"; then
        # An option that this nvcc does not know.
        row "$([ $# -gt 0 ] && echo "NOT RUN" || echo FAIL)" "fatbin $name: nvcc" "$(head -n 1 "$WORK/fat-$name.log" | cut -c1-160)"
        return
    fi
    (cd "$folder" && cuobjdump -xelf all "$file" >/dev/null 2>&1)
    "$NVCAP" code '*' "$file" >"$OUT/fatbin-$name.txt" 2>&1
    for sm in 80 "$ARCH"; do
        # cuobjdump's image with the kernel.
        for other in "$folder"/*sm_"$sm"*.cubin; do
            "$NVCAP" code $FATBIN_KERNEL "$other" -o "$WORK/theirs" 2>/dev/null && break
        done
        if "$NVCAP" code $FATBIN_KERNEL "$file" --sm "$sm" -o "$WORK/ours" 2>>"$OUT/fatbin-$name.txt" && cmp -s "$WORK/ours" "$WORK/theirs" &&
            "$NVCAP" code $FATBIN_KERNEL "$file" --sm "$sm" --force -o "$WORK/ours" --image 2>/dev/null &&
            cmp -s -n "$(stat -c %s "$WORK/ours")" "$WORK/ours" "$other"; then
            same=$((same + 1))
        else
            wrong=$((wrong + 1))
        fi
        rm -f "$WORK/ours" "$WORK/theirs"
    done
    status_row $wrong "fatbin $name: code and image" "$same of 2 as cuobjdump has them; $(stat -c %s "$file") bytes"
}
section_fatbin() {
    local by library begin
    command -v cuobjdump >/dev/null || { row "NOT RUN" "fatbin" "no cuobjdump here"; return; }
    fatbin_one default
    fatbin_one all -Xfatbin -compress-all
    fatbin_one none --no-compress
    if nvcc --help | grep -q -e --compress-mode; then
        for by in speed balance size none; do fatbin_one mode-$by --compress-mode=$by; done
    else
        row "NOT RUN" "fatbin mode-*" "this nvcc has no --compress-mode"
    fi
    library=$(find / -xdev -name 'libcublas.so.*' -type f 2>/dev/null | head -n 1)
    if [ -n "$library" ]; then
        begin=$(date +%s%N)
        "$NVCAP" code '*' "$library" --sm "$ARCH" >"$WORK/cublas.txt" 2>"$OUT/fatbin-cublas.txt"
        status_row $? "fatbin: $(basename "$library")" \
            "$(wc -l <"$WORK/cublas.txt") lines in $((($(date +%s%N) - begin) / 1000000)) ms; $(head -n 1 "$OUT/fatbin-cublas.txt" | cut -c1-200)"
    fi
    python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { row "NOT RUN" "fatbin: names" "no torch with CUDA here"; return; }
    for by in record file; do
        NVCAP_LOG=info NVCAP_NAMES_BY=$by timeout 170 "$NVCAP" --json -e op=launch -o "$WORK/by-$by.json" -- \
            python3 "$HERE/train.py" --seconds 40 >"$OUT/fatbin-by-$by.txt" 2>&1
        grep 'fat binaries' "$OUT/fatbin-by-$by.txt" | cut -c1-300
    done
    check "fatbin: names by files" python3 "$HERE/fatbin.py" "$WORK/by-record.json" "$WORK/by-file.json"
    rm -f "$WORK"/by-*.json
}

section_two() {
    local gpus
    gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
    [ "$gpus" -ge 2 ] || { row "NOT RUN" "two" "$gpus GPU here"; return; }
    timeout 100 "$NVCAP" --json -e type=operation -o "$WORK/two.json" -- "$WORK/two_gpus" >"$WORK/two.out" 2>&1
    local status=$?
    cat "$WORK/two.out"
    if [ $status -eq 0 ]; then row ok "two: nvcap's status" "0, complete"; else row FAIL "two: nvcap's status" "$status"; fi
    grep -q 'wrong 0$' "$WORK/two.out" && row ok "two: right results" "$(grep 'wrong' "$WORK/two.out")" || row FAIL "two: right results" ""
    timeout 100 "$NVCAP" channels --json -o "$WORK/two-channels.json" -- "$WORK/two_gpus" >"$WORK/two-channels.out" 2>&1
    timeout 100 "$NVCAP" channels --force -o "$OUT/two-channels.txt" -- "$WORK/two_gpus" >/dev/null 2>&1
    cat "$OUT/two-channels.txt"
    # The channels are of another run than the operations: what GPU is which is the same.
    check "two: each submission on its GPU" python3 "$HERE/check.py" two "$WORK/two.json" "$WORK/two-channels.json" "$WORK/two.out"
    python3 "$HERE/check.py" two "$WORK/two.json" "$WORK/two-channels.json" "$WORK/two.out"
    python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { row "NOT RUN" "two: children" "no torch with CUDA here"; return; }
    timeout 100 "$NVCAP" -q -- python3 "$HERE/fork.py" >"$WORK/fork.out" 2>&1
    status_row $? "two: children forked and executed" "$(tail -n 1 "$WORK/fork.out" | cut -c1-160)"
    check "two: their results" grep -E '^parent( 2801\.0)+$' "$WORK/fork.out"
}

# What was recorded of other clients, for work on the decoder elsewhere.
section_keep() {
    (cd "$WORK" && python3 - "$OUT/kept.tar.xz" <<'PYTHON'
import glob, sys, tarfile
with tarfile.open(sys.argv[1], "w:xz", preset=2) as tar:
    for pattern in ("*.json", "*.orc", "*-ioctl.log", "*.out", "*.plain"):
        for name in sorted(glob.glob(pattern)):
            tar.add(name)
PYTHON
    )
    row ok "keep" "$(stat -c %s "$OUT/kept.tar.xz") bytes"
}

sections "$@"
echo
cat "$SUMMARY"
rm -rf "$WORK"
[ "$failed" -eq 0 ]
