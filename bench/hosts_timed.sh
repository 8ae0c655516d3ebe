#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# hosts_timed.sh: two hosts made of namespaces, 5 ms and 1 Gbit/s between them: links measured by dualpipe bench-links, then steps that are
# simulated with them and executed (bench/hosts_timed). From the build folder, as root: sh ../bench/hosts_timed.sh [DELAY_MS [MBIT]]
set -u
DP_TEST_BUILDDIR=$PWD
DP_TEST_SRCDIR=$(cd "$(dirname "$0")/.." && pwd)
DUALPIPE_PLUGIN_PATH=$PWD/.libs
DUALPIPE_OFI_PROVIDER=${DUALPIPE_OFI_PROVIDER:-tcp}
export DUALPIPE_PLUGIN_PATH DUALPIPE_OFI_PROVIDER
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
delay=${1:-5}
rate=${2:-1000}
bytes=${BYTES:-125000}
failed=0

await_all() { # RANKS SECONDS
    for r in $(seq 0 $(($1 - 1))); do
        hosts_await "rank$r" "$2"
        [ "$status" = 0 ] || {
            cat "$hosts_work/rank$r.err"
            failed=1
        }
    done
}

hosts_begin 2
hosts_cable 2 delay="$delay" rate="$rate"
hosts_ranks 2 "$PWD/dualpipe" bench-links --bytes "$bytes" --output "$hosts_work/links.txt"
await_all 4 100
cat "$hosts_work/links.txt"
for method in ${METHODS:-dualpipe zb1p}; do
    hosts_ranks 2 "$PWD/bench/hosts_timed" "$hosts_work/links.txt" $method 20 "${UNIT_MS:-20}" "$bytes"
    await_all 4 200
    cat "$hosts_work/rank0.out"
done
hosts_end
exit $failed
