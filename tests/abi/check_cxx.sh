#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_cxx.sh: each public header, and a trainer, compile as C++20 with -Wold-style-cast and -Wshadow, by $CXX and by clang++.
# The trainer trains; what it throws in `build` or in a segment ends the job with a sentence, and unwinds nothing. And a C
# compiler warns of a status that is dropped.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/outside.sh"

strict="-std=c++20 -Wall -Wextra -Wold-style-cast -Wshadow -Werror -I$DP_TEST_SRCDIR/include"
for path in "$DP_TEST_SRCDIR"/include/dualpipe/*.h "$DP_TEST_SRCDIR"/include/dualpipe/*.hpp; do
    echo "#include <dualpipe/$(basename "$path")>"
done >"$work/all.cc"
printf '#include <dualpipe/dualpipe.h>\nvoid f(dp_pipeline_t *p, dp_step_t *s) { dp_pipeline_step(p, s); }\n' >"$work/dropped.c"
if $CC -Wall -Werror -I"$DP_TEST_SRCDIR/include" -c -o "$work/dropped.o" "$work/dropped.c" 2>"$work/log"; then
    complain "a dropped status: no warning"
fi

if ! command -v "${CXX##* }" >/dev/null 2>&1; then
    echo "no C++ compiler: C++20 was not tried (Debian: g++)"
    finish
    exit
fi
for compiler in "$CXX" clang++; do
    command -v "${compiler##* }" >/dev/null 2>&1 || continue
    quietly "$compiler: all headers" $compiler $strict -fsyntax-only "$work/all.cc" || :
    quietly "$compiler: the trainer" $compiler $strict -fsyntax-only "$DP_TEST_SRCDIR/tests/abi/trainer20.cc" || :
done
quietly "the trainer links" $CXX $strict ${CFLAGS-} ${LDFLAGS-} -o "$work/trainer20" "$DP_TEST_SRCDIR/tests/abi/trainer20.cc" \
    "$DP_TEST_BUILDDIR/libdualpipe.a" -lpthread -ldl -lm || { finish; exit 1; }
run() { # ARGUMENTS...
    timeout $((60 * scale)) "$DP_TEST_BUILDDIR/dualpipe" run -n 2 --no-prefix -- "$work/trainer20" "$@"
}
quietly "the trainer trains" run || :
for where in build forward; do
    set +e
    run $where >"$work/log" 2>&1
    status=$?
    set -e
    [ "$status" -eq 3 ] && grep -q "no bricks" "$work/log" || complain "a throw in $where: exit status $status"
done

finish
