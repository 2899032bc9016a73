#!/bin/sh
# The C linker for cargo (see .cargo/config.toml). rustup brings none, and without one not even xtask, which installs all
# else, can be built: so a machine that has none gets it here, or is told what to type.
set -eu
tell() {
    # cargo shows what a linker says only when it fails.
    if [ -t 2 ] || ! echo "nvcap: $1" 2>/dev/null >/dev/tty; then echo "nvcap: $1" >&2; fi
}
if ! command -v cc >/dev/null; then
    install="apt-get update && apt-get install --no-install-recommends gcc libc6-dev"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        tell "there is no C linker (cc), which Rust needs; type: sudo sh -c '$install', or install your system's gcc"
        exit 1
    fi
    exec 9<"$0"
    flock 9
    if ! command -v cc >/dev/null; then
        tell "there is no C linker (cc), which Rust needs; installing gcc and libc6-dev"
        export DEBIAN_FRONTEND=noninteractive
        {
            apt-get -qq update
            apt-get -qq -y --no-install-recommends install gcc libc6-dev
        } >&2
    fi
    exec 9<&-
fi
exec cc "$@"
