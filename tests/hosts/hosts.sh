# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# hosts.sh: hosts made of namespaces (network, PID, mount, host name, IPC), joined by veth pairs to a bridge; for tests
# in sh.
#
#   . "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
#   hosts_begin 4                     hosts 1 to 4, called host1 to host4; exit status 77 where that is not possible.
#   hosts_begin 2 2                   the same with two networks: eth0 and eth1
#   hosts_clocks='0 86400'            before hosts_begin: by how many seconds each host's clock is ahead of this machine's
#   hosts_address 2 [NET]             prints 10.77.NET.2; hosts_address6: fd77:NET::2; eth0 is network 0
#   hosts_run 2 COMMAND...            runs it there and waits. $PWD, /tmp and the environment are those of the test
#   hosts_start 2 NAME COMMAND...     the same in the background, with $hosts_work/NAME.out and .err
#   hosts_await NAME SECONDS          sets $status to its exit status, "running" after that many seconds, which
#                                     DUALPIPE_TIMEOUT_SCALE makes longer, as it does the limits of the ranks
#   hosts_ranks N COMMAND...          N ranks on every host, as NAMEs rank0, rank1...: by blocks, told by MASTER_ADDR
#                                     (host 1; or $hosts_master), MASTER_PORT, RANK, ... and a secret
#   hosts_rsh                         prints what `dualpipe run --rsh` takes: it enters host3 and runs a line of shell
#   hosts_rank 2 5                    prints the process, as this machine numbers it, that is rank 5 on host 2
#   hosts_cable 2 delay=5 loss=0.01   what its cable (eth0) does to frames, in both directions, or in one:
#                                     out.loss=1 nothing leaves, in.loss=1 nothing arrives. Call again to change it;
#                                     "hosts_cable 2" alone: a good cable again. All words are in cable.c: delay and
#                                     jitter (ms), loss and reorder (share), rate (Mbit/s), limit (frames), seed.
#                                     It is a program that stands between port and bridge: not every kernel has netem
#   hosts_pull 2, hosts_plug 2        its cable (all networks): ip link down and up
#   hosts_stop 2, hosts_continue 2    SIGSTOP to all its processes; its kernel goes on answering
#   hosts_freeze 2, hosts_thaw 2      the same, and its kernel is silent as well: a machine that stands still
#   hosts_crash 2, hosts_boot 2       gone from one moment to the next, without a FIN; back with the same addresses
#   hosts_firewall 2 drop|reject PORT what comes from outside to that TCP port; hosts_firewall 2 off
#   $hosts_work/names.2               the /etc/hosts of host 2: change it with "echo ... >>" or "cp"
#   hosts_end                         all goes away. Done at exit (a custom trap on EXIT has to call it), and by
#                                     the kernel when the test is killed: each host's process 1 reads from a pipe
#                                     that the test holds open as descriptor 9
#   hosts_rest 2                      prints what a job has left there: processes, files in /dev/shm
#   hosts_left                        prints what is left of hosts of this test, after hosts_end
#
# A host is told by boot id and PID namespace (libdualpipe/group/machine.c). /dev/shm is each host's own.

hosts_skip() {
    echo "skipped: $*"
    exit 77
}

hosts_begin() { # HOSTS [NETWORKS]
    hosts_count=$1
    hosts_networks=${2:-1}
    for hosts_tool in ip unshare nsenter mount mkfifo; do
        command -v $hosts_tool >/dev/null 2>&1 || hosts_skip "there is no command $hosts_tool (Debian: iproute2, util-linux)"
    done
    [ "$(id -u)" = 0 ] || hosts_skip "namespaces take root"
    [ -x "$DP_TEST_BUILDDIR/tests/hosts/cable" ] || {
        echo "hosts: there is no tests/hosts/cable: make it first"
        exit 1
    }
    hosts_work=$(mktemp -d)
    hosts_made=
    hosts_jobs=
    DP_TEST_HOSTS=$hosts_work
    export DP_TEST_HOSTS
    trap hosts_end EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$hosts_work/secret"
    chmod 600 "$hosts_work/secret"
    mkfifo "$hosts_work/alive"
    exec 9<>"$hosts_work/alive"
    hosts_enter 0
    hosts_switch 'for net in $(seq 0 $1); do
            ip link add br$net type bridge stp_state 0 forward_delay 0 mcast_snooping 0 && ip link set br$net up || exit 1
        done' $((hosts_networks - 1)) || hosts_skip "this kernel makes no bridge here"
    for hosts_h in $(seq "$hosts_count"); do
        hosts_boot "$hosts_h"
    done
}

# Options of unshare for the clock of a host, which nsenter (-T) has to enter as well.
hosts_clock() { # HOST
    # shellcheck disable=SC2086
    hosts_ahead=$(printf '%s\n' 0 ${hosts_clocks:-} | sed -n "$(($1 + 1))p")
    [ -z "${hosts_clocks:-}" ] || echo "--time --monotonic ${hosts_ahead:-0} --boottime ${hosts_ahead:-0}"
}

# Process 1 of a new set of namespaces; it ends, and with it all others, when the test no longer holds the pipe.
hosts_enter() { # HOST; 0: where the bridge is
    rm -f "$hosts_work/up.$1"
    {
        # shellcheck disable=SC2016
        # shellcheck disable=SC2046
        unshare $(hosts_clock "$1") --net --pid --mount --uts --ipc --fork --kill-child=KILL --mount-proc sh -c '
            trap "" CHLD # children that nobody waits for go away by themselves
            echo "host$1" >/proc/sys/kernel/hostname && mount -t tmpfs tmpfs /dev/shm && ip link set lo up || exit 1
            [ "$1" != 0 ] || echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null
            { [ "$1" = 0 ] || mount --bind "$2/names.$1" /etc/hosts; } && echo up >"$2/up.$1" && exec cat "$2/alive"
            ' hosts "$1" "$hosts_work" </dev/null >/dev/null 2>"$hosts_work/why.$1" &
        echo $! >"$hosts_work/unshare.$1"
    } 9>&-
    hosts_jobs="$hosts_jobs $(cat "$hosts_work/unshare.$1")"
    hosts_tries=200
    until [ -s "$hosts_work/up.$1" ]; do
        hosts_tries=$((hosts_tries - 1))
        if [ $hosts_tries -eq 0 ] || ! kill -0 "$(cat "$hosts_work/unshare.$1")" 2>/dev/null; then
            hosts_skip "no namespaces here: $(tr '\n' ' ' <"$hosts_work/why.$1")"
        fi
        sleep 0.05
    done
    hosts_unshare=$(cat "$hosts_work/unshare.$1")
    read -r hosts_pid _ <"/proc/$hosts_unshare/task/$hosts_unshare/children"
    echo "$hosts_pid" >"$hosts_work/pid.$1"
    hosts_made="$hosts_made $(readlink "/proc/$hosts_pid/ns/pid") $(readlink "/proc/$hosts_pid/ns/net")"
}

# In the network of the bridge alone: ip has to find the hosts by their process numbers.
hosts_switch() { # SCRIPT ARGUMENTS...
    hosts_script=$1
    shift
    nsenter -t "$(cat "$hosts_work/pid.0")" -n -- sh -c "$hosts_script" switch "$@" 9>&-
}

hosts_boot() { # HOST
    {
        printf '127.0.0.1 localhost\n::1 localhost\n'
        for hosts_other in $(seq "$hosts_count"); do
            printf '10.77.0.%d host%d\n' "$hosts_other" "$hosts_other"
        done
    } >"$hosts_work/names.$1"
    hosts_enter "$1"
    for hosts_net in $(seq 0 $((hosts_networks - 1))); do
        hosts_switch 'ip link add p$1n$3 address 02:00:00:00:$(printf %02x $3):8$1 type veth \
                peer name eth$3 address 02:00:00:00:$(printf %02x $3):0$1 netns "$2" &&
            ip link set p$1n$3 master br$3 up' "$1" "$hosts_pid" "$hosts_net" || hosts_skip "this kernel makes no veth pair here"
        hosts_run "$1" sh -c 'ip addr add 10.77.$1.$2/24 dev eth$1 && ip link set eth$1 up &&
            { ip addr add fd77:$1::$2/64 dev eth$1 nodad || [ ! -d /proc/sys/net/ipv6 ]; }' sh "$hosts_net" "$1" || exit 1
    done
    # the table of rules begins with that of local addresses; hosts_firewall has to come before it
    hosts_run "$1" sh -c 'ip rule add pref 100 lookup local && ip rule del pref 0
        { ip -6 rule add pref 100 lookup local && ip -6 rule del pref 0; } 2>/dev/null
        echo 0 >/proc/sys/net/ipv4/ip_early_demux
        echo 1 >/proc/sys/net/ipv4/tcp_orphan_retries'
}

hosts_address() {
    echo "10.77.${2:-0}.$1"
}
hosts_address6() {
    echo "fd77:${2:-0}::$1"
}

hosts_run() { # HOST COMMAND...
    hosts_where=$(cat "$hosts_work/pid.$1")
    shift
    nsenter -t "$hosts_where" -m -u -i -n -p ${hosts_clocks:+-T} --wd -- "$@" 9>&-
}

hosts_start() { # HOST NAME COMMAND...
    hosts_on=$1
    hosts_name=$2
    shift 2
    rm -f "$hosts_work/$hosts_name.status"
    {
        hosts_run "$hosts_on" "$@" >"$hosts_work/$hosts_name.out" 2>"$hosts_work/$hosts_name.err" </dev/null
        echo $? >"$hosts_work/$hosts_name.status.new"
        mv "$hosts_work/$hosts_name.status.new" "$hosts_work/$hosts_name.status"
    } 9>&- 2>/dev/null &
    hosts_jobs="$hosts_jobs $!"
}

hosts_await() { # NAME SECONDS
    hosts_until=$(($(date +%s%N) / 1000000 + $2 * ${DUALPIPE_TIMEOUT_SCALE:-1} * 1000))
    while [ ! -e "$hosts_work/$1.status" ] && [ $(($(date +%s%N) / 1000000)) -lt $hosts_until ]; do
        sleep 0.05
    done
    status=running
    [ ! -e "$hosts_work/$1.status" ] || status=$(cat "$hosts_work/$1.status")
}

hosts_ranks() { # RANKS_PER_HOST COMMAND...
    hosts_each=$1
    shift
    for hosts_r in $(seq 0 $((hosts_count * hosts_each - 1))); do
        hosts_start $((hosts_r / hosts_each + 1)) "rank$hosts_r" env RANK="$hosts_r" \
            WORLD_SIZE=$((hosts_count * hosts_each)) LOCAL_RANK=$((hosts_r % hosts_each)) \
            MASTER_ADDR="${hosts_master:-$(hosts_address 1)}" MASTER_PORT="${hosts_port:-29500}" \
            DUALPIPE_SECRET_FILE="$hosts_work/secret" "$@"
    done
}

# What ssh does, by way of the kernel.
hosts_rsh() {
    cat >"$hosts_work/enter" <<END
#!/bin/sh
number=\${1#host}
shift
exec nsenter -t "\$(cat "$hosts_work/pid.\$number")" -m -u -i -n -p --wd -- sh -c "\$*"
END
    chmod +x "$hosts_work/enter"
    echo "$hosts_work/enter"
}

# Not those that it has started.
hosts_rank() { # HOST RANK
    for hosts_proc in $(hosts_inside pid "$(hosts_space "$1")"); do
        if grep -q -s -z -x "RANK=$2" "/proc/$hosts_proc/environ" &&
            ! grep -q -s -z -x "RANK=$2" "/proc/$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$hosts_proc/status")/environ"; then
            echo "$hosts_proc"
            return
        fi
    done
}

# ---- faults ----

hosts_cable() { # HOST WORDS...
    hosts_on=$1
    shift
    echo "$*" >"$hosts_work/cable.$hosts_on.new"
    mv "$hosts_work/cable.$hosts_on.new" "$hosts_work/cable.$hosts_on"
    if [ -e "$hosts_work/cable.$hosts_on.pid" ] && kill -HUP "$(cat "$hosts_work/cable.$hosts_on.pid")" 2>/dev/null; then
        :
    else
        # The port leaves the bridge for one end of the cable; the other is what the bridge sees from now on.
        hosts_switch 'ip link add a$1 type veth peer name b$1 && ip link set a$1 up && ip link set b$1 up master br0 &&
            ip link set p$1n0 nomaster' "$hosts_on" || exit 1
        {
            nsenter -t "$(cat "$hosts_work/pid.0")" -n -- "$DP_TEST_BUILDDIR/tests/hosts/cable" \
                "p${hosts_on}n0" "a$hosts_on" "$hosts_work/cable.$hosts_on" "$hosts_work/alive" \
                </dev/null >"$hosts_work/cable.$hosts_on.log" 2>&1 &
            echo $! >"$hosts_work/cable.$hosts_on.pid"
        } 9>&-
        hosts_jobs="$hosts_jobs $(cat "$hosts_work/cable.$hosts_on.pid")"
    fi
    hosts_tries=100
    while [ -e "$hosts_work/cable.$hosts_on" ]; do # it takes the file away when it has read it
        hosts_tries=$((hosts_tries - 1))
        if [ $hosts_tries -eq 0 ]; then
            echo "hosts: the cable of host $hosts_on: $(cat "$hosts_work/cable.$hosts_on.log")"
            exit 1
        fi
        sleep 0.02
    done
}

hosts_ports() { # HOST WORDS...: for the ports of all its networks
    hosts_on=$1
    shift
    for hosts_net in $(seq 0 $((hosts_networks - 1))); do
        hosts_switch 'port=$1; shift; ip link set $port "$@"' "p${hosts_on}n$hosts_net" "$@"
    done
}
hosts_pull() {
    hosts_ports "$1" down
}
hosts_plug() {
    hosts_ports "$1" up
}

# Numbers of the processes whose namespace (pid, net, pid_for_children) is that one.
hosts_inside() { # KIND SPACE
    # shellcheck disable=SC2012
    ls -l /proc/[0-9]*/ns/"$1" 2>/dev/null | sed -n "s|.* /proc/\([0-9]*\)/ns/$1 -> $(echo "$2" | sed 's/[][]/\\&/g')\$|\1|p"
}
hosts_space() { # HOST
    readlink "/proc/$(cat "$hosts_work/pid.$1")/ns/pid"
}
hosts_signal() { # HOST SIGNAL: to all its processes but the first
    for hosts_proc in $(hosts_inside pid "$(hosts_space "$1")"); do
        [ "$hosts_proc" = "$(cat "$hosts_work/pid.$1")" ] || kill -s "$2" "$hosts_proc" 2>/dev/null
    done
    # each nsenter stops with the process that it waits for
    # shellcheck disable=SC2046
    [ "$2" != CONT ] || kill -s CONT $(hosts_guards "$(hosts_space "$1")") 2>/dev/null
}
# Processes outside whose children live in that PID namespace: they have to take in those that end.
hosts_guards() { # SPACE
    for hosts_proc in $(hosts_inside pid_for_children "$1"); do
        [ "$(readlink "/proc/$hosts_proc/ns/pid" 2>/dev/null)" = "$1" ] || echo "$hosts_proc"
    done
}
hosts_stop() {
    hosts_signal "$1" STOP
}
hosts_continue() {
    hosts_signal "$1" CONT
}
# For the others a port that is down looks like a machine that says nothing; the processes that stand still do not look.
hosts_freeze() {
    hosts_pull "$1"
    hosts_stop "$1"
}
hosts_thaw() {
    hosts_plug "$1"
    hosts_continue "$1"
}

hosts_crash() { # HOST
    hosts_pull "$1"
    if [ -e "$hosts_work/cable.$1.pid" ]; then
        kill "$(cat "$hosts_work/cable.$1.pid")" 2>/dev/null
        hosts_switch 'ip link del a$1' "$1"
        rm -f "$hosts_work/cable.$1.pid"
    fi
    hosts_destroy "$(cat "$hosts_work/pid.$1")"
    # the kernel keeps the network, without processes, until its last connection has given up
    for hosts_net in $(seq 0 $((hosts_networks - 1))); do
        hosts_switch 'ip link del "$1"' "p${1}n$hosts_net" 2>/dev/null
    done
}

hosts_destroy() { # PID of its first process
    hosts_guarded=$(hosts_guards "$(readlink "/proc/$1/ns/pid")")
    kill -KILL "$1" 2>/dev/null
    # shellcheck disable=SC2086
    [ -z "$hosts_guarded" ] || kill -s CONT $hosts_guarded 2>/dev/null
}

hosts_firewall() { # HOST drop PORT | HOST reject PORT | HOST off
    while hosts_run "$1" sh -c 'ip rule del pref 10 || ip -6 rule del pref 10' 2>/dev/null; do
        :
    done
    [ "$2" != off ] || return 0
    hosts_how=blackhole
    [ "$2" = drop ] || hosts_how=prohibit
    for hosts_net in $(seq 0 $((hosts_networks - 1))); do
        # a rule that refuses answers only where the host would forward
        hosts_run "$1" sh -c 'echo 1 >"/proc/sys/net/ipv4/conf/$1/forwarding" && ip rule add pref 10 iif "$1" ipproto tcp dport "$2" "$3" &&
            ip -6 rule add pref 10 iif "$1" ipproto tcp dport "$2" "$3"' sh "eth$hosts_net" "$3" "$hosts_how" || exit 1
    done
}

# ---- the end ----

hosts_end() {
    hosts_ended=$?
    trap - EXIT
    [ -n "${hosts_work:-}" ] || return 0
    exec 9>&-
    for hosts_file in "$hosts_work"/pid.*; do
        [ ! -e "$hosts_file" ] || hosts_destroy "$(cat "$hosts_file")"
    done
    hosts_tries=100
    while [ -n "$(hosts_left)" ] && [ $hosts_tries -gt 0 ]; do
        hosts_tries=$((hosts_tries - 1))
        sleep 0.05
    done
    # shellcheck disable=SC2086
    [ -z "$hosts_jobs" ] || wait $hosts_jobs 2>/dev/null
    hosts_rest=$(hosts_left)
    [ -z "$hosts_rest" ] || echo "hosts: left over: $hosts_rest"
    rm -rf "$hosts_work"
    hosts_work=
    return $hosts_ended
}

hosts_rest() { # HOST
    hosts_where=$(cat "$hosts_work/pid.$1")
    for hosts_proc in $(hosts_inside pid "$(hosts_space "$1")"); do
        [ "$hosts_proc" = "$hosts_where" ] || grep -q -s "^State:[[:space:]]*Z" "/proc/$hosts_proc/status" ||
            echo "process on host $1: $(tr '\0' ' ' <"/proc/$hosts_proc/cmdline" 2>/dev/null)"
    done
    for hosts_file in "/proc/$hosts_where/root/dev/shm"/*; do
        [ ! -e "$hosts_file" ] || echo "file on host $1: /dev/shm/${hosts_file##*/}"
    done
}

# Numbers of namespaces are used again, so a process of ours also has our mark in its environment.
hosts_left() {
    for hosts_one in $hosts_made; do
        for hosts_proc in $(hosts_inside "${hosts_one%%:*}" "$hosts_one"); do
            { tr '\0' '\n' <"/proc/$hosts_proc/environ" | grep -q -x "DP_TEST_HOSTS=$DP_TEST_HOSTS"; } 2>/dev/null || continue
            echo "process $hosts_proc ($(tr '\0' ' ' <"/proc/$hosts_proc/cmdline" 2>/dev/null))"
        done
    done
}
