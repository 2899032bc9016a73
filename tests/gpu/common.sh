# What the scripts of this folder share. Sourced with HERE set and the sections as arguments: finds nvcap, makes $OUT and $WORK.
BIN=${BIN:-$HERE/bin}
[ -x "$BIN/nvcap" ] || BIN=$HERE/../bin
[ -x "$BIN/nvcap" ] || { echo "no nvcap in $HERE/bin or $HERE/../bin: make the bundle with cargo xtask gpu-bundle" >&2; exit 2; }
NVCAP=$(readlink -f "$BIN/nvcap")
# The traced commands write to folders of whoever runs this, also through sudo.
unset SUDO_UID SUDO_GID
OUT=${OUT:-$PWD/gpu-results}
WORK=$(mktemp -d)
mkdir -p "$OUT"
SUMMARY=$OUT/summary.txt
: >"$SUMMARY"
passed=0 failed=0 skipped=0
ARCH=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)

# row RESULT WHAT DETAIL: RESULT is ok, FAIL or why it did not run.
row() {
    case $1 in ok) passed=$((passed + 1)) ;; FAIL) failed=$((failed + 1)) ;; *) skipped=$((skipped + 1)) ;; esac
    printf '%-8s %-34s %s\n' "$1" "$2" "$3" | tee -a "$SUMMARY"
}
# status_row STATUS WHAT DETAIL: a row by an exit status.
status_row() { row "$([ "$1" -eq 0 ] && echo ok || echo FAIL)" "$2" "$3"; }
# check WHAT COMMAND...: a row by the command's status, with the last line it printed, at most $WIDTH of it.
check() {
    local what=$1 text status
    shift
    text=$("$@" 2>&1)
    status=$?
    [ -z "$text" ] || printf '%s\n' "$text" >>"$OUT/checks.txt"
    status_row $status "$what" "$(printf '%s\n' "$text" | tail -n 1 | cut -c1-"${WIDTH:-180}")"
}
# wait_for PATTERN FILE PID: until the file has the pattern, the process is gone, or a minute has passed.
wait_for() {
    local i
    for i in $(seq 1200); do
        grep -q "$1" "$2" 2>/dev/null && return 0
        kill -0 "$3" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}
# sections NAME...: runs them, and says how it went.
sections() {
    local section
    for section in "$@"; do
        echo "== $section ($(date -u +%T))"
        "section_$section"
    done
    echo "$passed passed, $failed failed, $skipped skipped ($(date -u +%T))" | tee -a "$SUMMARY"
}
# build_cupti_log FILE: the library that logs CUPTI's activity records (meaning/cupti_log.c), for CUDA_INJECTION64_PATH.
build_cupti_log() {
    local toolkit header library
    # Not through links, which could lead anywhere; the toolkit's own folder may be one.
    toolkit=$(readlink -f "${CUDA_HOME:-/usr/local/cuda}")
    header=$(find "$toolkit" -name cupti.h 2>/dev/null | head -n 1)
    library=$(find "$toolkit" -name libcupti.so 2>/dev/null | head -n 1)
    if [ -z "$header" ] || [ -z "$library" ]; then
        echo "no CUPTI: cupti.h or libcupti.so is not below $toolkit; set CUDA_HOME to the CUDA toolkit" >&2
        return 1
    fi
    # newest KIND: the newest record type of that kind in the header.
    newest() { grep -oh "CUpti_Activity$1[0-9]*" "$(dirname "$header")/cupti_activity.h" | sort -V | tail -n 1; }
    gcc -O1 -shared -fPIC -I"$(dirname "$header")" -DKERNEL="$(newest Kernel)" -DMEMCPY="$(newest Memcpy)" -DMEMSET="$(newest Memset)" \
        -o "$1" "$HERE/meaning/cupti_log.c" "$library" -Wl,-rpath,"$(dirname "$library")"
}
