#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_waits.sh: only the wait primitive blocks, so that every wait has a deadline and hears an abort.
# Looks at what the built objects call, not at their text. The file that may, and why:
#   system/wait.c   the wait primitive itself: the only futex
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

blocking="pthread_cond_wait|pthread_cond_timedwait|pthread_cond_clockwait|pthread_barrier_wait|cnd_wait|cnd_timedwait"
blocking="$blocking|sem_wait|sem_timedwait|sem_clockwait|sleep|usleep|nanosleep|clock_nanosleep|thrd_sleep"
blocking="$blocking|sigwait|sigwaitinfo|sigtimedwait|pause|sigsuspend|mq_receive|msgrcv|semop|semtimedop"
blocking="$blocking|MPI_Wait.*|MPI_Recv|MPI_Send|MPI_Barrier|cuda.*Synchronize|cuStreamSynchronize|cuEventSynchronize"

cd "$DP_TEST_BUILDDIR"
{
    $NM -A -u $DP_TEST_OBJECTS
    if [ -d plugins ]; then
        find plugins -name '*.o' -path '*/.libs/*' -exec $NM -A -u {} +
    fi
} | sed -n 's/^\(.*\)\.o: *[Uw] \([^@]*\).*/\1 \2/p' >"$work/needs"
if [ "$(cut -d' ' -f1 "$work/needs" | sort -u | wc -l)" -lt 2 ]; then
    echo "nm says nothing about $DP_TEST_OBJECTS"
    exit 1
fi

if awk -v pattern="^($blocking)\$" '$2 ~ pattern { print; bad = 1 } END { exit !bad }' "$work/needs"; then
    echo "^ these block without a deadline or an abort: wait through dp__signal_wait, in plugins through host->wait"
    failures=$((failures + 1))
fi
# A futex is a bare system call: nm cannot tell it from others, the text can.
if grep -rnE --include='*.c' --include='*.h' --include='*.cu' '(SYS|__NR)_futex' \
    "$DP_TEST_SRCDIR/libdualpipe" "$DP_TEST_SRCDIR/plugins" | grep -v '/libdualpipe/system/wait\.c:'; then
    echo "^ the only futex is the one in system/wait.c"
    failures=$((failures + 1))
fi

echo "$(cut -d' ' -f1 "$work/needs" | sort -u | wc -l) objects, $failures failures"
[ "$failures" -eq 0 ]
