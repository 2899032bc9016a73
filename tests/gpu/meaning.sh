#!/bin/bash
# Whether nvcap says what ran: its kernels, copies and memsets against CUPTI's activity records of the same processes.
#
#   meaning.sh [WORKLOAD...]     workloads: cuda device features loads cpp cpp-stripped cpp-shared cpp-rdc train profiler generate transformer compile graph
#                                triton cupy jax (default: all)
#
# features: what CUDA 12 and 13 offer beyond cuda (meaning/features.cu). loads: modules are loaded and unloaded at each step
# (meaning/loads.cu). profiler: train, with torch.profiler inside where CUPTI's log is not.
# cpp: kernels with every kind of name that C++ makes (meaning/cpp.cu), linked with libcudart.a and a static library of its own;
# the same without symbols, with libcudart.so, and with relocatable device code.
#
# Each is traced from its start, attached to in the middle (ready and warm, so that its graphs are made before), and
# observed from the middle, all three under CUPTI (meaning/cupti_log.c); and once more without it, held against what CUPTI
# saw of another run of the same program, names too: under CUPTI the driver submits graphs otherwise, and launches every
# kernel through one program of CUPTI's own.
#
# Needs: nvcc with CUPTI's header, gcc, python3 with torch, transformers, triton, cupy, jax (a workload that lacks its
# package is said not to have run), root, and bin/nvcap beside this script or one folder up. Writes to $OUT, else to
# ./gpu-results: summary.txt, meaning.txt with every phase, and what nvcap and CUPTI said (KEEP=1).
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"
WIDTH=400
MEANING=$HERE/meaning
[ $# -gt 0 ] || set -- cuda device features loads cpp cpp-stripped cpp-shared cpp-rdc train profiler generate transformer compile graph triton cupy jax

echo "== building ($(date -u +%T))"
build_cupti_log "$WORK/cupti_log.so" || exit 2
# cpp_objects NAME OPTION...: the parts of cpp.cu, one of them a static library: NAME.o, NAME-unit.o, NAME-library.a in $WORK.
cpp_objects() {
    local name=$WORK/$1 parts
    shift
    parts=(nvcc -O2 -std=c++17 -arch=sm_"${ARCH:-90}" --extended-lambda "$@")
    "${parts[@]}" -c -o "$name.o" "$MEANING/cpp.cu" &
    "${parts[@]}" -c -o "$name-unit.o" "$MEANING/cpp_unit.cu" &
    "${parts[@]}" -c -o "$name-library.o" "$MEANING/cpp_library.cu" &
    wait
    rm -f "$name-library.a"
    ar rcs "$name-library.a" "$name-library.o"
}
# cpp_link NAME PARTS OPTION...
cpp_link() {
    local name=$WORK/$1 parts=$WORK/$2
    shift 2
    nvcc -arch=sm_"${ARCH:-90}" "$@" -o "$name" "$parts.o" "$parts-unit.o" "$parts-library.a"
}
# build WORKLOAD: nothing to do for those of workload.py.
build() {
    case $1 in
    cuda) nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/cuda" "$MEANING/cuda.cu" ;;
    device) nvcc -O2 -arch=sm_"${ARCH:-90}" -rdc=true -DDEVICE_GRAPHS -o "$WORK/device" "$MEANING/cuda.cu" -lcudadevrt ;;
    features) nvcc -O2 -arch=sm_"${ARCH:-90}" -o "$WORK/features" "$MEANING/features.cu" -lcuda ;;
    loads)
        local set
        for set in 0 1 2; do nvcc -DSET=$set -arch=sm_"${ARCH:-90}" -cubin -o "$WORK/module-$set.cubin" "$MEANING/loads_module.cu" & done
        nvcc -O2 -o "$WORK/loads" "$MEANING/loads.cu" -lcuda
        wait
        ;;
    cpp) cpp_link cpp cpp-parts ;;
    cpp-stripped) cpp_link cpp-stripped cpp-parts && strip -s "$WORK/cpp-stripped" ;;
    cpp-shared) cpp_link cpp-shared cpp-parts -cudart shared -Xlinker -rpath="$(dirname "$(readlink -f "$(command -v nvcc)")")/../lib64" ;;
    cpp-rdc) cpp_objects cpp-rdc-parts -rdc=true -DRDC && cpp_link cpp-rdc cpp-rdc-parts -rdc=true ;;
    esac
}
case " $* " in *" cpp "* | *" cpp-stripped "* | *" cpp-shared "*) cpp_objects cpp-parts & ;; esac
for name in "$@"; do case $name in cuda | device | features | loads | cpp-rdc) build "$name" & ;; esac; done
wait
for name in "$@"; do case $name in cpp | cpp-stripped | cpp-shared) build "$name" & ;; esac; done
wait
{ date -u; uname -sr; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; "$NVCAP" --version; } | tee "$OUT/machine.txt"
: >"$OUT/meaning.txt"
FILTER='part_of=none&&(op=launch&&kind!=companion||op=graph||op=copy||content=data)'

# command NAME: how a workload is started.
command_of() {
    case $1 in
    cuda) echo "$WORK/cuda -w" ;;
    device) echo "$WORK/device -w chain wide device" ;;
    features | cpp*) echo "$WORK/$1 -w" ;;
    loads) echo "$WORK/loads $WORK -w" ;;
    *) echo "python3 $MEANING/workload.py $1 -w" ;;
    esac
}

# one WORKLOAD WAY CUPTI: runs it, traced that way, with or without CUPTI in it.
one() {
    local name=$1 way=$2 with=$3 tag=$1-$2-$3 pid= tracer= target= status=0
    local run=$WORK/$tag
    mkfifo "$run.fifo"
    local environment=(env)
    [ "$with" = plain ] || environment=(env CUDA_INJECTION64_PATH="$WORK/cupti_log.so" CUPTI_LOG="$run.cupti")
    if [ "$way" = start ]; then
        # shellcheck disable=SC2046
        NVCAP_LOG=info timeout 200 "$NVCAP" --json -e "$FILTER" -o "$run.json" -- "${environment[@]}" $(command_of "$name") <"$run.fifo" >"$run.out" 2>"$run.err" &
        tracer=$!
    else
        # shellcheck disable=SC2046
        timeout 200 "${environment[@]}" $(command_of "$name") <"$run.fifo" >"$run.out" 2>"$run.err" &
        target=$!
    fi
    local feed
    exec {feed}>"$run.fifo"
    if ! wait_for '^ready' "$run.out" "${tracer:-$target}"; then
        exec {feed}>&-
        echo "it did not start: $(tail -n 1 "$run.err" | cut -c1-200)" >"$run.failed"
        return
    fi
    pid=$(sed -n 's/^pid //p' "$run.out")
    if [ -z "$tracer" ]; then
        local how=trap
        [ "$way" != observed ] || how=observe
        timeout 150 env NVCAP_LOG=info "$NVCAP" --how $how --json -e "$FILTER" -o "$run.json" -p "$pid" >"$run.trace" 2>&1 &
        tracer=$!
        wait_for 'process [0-9]* attached\(:\|$\)' "$run.trace" $tracer
    fi
    echo go >&"$feed"
    wait_for '^done' "$run.out" "${target:-$tracer}"
    if [ -n "$target" ]; then
        # As a user ends it. What a process submits at its end is none of its phases.
        pkill -INT -P $tracer -x nvcap
        wait "$tracer"
        status=$?
    fi
    echo end >&"$feed"
    exec {feed}>&-
    if [ -n "$target" ]; then wait "$target"; else wait "$tracer"; status=$?; fi
    # 5: complete, but not all understood; meaning.py says what.
    [ $status -eq 0 ] || [ $status -eq 5 ] || echo "nvcap's status $status: $(tail -n 1 "$run.trace" "$run.err" 2>/dev/null | tail -n 1 | cut -c1-250)" >"$run.failed"
}

# judge WORKLOAD WAY CUPTI [TRUTH]: TRUTH is the tag of the run that CUPTI saw, where that is another one.
judge() {
    local tag=$1-$2-$3 truth=${4:-$1-$2-$3}
    local what="$1, $2${4:+, without CUPTI}"
    if [ -e "$WORK/$tag.failed" ]; then row FAIL "$what" "$(cat "$WORK/$tag.failed")"; return; fi
    local pid
    pid=$(sed -n 's/^pid //p' "$WORK/$truth.out")
    printf '\n## %s\n' "$what" >>"$OUT/meaning.txt"
    # torch.profiler is on in `profiler` where CUPTI's log is not.
    local profiled=
    if [ "$3" = cupti ] || [ "$1" = profiler ]; then profiled=--profiled; fi
    python3 "$MEANING/meaning.py" "$WORK/$tag.json" "$WORK/$truth.cupti.$pid" "$WORK/$tag.out" -p "$WORK/$truth.out" $profiled >"$WORK/$tag.table" 2>&1
    local status=$?
    cat "$WORK/$tag.table" >>"$OUT/meaning.txt"
    grep -h 'images of GPU memory\|: names of ' "$WORK/$tag.trace" "$WORK/$tag.err" 2>/dev/null | sed 's/.*process/process/' >>"$OUT/meaning.txt"
    status_row $status "$what" "$(tail -n 1 "$WORK/$tag.table" | cut -c1-"$WIDTH")"
}

for name in "$@"; do
    echo "== $name ($(date -u +%T))"
    ways="start attached observed" plain="start attached observed"
    case $name in
    cuda | device | features | loads | cpp | cpp-*)
        [ -x "$WORK/$name" ] || { row FAIL "$name" "it was not built: nvcc's errors are above"; continue; }
        ;;
    graph | compile) ;;
    *)
        package=$name
        case $name in train | profiler) package=torch ;; generate | transformer) package=transformers ;; esac
        if ! python3 -c "import $package" 2>/dev/null; then row "NOT RUN" "$name" "no Python package $package here"; continue; fi
        ;;
    esac
    for way in $ways; do one "$name" "$way" cupti & done
    wait
    for way in $plain; do one "$name" "$way" plain & done
    wait
    for way in $ways; do judge "$name" "$way" cupti; done
    for way in $plain; do judge "$name" "$way" plain "$name-start-cupti"; done
done
echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
if [ -n "${KEEP:-}" ]; then (cd "$WORK" && tar cf - ./*.json ./*.cupti* ./*.out ./*.err ./*.trace 2>/dev/null | xz -2 -T0 >"$OUT/kept.tar.xz"); fi
rm -rf "$WORK"
[ "$failed" -eq 0 ]
