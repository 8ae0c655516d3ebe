#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_rig.sh: the hosts that other tests build on are what hosts.sh says, and nothing of them is left.
set -u
. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"

echo=$DP_TEST_BUILDDIR/tests/hosts/echo
failures=0
complain() {
    echo "$*"
    failures=$((failures + 1))
}
field() { # NAME LINE...: the number behind the word
    name=$1
    shift
    while [ $# -gt 1 ]; do
        if [ "$1" = "$name" ]; then
            echo "${2%%.*}"
            return
        fi
        shift
    done
    echo 0
}
between() { # WHAT NUMBER LEAST MOST
    [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || complain "$1: $2, from $3 to $4 was expected"
}
ask() { # HOST ARGUMENTS OF echo: its line into $said
    on=$1
    shift
    said=$(hosts_run "$on" timeout 10 "$echo" "$@")
}

# ---- four hosts see each other, and nothing else ----
hosts_begin 4
for h in 1 2 3 4; do
    hosts_start $h serve$h "$echo" serve 7
done
for h in 1 2 3 4; do
    tries=100
    until grep -q serving "$hosts_work/serve$h.out" || [ $tries -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.05
    done
    [ "$(hosts_run $h uname -n)" = host$h ] || complain "host $h is called $(hosts_run $h uname -n)"
    [ "$(hosts_run $h pwd)" = "$PWD" ] || complain "host $h works in $(hosts_run $h pwd)"
    for other in 1 2 3 4; do
        ask $h udp "$(hosts_address $other)" 7 3
        between "from $h to $other" "$(field back $said)" 3 3
        [ ! -d /proc/sys/net/ipv6 ] || ask $h udp "$(hosts_address6 $other)" 7 3
        between "from $h to $other by IPv6" "$(field back $said)" 3 3
    done
done
spaces=$(for h in 1 2 3 4; do hosts_run $h readlink /proc/self/ns/pid; done | sort -u | wc -l)
[ "$spaces" -eq 4 ] || complain "the hosts have $spaces PID namespaces"
[ "$(hosts_run 1 readlink /proc/self/ns/pid)" != "$(readlink /proc/self/ns/pid)" ] || complain "host 1 is this host"
hosts_run 1 getent hosts host3 | grep -q '^10.77.0.3 ' || complain "host 1 does not know the name of host 3"
echo "10.77.0.2 db" >>"$hosts_work/names.1"
hosts_run 1 getent hosts db | grep -q '^10.77.0.2 ' || complain "a new name is not known"
hosts_run 2 getent hosts db && complain "it is known elsewhere"
hosts_run 1 sh -c ': >/dev/shm/mine' && hosts_run 2 test -e /dev/shm/mine && complain "/dev/shm is shared"
rest=$(hosts_rest 1)
case $rest in *"process on host 1: $echo serve 7"*"file on host 1: /dev/shm/mine"*) ;; *) complain "what is on host 1: $rest" ;; esac

# ---- cables ----
ask 1 tcp "$(hosts_address 2)" 7 20000000
between "bytes over a good cable" "$(field bytes $said)" 20000000 20000000
hosts_cable 2 delay=30
ask 1 udp "$(hosts_address 2)" 7 50
between "ms there and back with 30 ms each" "$(field least $said)" 60 110
ask 1 tcp "$(hosts_address 2)" 7 3000000
between "bytes with delay" "$(field bytes $said)" 3000000 3000000
ask 3 udp "$(hosts_address 1)" 7 50
between "ms between two others" "$(field least $said)" 0 25
hosts_cable 2 out.delay=40
ask 2 udp "$(hosts_address 1)" 7 50
between "ms with a delay of one direction" "$(field least $said)" 40 75
hosts_cable 2 loss=0.1 seed=7
ask 1 udp "$(hosts_address 2)" 7 1000
between "of 1000 with 10 % lost there and 10 % back" "$(field back $said)" 740 880
ask 1 tcp "$(hosts_address 2)" 7 300000
between "bytes with loss" "$(field bytes $said)" 300000 300000
hosts_cable 2 delay=20 reorder=0.25
ask 1 udp "$(hosts_address 2)" 7 400
between "late with reordering" "$(field late $said)" 50 350
between "back with reordering" "$(field back $said)" 400 400
hosts_cable 2 rate=80
ask 1 tcp "$(hosts_address 2)" 7 5000000
took=$(echo "$said" | sed -n 's/.*seconds \([0-9]*\)\.\([0-9]*\)$/\1\2/p' | sed 's/^0*//')
[ "${took:-0}" -ge 450 ] || complain "5 MB at 80 Mbit/s came in ${took:-0} ms: $said"
hosts_cable 2 out.loss=1
ask 1 udp "$(hosts_address 2)" 7 20
between "back from a host that cannot speak" "$(field back $said)" 0 0
hosts_cable 2
ask 1 udp "$(hosts_address 2)" 7 20
between "back over a cable that is good again" "$(field back $said)" 20 20

# ---- hosts that go ----
hosts_pull 3
ask 1 udp "$(hosts_address 3)" 7 5
between "back from a host without a cable" "$(field back $said)" 0 0
hosts_plug 3
ask 1 udp "$(hosts_address 3)" 7 5
between "back with the cable in again" "$(field back $said)" 5 5
hosts_stop 3
ask 1 udp "$(hosts_address 3)" 7 5
between "back from stopped processes" "$(field back $said)" 0 0
hosts_continue 3
ask 1 udp "$(hosts_address 3)" 7 5
between "back when they go on" "$(field back $said)" 5 8
hosts_freeze 4
ask 1 udp "$(hosts_address 4)" 7 5
between "back from a frozen host" "$(field back $said)" 0 0
hosts_thaw 4
hosts_crash 4
hosts_await serve4 5
[ "$status" != running ] && [ "$status" != 0 ] || complain "a program of a host that is gone: $status"
hosts_boot 4
hosts_start 4 again "$echo" serve 7
sleep 0.3
ask 1 udp "$(hosts_address 4)" 7 5
between "back from a host that is back" "$(field back $said)" 5 5

# ---- firewalls ----
hosts_firewall 4 drop 7
said=$(hosts_run 1 timeout 1 "$echo" tcp "$(hosts_address 4)" 7 100)
[ -z "$said" ] || complain "through a firewall that drops: $said"
hosts_firewall 4 reject 7
ask 1 tcp "$(hosts_address 4)" 7 100
[ "${said%% *}" = error ] || complain "through a firewall that rejects: $said"
ask 1 udp "$(hosts_address 4)" 7 5
between "back by UDP past the firewall" "$(field back $said)" 5 5
hosts_firewall 4 off
ask 1 tcp "$(hosts_address 4)" 7 100
between "without it" "$(field bytes $said)" 100 100

work=$hosts_work
hosts_end
[ -z "$(hosts_left)" ] || complain "left: $(hosts_left)"
[ ! -e "$work" ] || complain "$work is left"

# ---- two networks; a test that is killed leaves nothing either ----
hosts_begin 2 2
hosts_start 2 serve "$echo" serve 7
sleep 0.3
ask 1 udp "$(hosts_address 2 1)" 7 5
between "back on the second network" "$(field back $said)" 5 5
hosts_end
sh -c '. "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
    hosts_begin 2
    hosts_cable 1 delay=1
    hosts_start 2 sleeper sleep 1000
    sleep 0.2
    echo "$hosts_work $hosts_made" >"$0"
    kill -KILL $$' "$PWD/hosts.$$" 2>/dev/null
read -r work hosts_made <"$PWD/hosts.$$"
DP_TEST_HOSTS=$work
rm -rf "$PWD/hosts.$$" "$work"
[ -n "$hosts_made" ] || complain "the test that was to be killed did not begin"
tries=100
while [ -n "$(hosts_left)" ] && [ $tries -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
[ -z "$(hosts_left)" ] || complain "left by a test that was killed: $(hosts_left)"
[ $failures -eq 0 ]
