#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_addresses.sh: ranks of two hosts meet at any address of the host of rank 0, and when they cannot, each says in a
# sentence what is the matter.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"

rank=$DP_TEST_BUILDDIR/tests/hosts/host_rank
scale=${DUALPIPE_TIMEOUT_SCALE:-1} # of the limits, and so of the seconds in what ranks say
failures=0
complain() {
    echo "$case: $*"
    for file in "$hosts_work"/rank*.out "$hosts_work"/rank*.err; do
        [ ! -s "$file" ] || sed "s|^|    ${file##*/}: |" "$file"
    done
    failures=$((failures + 1))
}
begin() { # CASE MASTER_ADDR
    case=$1
    hosts_master=$2
    hosts_port=$((hosts_port + 1))
    hosts_ranks 1 env DP_TEST_JOIN="${join:-20}" "$rank" 3 1
}
meets() {
    for r in 0 1; do
        hosts_await rank$r 30
        [ "$status" = 0 ] && grep -q '^sum ' "$hosts_work/rank$r.out" || complain "rank $r: status $status"
    done
}
fails() { # RANK PATTERN
    hosts_await "rank$1" 30
    [ "$status" = 10 ] || complain "rank $1: status $status"
    grep -q "$2" "$hosts_work/rank$1.out" || complain "rank $1 does not say \"$2\""
}

hosts_port=29500
hosts_begin 2 2

# ---- where they can meet ----
begin "IPv4" "$(hosts_address 1)"
meets
begin "IPv4, the second interface" "$(hosts_address 1 1)"
meets
if [ -d /proc/sys/net/ipv6 ]; then
    begin "IPv6" "$(hosts_address6 1)"
    meets
    begin "IPv6 in brackets, the second interface" "[$(hosts_address6 1 1)]"
    meets
    echo "fd77:0::1 six" | tee -a "$hosts_work/names.1" >>"$hosts_work/names.2"
    begin "a name that has an IPv6 address alone" six
    meets
fi
begin "a name" host1
meets

# ---- where they cannot ----
join=2
cp "$hosts_work/names.1" "$hosts_work/names"
sed 's/^10.77.0.1 host1$/127.0.1.1 host1/' "$hosts_work/names" >"$hosts_work/names.1"
begin "the name is loopback on rank 0's host" host1
fails 0 'of 2 ranks these did not reach 127.0.1.1:.*: 1; "host1" is a name of loopback on this host, and only ranks of the same host (here host1) can meet there: for others MASTER_ADDR has to be'
fails 1 "waited $((join * scale)) s for rank 0 at 10.77.0.1:.*: Connection refused (nobody listens there"
cp "$hosts_work/names" "$hosts_work/names.1"
sed 's/^10.77.0.1 host1$/127.0.1.1 host1/' "$hosts_work/names" >"$hosts_work/names.2"
begin "the name is loopback on the other host" host1
fails 0 'of 2 ranks these did not reach 10.77.0.1:.*: 1$'
fails 1 'for rank 0 at 127.0.1.1:.*: Connection refused (nobody.*; "host1" is a name of loopback on this host, and only ranks of the same host (here host2) can meet there'
cp "$hosts_work/names" "$hosts_work/names.2"
begin "loopback" 127.0.0.1
fails 0 'did not reach 127.0.0.1:.*: 1; only ranks of the same host (here host1) can meet there'
fails 1 'at 127.0.0.1:.*; only ranks of the same host (here host2) can meet there'
begin "an address of the other host" "$(hosts_address 2)"
fails 0 'rank 0 cannot listen at 10.77.0.2:.*MASTER_ADDR must be an address of the host that rank 0 runs on'
fails 1 'for rank 0 at 10.77.0.2:.*: Connection refused (nobody listens there'
begin "a name that nobody knows" nowhere.invalid
fails 0 'the address of rank 0, "nowhere.invalid": .*; MASTER_ADDR has to be a name or an address that is known on every host'
fails 1 'the address of rank 0, "nowhere.invalid": '

# ---- firewalls ----
hosts_firewall 1 drop $((hosts_port + 1))
join=7 # what nobody answers is given up after 5 s
begin "a firewall that drops" "$(hosts_address 1)"
fails 0 'of 2 ranks these did not reach 10.77.0.1:.*: 1$'
fails 1 'for rank 0 at 10.77.0.1:.*: no answer (is that host up, and does a firewall let the port through?)'
hosts_firewall 1 reject $((hosts_port + 1))
join=2
begin "a firewall that rejects" "$(hosts_address 1)"
fails 0 'of 2 ranks these did not reach 10.77.0.1:.*: 1$'
fails 1 'for rank 0 at 10.77.0.1:.*: No route to host (there is no way to that address from here, or a firewall turns us away)'
hosts_firewall 1 off
hosts_pull 2
join=7
begin "no cable" "$(hosts_address 1)"
fails 0 'of 2 ranks these did not reach 10.77.0.1:.*: 1$'
fails 1 'for rank 0 at 10.77.0.1:.*\(no answer (is that host up\|No route to host (there is no way\)'
hosts_plug 2

# ---- a secret is asked for, and an address of another host takes one ----
join=5
echo "the secret of another job" >"$hosts_work/other"
chmod 600 "$hosts_work/other"
case="different secrets"
hosts_port=$((hosts_port + 1))
hosts_ranks 1 sh -c '[ $RANK = 0 ] || export DUALPIPE_SECRET_FILE="$2"; exec env DP_TEST_JOIN=3 "$1" 3 1' sh "$rank" "$hosts_work/other"
fails 1 'rank 1 was refused by rank 0 at 10.77.0.1:.*another secret'
fails 0 'these did not reach .*: 1; one that called itself rank 1 did not hold the secret'
case="no secret"
hosts_port=$((hosts_port + 1))
hosts_ranks 1 env -u DUALPIPE_SECRET_FILE "$rank" 3 1
fails 0 'is not an address of this host alone, and the job has no secret'
fails 1 'is not an address of this host alone, and the job has no secret'

[ $failures -eq 0 ]
