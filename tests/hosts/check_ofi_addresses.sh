#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_ofi_addresses.sh: comm_ofi passes between two hosts over the way to MASTER_ADDR or over the interface that it is told, by name
# or by address; where that cannot be, a rank says in a sentence what is the matter and what to set.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
[ -f "$DP_TEST_BUILDDIR/.libs/dp_comm_ofi.so" ] || hosts_skip "this build has no comm_ofi"
failures=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_PORT DUALPIPE_LAUNCH DUALPIPE_OFI_INTERFACE
DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER

hosts_begin 2 2
MASTER_ADDR=$(hosts_address 1)
DUALPIPE_SECRET_FILE=$hosts_work/secret
export MASTER_ADDR DUALPIPE_SECRET_FILE hosts_work
# launch N COMMAND...: rank 0 on host 1, rank 1 on host 2, with $hosts_work/only before that one's command.
cat >"$hosts_work/launch" <<'END'
#!/bin/sh
shift
enter() { # RANK COMMAND...
    pid=$(cat "$hosts_work/pid.$(($1 + 1))") rank=$1
    shift
    exec nsenter -t "$pid" -m -u -i -n -p --wd -- env RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 "$@"
}
(enter 0 "$@") &
first=$!
worst=0
(enter 1 $(cat "$hosts_work/only") "$@") || worst=$?
wait $first || worst=$?
exit $worst
END
chmod +x "$hosts_work/launch"

complain() {
    echo "$case: $*"
    cut -c 1-400 "$hosts_work/out" | head -20
    failures=$((failures + 1))
}
try() { # VARIABLE=VALUE... for all
    env "$@" "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --mode processes --launch "$hosts_work/launch %d" --plugin comm_ofi \
        messages_arrive_in_order_and_whole >"$hosts_work/out" 2>&1 9>&-
}
received() { # INTERFACE: bytes that host 2 has received there
    hosts_run 2 awk -v at="$1:" '$1 == at { print $2 }' /proc/net/dev
}
passes() { # NAME INTERFACE VARIABLES...: most of it comes by that interface
    case=$1 by=$2 beside=eth$((1 - ${2#eth}))
    shift 2
    : >"$hosts_work/only"
    before=$(($(received "$by") - $(received "$beside")))
    try "$@" || complain "fails"
    more=$(($(received "$by") - $(received "$beside") - before))
    [ "$more" -gt 100000 ] || complain "by $by came $more bytes more than by $beside"
}
fails() { # NAME FOR_RANK_1 SENTENCE VARIABLES...
    case=$1 sentence=$3
    echo "$2" >"$hosts_work/only"
    shift 3
    ! try "$@" || complain "passes"
    grep -q "$sentence" "$hosts_work/out" || complain "nobody says \"$sentence\""
}

passes "the way to rank 0" eth0 A=
passes "the second interface by its name" eth1 DUALPIPE_OFI_INTERFACE=eth1
fails "an address of one host alone" '' \
    "DUALPIPE_OFI_INTERFACE=10.77.1.1 names no interface that libfabric's provider tcp can use: fi_info lists them by domain" \
    DUALPIPE_OFI_INTERFACE=10.77.1.1
fails "loopback on one of the hosts" 'env DUALPIPE_OFI_INTERFACE=lo' \
    'ranks [01] and [01] are on different hosts, but rank 1 has a loopback address, which nobody else can reach: set DUALPIPE_OFI_INTERFACE' A=
# Host 2 has an address on eth0 before that interface runs; until then eth1 leads to it.
case="an interface that comes late"
hosts_run 1 ip route replace 10.77.0.2/32 dev eth1 src 10.77.0.1
hosts_run 2 ip route replace 10.77.0.1/32 dev eth1 src 10.77.0.2
hosts_switch 'ip link set p2n0 down'
fails "an interface that does not run" '' 'rank 1 has a loopback address, which nobody else can reach (libfabric does not list 10.77.0.2, its address towards rank 0: is that interface up?)' \
    FI_TCP_IFACE=eth0 DUALPIPE_TIMEOUT_SCALE=0.1
: >"$hosts_work/only"
{
    sleep 2
    hosts_switch 'ip link set p2n0 up'
} &
late=$!
try FI_TCP_IFACE=eth0 || complain "fails"
wait $late
hosts_run 1 ip route del 10.77.0.2/32
hosts_run 2 ip route del 10.77.0.1/32

fails "no such provider" '' 'offers no provider "nonesuch" with one-sided writes' DUALPIPE_OFI_PROVIDER=nonesuch
fails "a filter of libfabric's" '' 'and offers no others with FI_PROVIDER=verbs: see fi_info' DUALPIPE_OFI_PROVIDER= FI_PROVIDER=verbs
case="two ranks and one port"
hosts_run 1 env FI_TCP_PORT_LOW_RANGE=41000 FI_TCP_PORT_HIGH_RANGE=41000 "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" \
    --mode processes --plugin comm_ofi messages_arrive_in_order_and_whole >"$hosts_work/out" 2>&1 9>&- && complain "passes"
grep -q 'cannot open an endpoint: .* (no port is free: net.ipv4.ip_local_port_range has them, or FI_TCP_PORT_LOW_RANGE' "$hosts_work/out" ||
    complain "nobody says which ports there are"
fails "another provider on one of the hosts" 'env DUALPIPE_OFI_PROVIDER=sockets' \
    'rank [01] uses libfabric provider .*, rank [01] uses .*: set DUALPIPE_OFI_PROVIDER to the same on all hosts' A=

# rank 0's port is let through, those of the transport are not
case="a firewall"
unset MASTER_ADDR DUALPIPE_SECRET_FILE
train=$DP_TEST_BUILDDIR/apps/train_moe/train_moe
if [ -x "$train" ]; then
    hosts_port=29500
    hosts_firewall 1 drop 32768-60999
    hosts_ranks 1 env DUALPIPE_HANG_TRACE= DUALPIPE_TIMEOUT_SCALE="$(awk "BEGIN { print 0.4 * ${DUALPIPE_TIMEOUT_SCALE:-1} }")" \
        "$train" --layers 2 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --microbatches 4 --steps 3 \
        --val-every 0 --sample 0
    for r in 0 1; do
        hosts_await rank$r 60
        cp "$hosts_work/rank$r.err" "$hosts_work/out"
        [ "$status" = 14 ] || complain "rank $r: status $status"
        grep -q 'group .*: no way \(to\|from\) rank [01] by tcp.* at eth0 (10.77.0.[12]) (a firewall? ports that the system gives out have to be open): ' \
            "$hosts_work/out" || complain "rank $r does not say what is the matter"
    done
fi

hosts_end
echo "$failures failures"
[ "$failures" -eq 0 ]
