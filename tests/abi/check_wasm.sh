#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_wasm.sh: libdualplan's sources, as they are, compile for WebAssembly, and the planning example says there what it says here, to
# the last byte. It takes clang with lld, wasi-libc, and node to run it.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/planning.sh"

clang="clang --target=wasm32-wasi"
need() { # WHAT
    echo "skipped: $1 (Debian: clang, lld, wasi-libc, libclang-rt-dev-wasm32, nodejs)"
    exit 77
}
command -v clang >/dev/null 2>&1 || need "no clang"
echo 'int main(void) { return 0; }' >"$work/main.c"
$clang -o "$work/main.wasm" "$work/main.c" >/dev/null 2>&1 || need "clang does not link for wasm32-wasi"
run="node --no-warnings $DP_TEST_SRCDIR/tests/abi/wasi.mjs"
$run "$work/main.wasm" >/dev/null 2>&1 || need "no node that runs WebAssembly"

# -lm: here the mathematics are in the C library, and a symbol that is not there ends the link.
strict="-std=c11 -pedantic -D_POSIX_C_SOURCE=200809L -ffp-contract=off -O1 -Wall -Wextra -Werror"
mkdir "$work/objects"
cat >"$work/compile" <<'SH'
for source; do
    $COMPILE -o "$WORK/objects/$(echo "$source" | tr / _).o" "$source" || exit 255
done
SH
COMPILE="$clang $strict -I$DP_TEST_SRCDIR/include -I$DP_TEST_SRCDIR/libdualpipe -c" WORK=$work
export COMPILE WORK
quietly "libdualplan compiles" sh -c "printf '%s\\n' $planning_sources | xargs -P 2 -n 8 sh '$work/compile'" || { finish; exit 1; }
quietly "all of it links with the C library alone" $clang $strict -I"$DP_TEST_SRCDIR/include" -o "$work/plan.wasm" \
    "$DP_TEST_SRCDIR/examples/plan/plan.c" "$work"/objects/*.o -lm || { finish; exit 1; }

same() { # ARGUMENTS...
    $run "$work/plan.wasm" "$@" >"$work/there" 2>"$work/log" || complain "plan $* in WebAssembly: exit status $?"
    "$DP_TEST_BUILDDIR/examples/plan/plan" "$@" >"$work/here"
    cmp "$work/here" "$work/there" || complain "plan $*: WebAssembly says something else"
    [ "$(wc -c <"$work/here")" -gt 1000 ] || complain "plan $*: it says $(wc -c <"$work/here") bytes"
    echo "ok: plan $*: $(wc -c <"$work/here") bytes"
}
same
same dualpipev
same zbv

finish
