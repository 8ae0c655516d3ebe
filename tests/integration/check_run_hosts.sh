#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_run_hosts.sh: what `dualpipe run --hosts` promises: ranks are placed, told and heard on all hosts, signals and ends reach all,
# and nothing is left. The hosts are this one under several names, reached by a shell, and by ssh where there is an sshd to start.
set -u

dualpipe=$DP_TEST_BUILDDIR/dualpipe
rank=$DP_TEST_BUILDDIR/tests/fault/run_rank
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
work=$(mktemp -d)
sshd=
trap '[ -z "$sshd" ] || kill "$sshd"; rm -rf "$work"' EXIT
failures=0

complain() {
    echo "$case: $*"
    sed 's/^/    out: /' "$work/out" | cut -c 1-200 | head -20
    sed 's/^/    err: /' "$work/err" | cut -c 1-200 | head -20
    failures=$((failures + 1))
}
require() { # FILE PATTERN
    grep -q -e "$2" "$work/$1" || complain "\"$2\" is not in $1"
}
lines() { # FILE COUNT PATTERN
    found=$(grep -c -e "$3" "$work/$1")
    [ "$found" -eq "$2" ] || complain "\"$3\" is $found times in $1, $2 were expected"
}
now_ms() {
    echo $(($(date +%s%N) / 1000000))
}
# Every process of a case has this variable in its environment, whatever it has become.
survivors() {
    for environ in /proc/[0-9]*/environ; do
        if { tr '\0' '\n' <"$environ" | grep -q -x "DP_TEST_CASE=$mark"; } 2>/dev/null; then
            state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "${environ%/environ}/status" 2>/dev/null) || state=
            [ "$state" = Z ] || [ -z "$state" ] || basename "${environ%/environ}"
        fi
    done
}
begin() { # NAME OPTIONS AND PROGRAM...
    case=$1
    mark=$$.$case
    shift
    : >"$work/out"
    : >"$work/err"
    DP_TEST_CASE=$mark "$dualpipe" run --rsh "$rsh" -x DP_TEST_CASE "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}
await_lines() { # COUNT PATTERN
    tries=$((200 * scale))
    while [ "$(grep -c "$2" "$work/out")" -lt "$1" ]; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ]; then
            complain "\"$2\" did not appear $1 times"
            return
        fi
        sleep 0.05
    done
}
expect_end() { # STATUS MILLISECONDS
    start=$(now_ms)
    ended=0
    wait "$job" 2>/dev/null || ended=$?
    took=$(($(now_ms) - start))
    [ "$1" = any ] || [ "$ended" -eq "$1" ] || complain "status $ended, $1 was expected"
    [ "$took" -le $(($2 * scale)) ] || complain "took $took ms, $2 are allowed"
    expect_nothing_left 500
}
expect_nothing_left() { # MILLISECONDS
    end=$(($(now_ms) + $1 * scale))
    left=$(survivors)
    while [ -n "$left" ] && [ "$(now_ms)" -lt "$end" ]; do
        sleep 0.05
        left=$(survivors)
    done
    if [ -n "$left" ]; then
        complain "still there:" $left
        kill -9 $left 2>/dev/null
    fi
}
child_of() { # PID: its first child
    sed -n 's/^\([0-9]*\) .*/\1/p' "/proc/$1/task/$1/children"
}
# The agent's processes are those of the case that were started so; its keeper is the one whose parent is one as well.
agents() {
    for pid in $(survivors); do
        [ "$(tr '\0' ' ' <"/proc/$pid/cmdline" | sed 's/.*\(run --agent\).*/\1/')" != "run --agent" ] || echo "$pid"
    done
}

# What reaches a host: drops its name and runs the line here.
cat >"$work/here" <<'END'
#!/bin/sh
shift
exec sh -c "$*"
END
# The same through a pipe each way, which can be stopped like a network: its process numbers are in a file.
cat >"$work/piped" <<END
#!/bin/sh
name=\$1
shift
mkfifo "$work/err.\$name"
cat "$work/err.\$name" >&2 &
echo \$! >>"$work/pipes.\$name"
sh -c 'echo \$\$ >>"\$0"; exec cat' "$work/pipes.\$name" | sh -c "\$*" 2>"$work/err.\$name" |
    sh -c 'echo \$\$ >>"\$0"; exec cat' "$work/pipes.\$name"
END
chmod +x "$work/here" "$work/piped"
rsh=$work/here

# ---- wrong usage ----
refused() { # PATTERN OPTIONS...
    case="run $*"
    pattern=$1
    shift
    status=0
    timeout 20 "$dualpipe" run "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" -eq 2 ] || complain "status $status, 2 was expected"
    require err "$pattern"
}
refused 'ranks-per-host N is missing' --hosts a,b true
refused 'names divided by commas' --hosts a,,b -n 2 true
refused 'names divided by commas' --hosts a,a -n 2 true
refused 'names divided by commas' --hosts a,-oProxyCommand=x -n 2 true
refused 'do not agree' --hosts a,b -n 3 true
refused 'do not agree' --hosts a,b -n 4 --ranks-per-host 4 true
refused 'a whole number from 1 to 4096' --hosts a,b --ranks-per-host 0 true
refused 'hosts A,B is missing' -n 2 --wdir / true
refused 'NAME or NAME=VALUE' --hosts a -n 1 -x =x true
refused 'the program is missing' --hosts a -n 1

# ---- what every way of reaching a host has to do ----
try_all() { # HOSTS NAME
    hosts=$1
    way=$2
    NOT_TOLD=x TOLD="two words, 100% \"quoted\"" DUALPIPE_TIMEOUT_SCALE=$scale
    export NOT_TOLD TOLD DUALPIPE_TIMEOUT_SCALE
    begin "$way.place" --hosts "$hosts" --ranks-per-host 2 -x TOLD -x MORE=a=b -- sh -c \
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $TOLD $MORE $PWD $*"; echo "err $RANK" >&2; cat' x 'a  b' '$HOME' "line
feed"
    expect_end 0 10000
    for r in 0 1 2 3; do
        lines out 1 "^\[$r\] $r 4 $((r % 2)) 2 two words, 100% \"quoted\" a=b $PWD a  b \$HOME line\$"
        lines err 1 "^\[$r\] err $r\$"
    done
    [ ! -s "$work/err" ] || [ "$(grep -c -v '^\[[0-3]\] err' "$work/err")" -eq 0 ] || complain "something on standard error"
    begin "$way.wdir" --hosts "$hosts" -n 2 --wdir / --no-prefix -- pwd
    expect_end 0 10000
    lines out 2 '^/$'

    begin "$way.work" --hosts "$hosts" --ranks-per-host 2 -- "$rank" work
    expect_end 0 10000
    lines out 4 'sum 6$'
    begin "$way.long" --hosts "$hosts" -n 2 -- sh -c 'head -c 3000000 /dev/zero | tr "\0" "$RANK"; echo; echo "end $RANK"'
    expect_end 0 20000
    lines out 2 '\] end [01]$'
    [ "$(tr -cd 0 <"$work/out" | wc -c)" -ge 3000000 ] || complain "long lines were cut short"

    begin "$way.die" --hosts "$hosts" --ranks-per-host 2 -- "$rank" die 3
    expect_end 137 6000
    require err '^dualpipe run: rank 3 (pid [0-9]* on b) was ended by signal 9'
    lines err 1 'dualpipe run:'
    for r in 0 1 2; do
        require out "^\[$r\] rank 3 (pid [0-9]* on .*) died in step 3: W of stage 2"
    done
    begin "$way.exit" --hosts "$hosts" --ranks-per-host 2 -- "$rank" exit 0
    expect_end 3 6000
    require err '^dualpipe run: rank 0 (pid [0-9]* on a) exited with status 3'
    begin "$way.stubborn" --hosts "$hosts" -n 2 --grace 0.3 -- sh -c 'test "$RANK" = 1 && exit 7; trap "" TERM; sleep 1000 & wait; sleep 1000'
    expect_end 7 5000
    require err '1 rank did not end in time: killed'

    begin "$way.signal" --hosts "$hosts" --ranks-per-host 2 -- "$rank" wait
    await_lines 4 ready
    kill -s INT "$job"
    expect_end 10 5000
    require err 'Interrupt: passed on to the ranks'
    require out 'interrupted: rank [0-3] (pid'

    # whatever is killed on the way, with grandchildren that try to get away
    litter='sleep 1000 & setsid sleep 1000 & setsid sh -c "sleep 1000 & sleep 1000" & echo ready; '
    begin "$way.front" --hosts "$hosts" -n 2 -- sh -c "$litter exec \"\$0\" wait" "$rank"
    await_lines 4 ready
    kill -s KILL "$job"
    expect_nothing_left 4000
    wait "$job" 2>/dev/null
    begin "$way.keeper" --hosts "$hosts" -n 2 -- sh -c "$litter exec \"\$0\" wait" "$rank"
    await_lines 4 ready
    kill -s KILL "$(child_of "$job")"
    expect_end 137 4000
    begin "$way.agent" --hosts "$hosts" -n 2 --grace 1 -- sh -c "$litter exec \"\$0\" wait" "$rank"
    await_lines 4 ready
    for agent in $(agents); do
        kill -s KILL "$agent" 2>/dev/null
    done
    expect_end 1 6000
    require err '^dualpipe run: host [ab] with ranks [01] to [01] is lost: '
    begin "$way.rsh" --hosts "$hosts" -n 2 --grace 1 -- sh -c "$litter exec \"\$0\" wait" "$rank"
    await_lines 4 ready
    kill -s KILL "$(child_of "$(child_of "$job")")"
    expect_end 1 6000
    require err '^dualpipe run: host [ab] with ranks [01] to [01] is lost: .* was ended by signal 9'
    begin "$way.litter" --hosts "$hosts" -n 2 -- sh -c "$litter exit 0"
    expect_end 0 6000
    # nobody reads
    case=$way.head
    mark=$$.$case
    DP_TEST_CASE=$mark timeout 20 "$dualpipe" run --rsh "$rsh" -x DP_TEST_CASE --hosts "$hosts" -n 2 -- \
        sh -c 'while :; do echo y; done' 2>"$work/err" | head -n 2 >"$work/out"
    lines out 2 '\] y$'
    expect_nothing_left 4000
}
try_all a,b here

# ---- the secret is in no command line and no environment ----
begin secret --hosts a,b -n 2 -- sh -c 'fd=${DUALPIPE_LAUNCH#*secret=}; od -An -v -tx1 <"/proc/self/fd/${fd%%,*}" | tr -d " \n"; echo " secret"; exec sleep 1000'
await_lines 2 secret
secrets=$(sed -n 's/^\[[01]\] \([0-9a-f]*\) secret$/\1/p' "$work/out" | sort -u)
[ "${#secrets}" -eq 64 ] || complain "two ranks have other secrets, or none of 32 bytes: $secrets"
for pid in $(survivors); do
    for file in cmdline environ; do
        ! od -An -v -tx1 <"/proc/$pid/$file" | tr -d ' \n' | grep -q -e "$secrets" -e "$(printf '%s' "$secrets" | od -An -v -tx1 | tr -d ' \n')" ||
            complain "the secret is in $file of process $pid"
    done
done
kill -s TERM "$job"
expect_end 143 5000

# ---- two ranks are started again at once, and each is counted as one ----
begin again --hosts a,b -n 2 --respawn 2 -- \
    sh -c 'mkdir "$0/lived.$RANK" 2>/dev/null || exec echo again; echo "ready $$"; exec sleep 1000' "$work"
await_lines 2 ready
keeper=$(child_of "$job")
kill -s STOP "$keeper"
kill -s KILL $(sed -n 's/^\[[01]\] ready //p' "$work/out")
sleep 0.2
kill -s CONT "$keeper"
expect_end 0 5000
lines out 2 '\] again$'
lines err 1 'started again as pid [0-9]* (1 of 2)$'
lines err 1 'started again as pid [0-9]* (2 of 2)$'

# ---- a host is lost: all ranks start again on those that are left, which divide them ----
agent_of() { # RANK: the keeper of the host where it is
    rank_pid=$(sed -n "s/^\\[$1\\] ready //p" "$work/out" | tail -n 1)
    sed -n 's/^PPid:[[:space:]]*//p' "/proc/$rank_pid/status"
}
here='echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE: ${DUALPIPE_LAUNCH#*,respawn=}"; [ ! -e "$0/done" ] || exit 0; echo "ready $$"; exec sleep 1000'
rm -f "$work/done"
begin lost --hosts a,b,c --ranks-per-host 2 --respawn 2 --grace 1 -- sh -c "$here" "$work"
await_lines 6 ready
kill -s KILL "$(agent_of 5)"
await_lines 12 ready
lines out 1 '^\[5\] 5 of 6, 2 of 3: 1,.*again=1'
: >"$work/done"
kill -s KILL "$(agent_of 0)"
expect_end 0 5000
lines out 1 '^\[5\] 5 of 6, 5 of 6: .*again=1'
require err '^dualpipe run: all 6 ranks are started again on the 2 hosts left (1 restart left)'
require err '^dualpipe run: all 6 ranks are started again on the 1 host left (0 restarts left)'
# not without a host, not without a restart, and not where a rank has ended by itself
rm -f "$work/done"
begin last --hosts a --ranks-per-host 2 --respawn 5 --grace 1 -- sh -c "$here" "$work"
await_lines 2 ready
kill -s KILL "$(agent_of 0)"
expect_end 1 5000
lines err 0 'are started again'
begin spent --hosts a,b -n 2 --respawn 1 --grace 1 -- sh -c "$here" "$work"
await_lines 2 ready
kill -s KILL "$(agent_of 1)"
await_lines 4 ready
kill -s KILL "$(sed -n 's/^\[1\] ready //p' "$work/out" | tail -n 1)"
expect_end 137 5000
lines err 1 'are started again'
begin own --hosts a,b -n 4 --respawn 5 --grace 1 -- sh -c '[ "$RANK" != 0 ] || exit 0; echo "ready $$"; exec sleep 1000'
await_lines 3 ready
kill -s KILL "$(agent_of 3)"
expect_end 1 5000
lines err 0 'are started again'

# ---- what cannot be started ----
here_now=$PWD
begin nothing --hosts a,b -n 2 -- /no/such/program
expect_end 127 5000
require err 'cannot start "/no/such/program" on [ab]: No such file'
begin folder --hosts a,b -n 2 --wdir /no/such/folder -- true
expect_end 1 5000
require err 'dualpipe run: [ab]: there is no folder /no/such/folder: No such file'
mkdir "$work/gone"
cd "$work/gone" && rmdir "$work/gone" || exit 1
begin gone --hosts a,b -n 2 -- sh -c 'echo started'
cd "$here_now" || exit 1
expect_end 1 5000
require err 'dualpipe run: the folder that we are in has no path (No such file .*): go to another, or name one by --wdir'
lines out 0 started
begin address --hosts a,b -n 2 --address 192.0.2.250 -- true
expect_end 1 5000
require err 'dualpipe run: a: no socket at 192.0.2.250 for the ranks to meet at: '
begin path --hosts a,b -n 2 --dualpipe-path "/no/it's not" -- true
expect_end 1 5000
require err "dualpipe run: [ab] says: .*/no/it's not"
require err 'host [ab]: nothing was started: .* ended with status 12[67]'
rsh=false
begin unreachable --hosts a,b -n 2 -- true
expect_end 1 5000
require err 'host [ab]: nothing was started: "false" ended with status 1'
# one that says nothing: its limit, and no more
rsh='case $1 in b) exec sleep 1000 ;; esac; exec '$work/here
DUALPIPE_TIMEOUT_SCALE=0.03
export DUALPIPE_TIMEOUT_SCALE
begin mute --hosts a,b -n 2 -- sh -c 'echo started'
DUALPIPE_TIMEOUT_SCALE=$scale
expect_end 1 5000
require err 'host b: nothing was started: it is not ready after 1.8 s'
lines out 0 started
# one host is reached, the other is not: nothing starts anywhere
rsh='case $1 in b) exit 255 ;; esac; exec '$work/here
begin half --hosts a,b -n 2 -- sh -c 'echo started; sleep 1000'
expect_end 1 5000
require err 'host b: nothing was started: '
lines err 0 'ended by signal'
lines out 0 started
# a shell's start-up file talks
rsh="echo welcome; echo hint >&2; $work/here"
begin talk --hosts a,b -n 2 -- sh -c 'echo line'
expect_end 0 5000
lines out 2 '^\[[01]\] line$'
lines out 0 welcome
lines err 2 'says: hint'
lines err 2 '^welcome$'
# what it says without an end of the line, and with an escape sequence for the terminal
rsh="printf 'welcome\\033[2J to ' >&2; $work/here"
begin banner --hosts a,b -n 2 -- sh -c 'echo line'
expect_end 0 5000
lines out 2 '^\[[01]\] line$'
lines err 2 'says: welcome?\[2J to $'
rsh="printf 'welcome\\033[2J to '; $work/here"
begin greeting --hosts a,b -n 2 -- sh -c 'printf "\033[1mline\n\001\177\n"'
expect_end 0 5000
printf '[0] \033[1mline\n[0] \001\177\n[1] \033[1mline\n[1] \001\177\n' >"$work/wanted"
LC_ALL=C sort -s -k 1,1 "$work/out" | cmp -s - "$work/wanted" || complain "lines of ranks are not as they were"
lines err 2 '^welcome?\[2J to $'
rsh="printf '\\001dualpipe-agent-1 status a%%1b[2Jb\\n' >&2; $work/here"
begin state --hosts a,b -n 2 -- sh -c 'echo line'
expect_end 0 5000
lines err 2 '^a?\[2Jb$'
# commands longer than a page
rsh=": $(head -c 5000 /dev/zero | tr '\0' x); $work/here"
mkdir "$work/''''''''''"
ln -s "$dualpipe" "$work/dualpipe"
begin wordy --hosts a,b -n 2 --dualpipe-path "$work/$(printf "''''''''''/../%.0s" $(seq 120))dualpipe" -- sh -c 'echo line'
expect_end 0 5000
lines out 2 '^\[[01]\] line$'
# a variable as long as the system takes one
rsh=$work/here
LONG=$(head -c 100000 /dev/zero | tr '\0' x)
export LONG
begin long --hosts a,b -n 2 -x LONG -- sh -c 'echo ${#LONG}'
unset LONG
expect_end 0 5000
lines out 2 '^\[[01]\] 100000$'

# ---- rank 0 is stopped and asked for a status: its host does not wait for an answer before it tells an end ----
rsh=$work/here
begin asked --hosts a,b -n 4 --grace 8 -- sh -c 'echo "pid $$"; exec "$0" wait' "$rank"
await_lines 4 ready
stopped=$(sed -n 's/^\[0\] pid //p' "$work/out")
kill -s STOP "$stopped"
# on a busy machine it takes a while until the thread that the signal went to gets there, and others answer meanwhile
while [ -e "/proc/$stopped" ] && ! grep -q '^State:[[:space:]]*[TZ]' "/proc/$stopped/status"; do
    sleep 0.02
done
kill -s QUIT "$job"
sleep 0.5
kill -s KILL "$(sed -n 's/^\[1\] pid //p' "$work/out")"
expect_end 137 14000
end=$(grep -n '^dualpipe run: rank 1 (pid [0-9]* on a) was ended by signal 9' "$work/err" | cut -d : -f 1)
answer=$(grep -n '^dualpipe run: a: rank 0 does not answer: it has not joined yet, or it is stopped' "$work/err" | cut -d : -f 1)
[ "${end:-99}" -lt "${answer:-0}" ] || complain "the end is told in line ${end:-none}, the lack of an answer in line ${answer:-none}"

# ---- a connection that is cut without a word: both sides notice, and nothing is left on either ----
# Beside it a job whose agents stop for good, and hold the launcher's pipes: it does not wait for those.
mark=$$.frozen
DP_TEST_CASE=$mark "$dualpipe" run --rsh "$work/here" -x DP_TEST_CASE --hosts a,b -n 2 --grace 1 -- "$rank" wait >"$work/frozen" 2>&1 </dev/null &
frozen=$!
tries=$((200 * scale))
until [ "$(grep -c ready "$work/frozen")" -eq 2 ] || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
kill -s STOP $(agents)
rsh=$work/piped
begin cut --hosts a,b -n 2 --grace 1 -- "$rank" wait
await_lines 2 ready
kill -s STOP $(cat "$work/pipes.b")
start=$(now_ms)
ended=0
wait "$job" || ended=$?
[ "$ended" -eq 1 ] || complain "status $ended, 1 was expected"
require err '^dualpipe run: host b with ranks 1 to 1 is lost: it has been silent for 15 s'
[ $(($(now_ms) - start)) -le $((22000 * scale)) ] || complain "it took $(($(now_ms) - start)) ms to notice"
for r in 1 2 3 4 5 6 7 8 9 10; do
    [ -n "$(agents)" ] || break
    sleep 0.5
done
[ -z "$(agents)" ] || complain "the agent is left: $(agents)"
kill -s KILL $(cat "$work"/pipes.*) 2>/dev/null
expect_nothing_left 2000
case=frozen
mark=$$.frozen
job=$frozen
expect_end 1 10000
grep -q 'host [ab] with ranks [01] to [01] is lost: it has been silent for 15 s' "$work/frozen" || complain "$(cat "$work/frozen")"

# ---- ssh itself ----
server=$(command -v sshd || ls /usr/sbin/sshd 2>/dev/null)
if [ -z "$server" ] || ! command -v ssh >/dev/null 2>&1 || ! command -v ssh-keygen >/dev/null 2>&1; then
    echo "ssh is not tried: there is no ssh, ssh-keygen or sshd"
else
    [ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd
    port=$((20000 + $$ % 10000))
    chmod 700 "$work"
    ssh-keygen -q -t ed25519 -N '' -f "$work/host_key"
    ssh-keygen -q -t ed25519 -N '' -f "$work/key"
    cp "$work/key.pub" "$work/authorized"
    cat >"$work/sshd_config" <<END
Port $port
ListenAddress 127.0.0.1
HostKey $work/host_key
PidFile $work/sshd.pid
AuthorizedKeysFile $work/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
# so that bash leaves the ~/.bashrc of this user alone, which may print
SetEnv SHLVL=1
END
    "$server" -D -f "$work/sshd_config" 2>"$work/sshd.log" &
    sshd=$!
    cat >"$work/ssh_config" <<END
Host a b
    HostName 127.0.0.1
    Port $port
    IdentityFile $work/key
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile $work/known
    LogLevel ERROR
END
    rsh="ssh -F $work/ssh_config -o BatchMode=yes"
    case=ssh
    tries=50
    until $rsh a true 2>"$work/err" || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
    if [ "$tries" -eq 0 ]; then
        echo "ssh is not tried: this user cannot log in to a separate sshd: $(cat "$work/err" "$work/sshd.log" | tr '\n' ' ')"
    else
        try_all a,b ssh
    fi
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
