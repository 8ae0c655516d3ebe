# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# faults.sh: what becomes of a job when the network or a host fails, one line for each fault. Sourced, after hosts.sh, by
# check_faults.sh and bench/network_faults.sh. $faults_job is the command of a rank; $faults_mark a line of its output that
# says that it works ($faults_marked: the ranks that write it, all if empty); $faults_what its schedule and transport, for the
# table. Its result is in the lines of its output that begin with $faults_result, or in the file $faults_result_file.

faults_failures=0
faults_shown=
faults_marked=
faults_result_file=
faults_limit_ms=$((10000 * ${DUALPIPE_TIMEOUT_SCALE:-1}))

faults_head() {
    printf '%-46s  %-6s  %-26s  %-22s  %7s  %-7s  %s\n' fault ranks "schedule, transport" outcome seconds left "what was named"
}
# The line of a fault, once nothing of the job is left on any host.
faults_close() { # FAULT OUTCOME MILLISECONDS NAMED
    faults_tries=$((100 * ${DUALPIPE_TIMEOUT_SCALE:-1}))
    while faults_left=$(for faults_host in $(seq "$hosts_count"); do hosts_rest "$faults_host"; done) &&
        [ -n "$faults_left" ] && [ $faults_tries -gt 0 ]; do
        faults_tries=$((faults_tries - 1))
        sleep 0.1
    done
    [ -z "$faults_left" ] || faults_complain "left: $faults_left"
    [ -z "$faults_shown" ] || set -- "$1" "NOT AS IT HAS TO BE" "$3" "$4"
    printf '%-46s  %-6s  %-26s  %-22s  %4d.%02d  %-7s  %s\n' "$1" "$((hosts_count * faults_each)) on $hosts_count" "$faults_what" "$2" \
        $(($3 / 1000)) $(($3 % 1000 / 10)) "$([ -n "$faults_left" ] && echo SOME || echo nothing)" "$4"
    hosts_end
}
faults_complain() {
    echo "    $*"
    faults_failures=$((faults_failures + 1))
    [ -z "$faults_shown" ] || return
    faults_shown=1
    for faults_file in "$hosts_work"/rank*.out "$hosts_work"/rank*.err; do
        [ ! -s "$faults_file" ] || tail -n 3 "$faults_file" | sed "s|^|    ${faults_file##*/}: |"
    done
}
now_ms() {
    echo $(($(date +%s%N) / 1000000))
}
ranks_of() { # HOSTS...
    for faults_host in "$@"; do
        seq $(((faults_host - 1) * faults_each)) $((faults_host * faults_each - 1))
    done
}
all_but() { # HOST: the other hosts
    for faults_host in $(seq "$hosts_count"); do
        [ "$faults_host" = "$1" ] || echo "$faults_host"
    done
}

# Starts the job on fresh hosts and waits until all ranks work.
faults_begin() { # HOSTS RANKS_PER_HOST
    faults_each=$2
    faults_shown=
    hosts_begin "$1"
    # shellcheck disable=SC2086
    hosts_ranks "$2" $faults_job
    faults_await_mark 600
    sleep 1 # so that all have told what they do
}
faults_await_mark() { # TENTHS OF A SECOND
    faults_tries=$1
    for faults_rank in ${faults_marked:-$(seq 0 $((hosts_count * faults_each - 1)))}; do
        until grep -q "$faults_mark" "$hosts_work/rank$faults_rank.out" 2>/dev/null; do
            faults_tries=$((faults_tries - 1))
            if [ $faults_tries -le 0 ]; then
                faults_complain "rank $faults_rank does not work"
                return
            fi
            sleep 0.1
        done
    done
}

# The ranks of these hosts end with 13, in time, and each names a rank, its host and what it was doing.
faults_expect_end() { # PATTERN HOSTS...
    faults_pattern=$1
    faults_start=$(now_ms)
    shift
    # shellcheck disable=SC2046
    faults_ranks=$(ranks_of "$@")
    for faults_rank in $faults_ranks; do
        hosts_await "rank$faults_rank" 20
        [ "$status" = 13 ] || faults_complain "rank $faults_rank: status $status, 13 was expected"
        grep -h "$faults_pattern" "$hosts_work/rank$faults_rank.out" "$hosts_work/rank$faults_rank.err" >"$hosts_work/said" ||
            faults_complain "rank $faults_rank does not say \"$faults_pattern\""
        [ -s "$hosts_work/first" ] || head -n 1 "$hosts_work/said" >"$hosts_work/first"
    done
    faults_took=$(($(now_ms) - faults_start))
    [ $faults_took -le $faults_limit_ms ] || faults_complain "it took $faults_took ms"
}

# All ranks finish, with the result of the same ranks on one host: $faults_expected, all lines that match $faults_result.
faults_expect_result() { # SECONDS
    faults_start=$(now_ms)
    for faults_rank in $(seq 0 $((hosts_count * faults_each - 1))); do
        hosts_await "rank$faults_rank" "$1"
        [ "$status" = 0 ] || faults_complain "rank $faults_rank: status $status, 0 was expected"
    done
    faults_same=$(faults_results)
    [ "$faults_same" = "$faults_expected" ] || faults_complain "other results than on one host: $faults_same, not $faults_expected"
    faults_took=$(($(now_ms) - faults_start))
}

faults_results() {
    if [ -n "$faults_result_file" ]; then
        cat "$faults_result_file"
        rm -f "$faults_result_file"
    else
        sed -n "s/^\($faults_result.*\)/\1/p" "$hosts_work"/rank*.out | sort -u
    fi
}
# The same ranks on one host, where nothing fails.
faults_reference() { # RANKS
    hosts_begin 1
    faults_each=$1
    # shellcheck disable=SC2086
    hosts_ranks "$1" $faults_job
    for faults_rank in $(seq 0 $(($1 - 1))); do
        hosts_await "rank$faults_rank" 300
    done
    faults_expected=$(faults_results)
    [ -n "$faults_expected" ] || faults_complain "no result on one host"
    hosts_end
}

# ---- the faults: each takes hosts and ranks per host ----

faults_ended() { # FAULT
    faults_close "$1" "ended, all told" $faults_took "$(cat "$hosts_work/first")"
}
fault_pulled() { # HOST HOSTS EACH
    faults_begin "$2" "$3"
    hosts_pull "$1"
    # shellcheck disable=SC2046
    faults_expect_end "$(faults_gone "$1")" $(all_but "$1")
    faults_also_ended "$1"
    faults_ended "cable of host $1 pulled"
}
# What the others are to say of a host that is gone. Of two hosts nobody can tell which one is cut off.
faults_gone() { # HOST
    if [ "$1" = 1 ]; then
        echo 'rank 0 (pid [0-9]* on host1) .*step [0-9]*: '
    else
        echo "rank \($(ranks_of "$1" | tr '\n' ' ' | sed 's/ $//; s/ /\\|/g')\) (pid [0-9]* on host$1) .*step [0-9]*: "
    fi
}
# The ranks of the host itself must not go on either; what they say depends on what they still heard.
faults_also_ended() { # HOST
    for faults_rank in $(ranks_of "$1"); do
        hosts_await "rank$faults_rank" 10
        [ "$status" != running ] && [ "$status" != 0 ] || faults_complain "rank $faults_rank of host $1: status $status"
    done
}
fault_frozen() { # HOST HOSTS EACH
    faults_begin "$2" "$3"
    hosts_freeze "$1"
    # shellcheck disable=SC2046
    faults_expect_end "$(faults_gone "$1")" $(all_but "$1")
    hosts_thaw "$1"
    faults_also_ended "$1"
    faults_ended "host $1 frozen, comes back later"
}
fault_stopped() { # HOST HOSTS EACH
    faults_begin "$2" "$3"
    hosts_stop "$1"
    # shellcheck disable=SC2046
    faults_expect_end "$(faults_gone "$1")" $(all_but "$1")
    hosts_continue "$1"
    faults_also_ended "$1"
    faults_ended "all processes of host $1 stopped"
}
fault_crashed() { # HOST HOSTS EACH
    faults_begin "$2" "$3"
    hosts_crash "$1"
    # shellcheck disable=SC2046
    faults_expect_end "$(faults_gone "$1")" $(all_but "$1")
    faults_ended "host $1 gone without a word"
}
fault_rebooted() { # HOST HOSTS EACH
    faults_begin "$2" "$3"
    hosts_crash "$1"
    hosts_boot "$1"
    # shellcheck disable=SC2046
    faults_expect_end "$(faults_gone "$1")" $(all_but "$1")
    faults_ended "host $1 gone and back (half-open connections)"
}
fault_one_way() { # HOST HOSTS EACH out|in
    faults_begin "$2" "$3"
    hosts_cable "$1" "$4.loss=1"
    faults_way="nothing leaves host $1"
    [ "$4" = out ] || faults_way="nothing arrives at host $1"
    # shellcheck disable=SC2046
    faults_expect_end 'rank [0-9]* (pid [0-9]* on host[0-9]) .*step [0-9]*: ' $(seq "$2")
    faults_ended "$faults_way"
}
fault_killed() { # RANK HOSTS EACH
    faults_begin "$2" "$3"
    faults_on=$(($1 / $3 + 1))
    for faults_proc in $(hosts_inside pid "$(hosts_space "$faults_on")"); do
        if { tr '\0' '\n' <"/proc/$faults_proc/environ" | grep -q -x "RANK=$1"; } 2>/dev/null; then
            kill -KILL "$faults_proc"
        fi
    done
    # shellcheck disable=SC2046
    faults_expect_end "rank $1 (pid [0-9]* on host$faults_on) died .*step [0-9]*: " $(all_but $faults_on)
    faults_also_ended "$faults_on"
    faults_ended "rank $1 of host $faults_on killed"
}
# Nothing of this may end a job.
fault_cable() { # FAULT HOSTS EACH SECONDS WORDS...
    faults_name=$1
    faults_wait=$4
    faults_each=$3
    faults_shown=
    hosts_begin "$2"
    shift 4
    for faults_host in $(seq 2 "$hosts_count"); do
        hosts_cable "$faults_host" "$@"
    done
    # shellcheck disable=SC2086
    hosts_ranks "$faults_each" $faults_job
    faults_expect_result "$faults_wait"
    faults_close "$faults_name" "trains on, same bits" $faults_took ""
}
# The cable becomes slow in the middle of the job and is good again later.
fault_slow_for() { # HOST HOSTS EACH SECONDS
    faults_begin "$2" "$3"
    hosts_cable "$1" delay=2000
    sleep "$4"
    hosts_cable "$1"
    faults_expect_result 300
    faults_close "delay of 2 s to and from host $1 for $4 s" "trains on, same bits" $faults_took ""
}
