#!/bin/bash
# Twelve faults of the GPU (faults.cu), each by the trap, observed, from the recording, and by nvcap watch beside them: the kernel named, or among
# those named, and no other named alone; the page and the access where the kernel's log has them. A fault ends its own context and nothing else.
# Needs root, nvcc. bash DIR/faults.sh [trap observe watch]; writes to $OUT, prints rows.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
. "$HERE/common.sh"
nvcc -O1 -w -arch="sm_${ARCH:-90}" -o "$WORK/faults" "$HERE/faults.cu" || exit 1
MODES="write beyond read atomic free misaligned trap assert stack shared streams graph"

# told WHAT TEXT TRUTH: a row; TEXT is what nvcap says of the fault, TRUTH the program's line.
told() {
    local what=$1 text=$2 kernel page access result=ok
    kernel=$(sed -n 's/.*kernel=\([a-z_]*\).*/\1/p' <<<"$3")
    page=$(sed -n 's/.*page=\(0x[0-9a-f]*\).*/\1/p' <<<"$3")
    access=$(sed -n 's/.*access=\([a-z]*\).*/\1/p' <<<"$3")
    case $text in
    *"Xid "*" in $kernel("* | *"one of: "*"$kernel("*) ;;
    *) result=FAIL ;;
    esac
    # The kernel's log may lack it: then nothing may be said.
    case $text in
    *" the page at "*)
        grep -q "the page at ${page:-none}," <<<"$text" || result=FAIL
        grep -q "a $access \|an $access " <<<"$text" || result=FAIL
        ;;
    esac
    row $result "$what" "$(cut -c1-170 <<<"$text")"
}

section_traced() {
    local how=$1 mode truth verdict again status
    for mode in $MODES; do
        timeout 60 "$NVCAP" --how "$how" -q --force --record "$WORK/f.pcapng" -- "$WORK/faults" $mode >"$WORK/out" 2>"$WORK/err"
        status=$?
        truth=$(grep '^truth' "$WORK/err")
        verdict=$(sed -n 's/.*, and the GPU faulted: //p' "$WORK/err")
        [ $status -eq 6 ] || verdict="status $status instead of 6; $verdict"
        told "$how, $mode" "${verdict%%: [0-9]* submission*}" "$truth"
        again=$("$NVCAP" decode -q "$WORK/f.pcapng" 2>&1 | sed -n 's/.*, and the GPU faulted: //p')
        [ "$again" = "$verdict" ] || row FAIL "$how, $mode, decoded" "$again"
    done
}
section_trap() { section_traced trap; }
section_observe() { section_traced observe; }

section_watch() {
    local mode truth pid status without gone=0 said
    mkdir -p "$WORK/dumps"
    "$NVCAP" watch -a --fault --dir "$WORK/dumps" >"$WORK/watch" 2>"$WORK/watch.err" &
    local watch=$!
    wait_for "watching" "$WORK/watch.err" $watch || row FAIL watch "$(tail -n 1 "$WORK/watch.err")"
    for mode in $MODES; do
        "$WORK/faults" $mode >"$WORK/out" 2>"$WORK/err" &
        pid=$!
        wait $pid
        status=$?
        truth=$(grep '^truth' "$WORK/err")
        wait_for "^process $pid " "$WORK/watch" $watch
        said=$(grep "^process $pid " "$WORK/watch")
        case $said in
        # The log names the process, which was gone while another one was dumped: its kernel is not known.
        *"had ended before it could be dumped"*)
            gone=$((gone + 1))
            row ok "watch, $mode" "not dumped: $(cut -c1-140 <<<"$said")"
            ;;
        *) told "watch, $mode" "$said" "$truth" ;;
        esac
        [ $status -eq 1 ] || row FAIL "watch, $mode, its own status" "$status instead of 1"
    done
    # What bash starts beside itself ignores an interrupt.
    kill -TERM $watch
    wait $watch
    without=$(find "$WORK/dumps" -name 'nvcap-*.txt' | wc -l)
    [ $((without + gone)) -eq 12 ] || row FAIL "watch, dumps" "$without of $((12 - gone))"
}
[ $# -gt 0 ] || set -- trap observe watch
sections "$@"
[ "$failed" -eq 0 ]
