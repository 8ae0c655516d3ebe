#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_plugin_command.sh: dualpipe plugin list shows good and bad plugins, check runs the right suite and fails a bad plugin.
set -eu

subcommand=plugin
quiet_failures=1 # list says on standard output what cannot be used
. "$DP_TEST_SRCDIR/tests/integration/command.sh"
refuse() { # FILE PATTERN
    if grep -q -e "$2" "$1"; then
        fail "\"$2\" is in $1: $(head -c 900 "$1")"
    fi
}

chmod 755 "$work"
expect 0 list
require out '^device_cpu .*dp.device/1'
require out "^    $DUALPIPE_PLUGIN_PATH/dp_device_cpu.so"

# the first of a name is the one that is used
mkdir -m 755 "$work/copy" "$work/bad"
cp "$DUALPIPE_PLUGIN_PATH/dp_device_cpu.so" "$work/copy/"
DUALPIPE_PLUGIN_PATH=$DUALPIPE_PLUGIN_PATH:$work/copy expect 0 list
require out 'hidden by the one above'

echo 'not an object' >"$work/bad/dp_broken.so"
DUALPIPE_PLUGIN_PATH=$work/bad expect 1 list
require out 'dp_broken.so$'
require out 'cannot be used: .*dp_broken.so'

# a plugin that ends the process costs its own line only
cp "$DP_TEST_MOCKS/mock_ender.so" "$work/copy/dp_mock_ender.so"
DUALPIPE_PLUGIN_PATH=$work/copy expect 1 list
require out '^device_cpu '
require out 'loading .*dp_mock_ender.so ends the process: Aborted'

# so do those whose init exits, hangs or returns what is no status
MOCK_FAULT=exit DUALPIPE_PLUGIN_PATH=$work/copy expect 1 list
require out 'loading .*dp_mock_ender.so ends the process: it calls exit'
require err 'init of plugin .*dp_mock_ender.so has called exit'
MOCK_FAULT=positive DUALPIPE_PLUGIN_PATH=$work/copy expect 1 list
require out 'init of plugin mock_ender (.*dp_mock_ender.so) returned 7: DP_OK is 0'
MOCK_FAULT=hang DUALPIPE_TIMEOUT_SCALE=0.1 DUALPIPE_PLUGIN_PATH=$work/copy expect 1 list
require out 'loading .*dp_mock_ender.so does not return'
require err 'init of plugin .*dp_mock_ender.so has not returned for 0.5 s'

# a case that hangs on purpose leaves no file behind
mkdir "$work/empty"
(
    cd "$work/empty"
    unset DUALPIPE_HANG_TRACE
    "$dualpipe" plugin check comm_shm a_peer_that_never_comes_is_a_timeout --mode threads >"$work/out" 2>"$work/err"
) || fail "a case that hangs on purpose: $(cat "$work/out" "$work/err")"
[ -z "$(ls "$work/empty")" ] || fail "plugin check leaves $(ls "$work/empty")"

# and no process, though the kit is killed
stat_of() { # PID FIELD: 3 its state, 5 its process group
    awk -v field="$2" '{print $field}' "/proc/$1/stat" 2>/dev/null || :
}
runs() { # PID
    case $(stat_of "$1" 3) in '' | Z | X) return 1 ;; esac
}
"$dualpipe" plugin check comm_shm a_peer_that_never_comes_is_a_timeout >"$work/out" 2>"$work/err" &
kit=$!
trial=
for i in $(seq 1000); do # the first child only looks at the plugin
    for child in $(cat "/proc/$kit/task/$kit/children" 2>/dev/null); do
        [ "$(stat_of "$child" 5)" != "$child" ] || trial=$child
    done
    [ -z "$trial" ] || break
    sleep 0.02
done
[ -n "$trial" ] || fail "the kit runs no case: $(cat "$work/out" "$work/err")"
kill -KILL $kit
wait $kit || :
for i in $(seq 500); do
    runs "$trial" || break
    sleep 0.02
done
! runs "$trial" || fail "a trial outlives its kit"

expect 0 check device_cpu copies_and_zeroes --mode threads
require out '^passed  copies_and_zeroes'
expect 1 check "$DP_TEST_MOCKS/mock_major.so"
require err 'ABI'
expect 1 check "$DP_TEST_MOCKS/mock_ender.so"
require err 'ends the process'
if [ -f "$DUALPIPE_PLUGIN_PATH/dp_ep_exchange.so" ]; then
    expect 0 list
    require out '^ep_exchange .*dp.ep.draft/1'
    expect 0 check ep_exchange rows_go_where_they_belong --mode threads
    require out '^passed  rows_go_where_they_belong, 4 threads'
fi
expect 1 check no_such_plugin
require err 'no_such_plugin'
expect 1 check comm_shm --device no_such_device
require err '(--device): .*no_such_device'
refuse err 'comm_shm'
expect 1 check "$DP_TEST_MOCKS/mock_good.so"
require err 'offers no interface that there is a suite for'

# names of cases
expect 0 check --list
require out '^dp.comm/1$'
require out '^  sums_follow_each_other  *Sums .*\.$'
expect 0 check device_cpu --list
require out '^dp.device/1$'
refuse out '^dp.comm/1$'
expect 2 check comm_shm sums_folow_each_other
require err 'no case sums_folow_each_other; the nearest are sums_follow_each_other,'
expect 2 check comm_shm --mode both
expect 2 check comm_shm --what ever

# ranks that a launcher starts: this one gives them what mpirun does
cat >"$work/launcher" <<'EOF'
#!/bin/sh
n=$2 pids= code=0 i=0
shift 2
while [ "$i" -lt "$n" ]; do
    OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_LOCAL_RANK=$i OMPI_COMM_WORLD_SIZE=$((n + ${EXTRA-0})) "$@" &
    pids="$pids $!"
    i=$((i + 1))
done
for pid in $pids; do
    wait "$pid" || code=$?
done
exit "$code"
EOF
chmod +x "$work/launcher"
expect 0 check comm_shm --mode processes --launch "$work/launcher -n %d" sums_follow_each_other killed_while_sending \
    groups_of_some_ranks
require out '^passed  sums_follow_each_other, 3 processes'
require out '^passed  groups_of_some_ranks, 4 processes'
refuse out 'killed_while_sending'
EXTRA=1 expect 1 check comm_shm --mode processes --launch "$work/launcher -n %d" sums_follow_each_other
require out 'the launcher (Open MPI) started 4 ranks, 3 were asked for'
expect 1 check comm_shm --mode processes --launch "$work/no_launcher %d" sums_follow_each_other
require out 'the launcher ended with status 127'

expect 2 check
expect 2 check --mode
expect 2
expect 2 lsit

finish
