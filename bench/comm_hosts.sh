#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# comm_hosts.sh: comm_ofi between two hosts made of namespaces, over tcp: messages of 4 MiB beside a bare socket, 8 bytes
# one way beside the provider's own ping-pong (fi_pingpong of Debian's libfabric-bin). All in turn, ROUNDS times, each
# side on a separate core; medians. Wanted: 4 MiB at 0.9 of the socket or better, 8 bytes at 1.3 of fi_pingpong or less.
# FIGURES=FILE keeps every batch. From the build folder, as root, after "make benches tests/hosts/cable": sh ../bench/comm_hosts.sh [ROUNDS]
set -u
DP_TEST_BUILDDIR=$PWD
DP_TEST_SRCDIR=$(cd "$(dirname "$0")/.." && pwd)
DUALPIPE_PLUGIN_PATH=$PWD/.libs
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_PLUGIN_PATH DUALPIPE_OFI_PROVIDER
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
command -v fi_pingpong >/dev/null 2>&1 || hosts_skip "there is no fi_pingpong (Debian: libfabric-bin)"
bench=$PWD/bench/comm_hosts
# up to libfabric 1.17 the layer above tcp has to be named
provider=tcp
fi_info -p tcp -t FI_EP_RDM 2>/dev/null | grep -q 'provider: tcp$' || provider='tcp;ofi_rxm'

finish() { # NAME...
    for name; do
        hosts_await "$name" 60
        [ "$status" = 0 ] || {
            echo "comm_hosts: $name: $status: $(cat "$hosts_work/$name.err")"
            exit 1
        }
    done
}

measure_ours() {
    hosts_ranks 1 "$bench" rank comm_ofi
    finish rank0 rank1
    sed 's/^/ours /' "$hosts_work/rank0.out"
}

measure_socket() {
    hosts_start 1 first taskset -c 0 "$bench" socket 7000
    hosts_start 2 second taskset -c 1 "$bench" socket 7000 "$(hosts_address 1)"
    finish first second
    sed 's/^/socket /' "$hosts_work/first.out"
}

measure_provider() {
    hosts_start 1 first taskset -c 0 fi_pingpong -p "$provider" -e rdm -I 20000 -S 8
    sleep 0.5
    hosts_start 2 second taskset -c 1 fi_pingpong -p "$provider" -e rdm -I 20000 -S 8 "$(hosts_address 1)"
    finish first second
    awk '$1 == 8 { printf "provider latency %.9f\n", $(NF - 1) * 1e-6 }' "$hosts_work/second.out"
}

hosts_begin 2
for round in $(seq "${1:-5}"); do
    measure_ours
    measure_socket
    measure_provider
done >"$hosts_work/figures" || { cat "$hosts_work/figures"; exit 1; }

median() { # WHO WHAT
    sed -n "s/^$1 $2 //p" "$hosts_work/figures" | sort -g | awk '{ v[NR] = $1 } END { print v[int(NR / 2) + 1] }'
}
echo "machine  $(sed -n 's/^model name.*: //p;T;q' /proc/cpuinfo), $(nproc) cores, $(uname -sr), load average $(cut -d' ' -f1 /proc/loadavg)"
awk -v ours="$(median ours rate)" -v socket="$(median socket rate)" -v o="$(median ours latency)" -v s="$(median socket latency)" \
    -v p="$(median provider latency)" 'BEGIN {
    printf "4 MiB: comm_ofi %.2f GB/s, a bare socket %.2f GB/s: ratio %.2f (wanted: 0.90 or more)\n", ours / 1e9, socket / 1e9, ours / socket
    printf "8 bytes, one way: comm_ofi %.2f us, fi_pingpong %.2f us: ratio %.2f (wanted: 1.30 or less); a bare socket, blocking %.2f us\n",
        o * 1e6, p * 1e6, o / p, s * 1e6
}'
[ -z "${FIGURES:-}" ] || cp "$hosts_work/figures" "$FIGURES"
hosts_end
