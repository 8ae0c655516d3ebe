#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_waits.sh: only the wait primitive blocks, so that every wait has a deadline and hears an abort.
# Looks at what the built objects call, not at their text. The members that may, and why:
#   signal   the wait primitive itself: the only futex
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

blocking="pthread_cond_wait|pthread_cond_timedwait|pthread_cond_clockwait|pthread_barrier_wait|cnd_wait|cnd_timedwait"
blocking="$blocking|sem_wait|sem_timedwait|sem_clockwait|sleep|usleep|nanosleep|clock_nanosleep|thrd_sleep"
blocking="$blocking|sigwait|sigwaitinfo|sigtimedwait|pause|sigsuspend|mq_receive|msgrcv|semop|semtimedop"
blocking="$blocking|MPI_Wait.*|MPI_Recv|MPI_Send|MPI_Barrier|cuda.*Synchronize|cuStreamSynchronize|cuEventSynchronize"

{
    $NM -A -u "$DP_TEST_BUILDDIR/libdualpipe.a" 2>/dev/null
    find "$DP_TEST_BUILDDIR/plugins" -name '*.o' -path '*/.libs/*' -exec $NM -A -u {} +
} | sed -n 's/^.*[:\/]\([A-Za-z0-9_]*-\)\{0,1\}\([A-Za-z0-9_]*\)\.o: *U \([^@]*\).*/\2 \3/p' >"$work/needs"
if [ ! -s "$work/needs" ]; then
    echo "nm says nothing about the objects in $DP_TEST_BUILDDIR"
    exit 1
fi

if awk -v pattern="^($blocking)\$" '$2 ~ pattern { print; bad = 1 } END { exit !bad }' "$work/needs"; then
    echo "^ these block without a deadline or an abort: wait through dp_signal_wait, in plugins through host->wait"
    failures=$((failures + 1))
fi
# A futex is a bare system call: nm cannot tell it from others, the text can.
if grep -rnE --include='*.c' --include='*.h' --include='*.cu' '(SYS|__NR)_futex' \
    "$DP_TEST_SRCDIR/libdualpipe" "$DP_TEST_SRCDIR/plugins" | grep -v '/libdualpipe/base/signal\.c:'; then
    echo "^ the only futex is the one in base/signal.c"
    failures=$((failures + 1))
fi

echo "$(cut -d' ' -f1 "$work/needs" | sort -u | wc -l) objects, $failures failures"
[ "$failures" -eq 0 ]
