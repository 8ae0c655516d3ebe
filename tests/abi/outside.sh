# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# outside.sh: what the scripts share that stand where an outsider stands; they read it with ".".

. "$DP_TEST_SRCDIR/tests/abi/say.sh"
train_moe=$DP_TEST_BUILDDIR/apps/train_moe/train_moe

for plugin in attention_cpu moe_cpu comm_shm device_cpu; do
    if [ ! -f "$DP_TEST_BUILDDIR/.libs/dp_$plugin.so" ]; then
        echo "skipped: this build has no $plugin"
        exit 77
    fi
done

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
