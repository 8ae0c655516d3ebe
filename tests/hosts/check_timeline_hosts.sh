#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_timeline_hosts.sh: the trace of a job over hosts whose clocks are a day apart is one time line with a bound that
# holds; the report says how fast messages went between hosts; dualpipe bench-links measures both kinds of links.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
[ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] || hosts_skip "this build has no comm_ofi"
unshare --time --monotonic 86400 --fork true 2>/dev/null || hosts_skip "this kernel gives namespaces no separate clock"
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER
lines="--steps 3 --val-every 3 --sample 0 --microbatches 12 --trace-steps 2 --quiet"

hosts_clocks='0 86400 3600'
hosts_begin 3
trap 'hosts_end; rm -rf "$work"' EXIT
await_all() { # RANKS WHAT
    for r in $(seq 0 $(($1 - 1))); do
        hosts_await "rank$r" $((60 * scale))
        cp "$hosts_work/rank$r.err" "$work/err"
        [ "$status" = 0 ] || complain "$2: rank $r: exit status $status"
    done
    cp "$hosts_work/rank0.out" "$work/out"
}
# A cable that takes 3 ms more one way than the other: half the round trip would be wrong by 1.5 ms.
hosts_cable 2 out.delay=3
hosts_ranks 2 "$train" $small $lines --trace "$work/trace.json" --report "$work/report"
await_all 6 "a trace of three hosts"
awk -f "$DP_TEST_SRCDIR/tests/hosts/arrivals.awk" "$work/trace.json" || complain "the trace is not one time line"
cp "$work/report" "$work/out"
status=0
for h in 1 2; do
    expect 0 out "^clocks  *times of host $h are right to [0-9.]* ms; its clock drifts by " "the report"
done
for way in '0 to 1' '1 to 0' '1 to 2' '2 to 1'; do
    expect 0 out "^transfers  *host $way: [0-9]* messages of [0-9.]* MB, " "the report"
done
tr '\n' ' ' <"$work/report" | tr -s ' ' >"$work/out" # lines are broken at 80 columns
expect 0 out ' waited for [0-9.]* ms, [0-9.]* MB/s ' "the report"

hosts_ranks 2 "$dualpipe" bench-links --bytes 65536 --output "$work/links"
await_all 6 "bench-links"
expect 0 links '^HOSTS=0,0,1,1,2,2$' "bench-links"
[ "$(grep -c '^# ranks .* comm_shm: 8 bytes in [0-9.]* ms, [0-9.]* MB/s$' "$work/links")" -eq 3 ] || complain "a link within each host"
[ "$(grep -c '^# ranks .* comm_ofi: 8 bytes in [0-9.]* ms, [0-9.]* MB/s$' "$work/links")" -eq 3 ] || complain "a link for every two hosts"
# Two of three far links are over the slow cable: a message there and back takes at least 3 ms, one way half of it.
awk -F= '/^FAR.HOP/ { far = $2 } /^NEAR.HOP/ { near = $2 } END { exit !(far >= 1.4 && near > 0 && near < far) }' "$work/links" ||
    complain "the delay of the cable is not in the links: $(grep HOP "$work/links" | tr '\n' ' ')"
hosts_end

for command in "simulate --method dualpipe" compare "search --seconds 1"; do
    status=0
    # shellcheck disable=SC2086
    "$dualpipe" $command --ranks 6 --microbatches 12 --cost F=10,I=10,W=10,BYTES=65536 --topology "$work/links" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq 0 ] || complain "$command with what was measured: exit status $status"
done
finish
