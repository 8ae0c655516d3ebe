# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# outside.sh: what the scripts share that stand where an outsider stands; they read it with ".".

: "${CC:=cc}"
train_moe=$DP_TEST_BUILDDIR/apps/train_moe/train_moe
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
failures=0
flags="-O1 -Wall -Wextra -Werror ${CFLAGS-}" # CFLAGS: what sanitizers need

for plugin in attention_cpu moe_cpu comm_shm device_cpu; do
    if [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_$plugin.so" ]; then
        echo "skipped: this build has no $plugin"
        exit 77
    fi
done

complain() {
    echo "FAILED: $*"
    tail -n 20 "$work/log" 2>/dev/null | cut -c 1-300 | sed 's/^/    /'
    failures=$((failures + 1))
}
quietly() { # WHAT COMMAND...: its output only when it fails
    what=$1
    shift
    if "$@" >"$work/log" 2>&1 </dev/null; then
        echo "ok: $what"
    else
        complain "$what: exit status $?"
        return 1
    fi
}
# Numbers in two files that differ by rounding at most: what two plugins with one formula in other orders give.
close_enough() { # FILE FILE
    if [ ! -x "$work/close" ]; then
        cat >"$work/close.c" <<'C'
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    FILE *a = fopen(argv[1], "r"), *b = fopen(argv[argc - 1], "r");
    char x[256], y[256];
    int numbers = 0;

    while (a != NULL && b != NULL && fscanf(a, "%255s", x) == 1) {
        char *end;
        double v = strtod(x, &end);

        if (fscanf(b, "%255s", y) != 1 || (*end == '\0' && !(fabs(v - strtod(y, NULL)) <= 1e-9 * (1 + fabs(v)))))
            return 1;
        numbers += *end == '\0';
    }
    return numbers < 6;
}
C
        $CC ${CFLAGS-} ${LDFLAGS-} -o "$work/close" "$work/close.c" -lm
    fi
    "$work/close" "$1" "$2"
}
finish() {
    echo "$failures failures"
    [ "$failures" -eq 0 ]
}
