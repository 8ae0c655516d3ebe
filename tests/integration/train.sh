# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# train.sh: what the scripts that run the language-model trainer share; they read it with ".".

dualpipe=$DP_TEST_BUILDDIR/dualpipe
train=$DP_TEST_BUILDDIR/apps/train_moe/train_moe
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# The smallest model that still has everything: grouped heads, several experts on a rank, a shared one.
small="--layers 8 --hidden 8 --heads 2 --kv-heads 1 --experts 4 --expert-hidden 8 --seq 8 --batch 1 --warmup 2"

for plugin in attention_cpu moe_cpu comm_shm device_cpu; do
    if [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_$plugin.so" ]; then
        echo "skipped: this build has no $plugin"
        exit 77
    fi
done

long() { # in check-long, where every row is run
    [ "${DP_TEST_LONG:-0}" = 1 ]
}
complain() {
    echo "$*"
    sed 's/^/    out: /' "$work/out" 2>/dev/null | cut -c 1-200
    sed 's/^/    err: /' "$work/err" 2>/dev/null | cut -c 1-200
    failures=$((failures + 1))
}
ranks() { # N OPTIONS...: ranks as processes; leaves $status, $work/out, $work/err
    n=$1
    shift
    status=0
    timeout $((60 * scale)) "$dualpipe" run -n "$n" -- "$train" $small "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    sed -i 's/^\[0\] //' "$work/out" "$work/err"
}
threads() { # N OPTIONS...: ranks as threads
    n=$1
    shift
    status=0
    timeout $((60 * scale)) "$train" $small --threads "$n" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}
expect() { # STATUS FILE PATTERN WHAT
    [ "$status" -eq "$1" ] || complain "$4: exit status $status, $1 was expected"
    grep -q -e "$3" "$work/$2" || complain "$4: \"$3\" is not in $2"
}
# Processes of the job that was started with DP_TEST_CASE=$mark in its environment.
members() {
    for environ in $(grep -l -s -z -x "DP_TEST_CASE=$mark" /proc/[0-9]*/environ); do
        pid=${environ%/environ}
        pid=${pid#/proc/}
        state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$pid/status" 2>/dev/null) || state=
        [ "$state" = Z ] || [ -z "$state" ] || echo "$pid"
    done
}
member() { # RANK: its process; nothing where there is none
    for pid in $(members); do
        if grep -q -s -z -x "RANK=$1" "/proc/$pid/environ"; then
            echo "$pid"
            return
        fi
    done
}
finish() {
    echo "$failures failures"
    [ "$failures" -eq 0 ]
}
