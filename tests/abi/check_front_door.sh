#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_front_door.sh: the program at the head of dualpipe.h compiles as it stands there, as C11 and as C++20, and trains on
# two ranks. It calls all ten functions of the list above it, in that order.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/outside.sh"

header=$DP_TEST_SRCDIR/include/dualpipe/dualpipe.h
sed -n '/^ \*     #include <dualpipe/,/^ \* Errors\./p' "$header" | sed '$d; s/^ \*     //; s/^ \*$//' >"$work/double.c"
cp "$work/double.c" "$work/double.cc"
sed -n 's/^ \* *\(dp_[a-z_]*\)   *[a-z].*/\1/p' "$header" >"$work/ten"
[ "$(wc -l <"$work/ten")" -eq 10 ] || complain "the list has $(wc -l <"$work/ten") functions"
while read -r name; do
    grep -q "\\<$name(" "$work/double.c" || complain "the program does not call $name"
done <"$work/ten"

train() { # LANGUAGE
    quietly "$1: trains" timeout $((60 * scale)) "$DP_TEST_BUILDDIR/dualpipe" run -n 2 --no-prefix -- "$work/$1" || return 0
    cp "$work/log" "$work/$1.log"
    tail -n 1 "$work/$1.log" | grep -q '^step 49, loss 0\.000000$' || complain "$1: $(tail -n 1 "$work/$1.log")"
}
libraries="$DP_TEST_BUILDDIR/libdualpipe.a -lpthread -ldl -lm"
quietly "C11" $CC $flags -std=c11 -pedantic -I"$DP_TEST_SRCDIR/include" ${LDFLAGS-} -o "$work/c" "$work/double.c" $libraries && train c
if command -v "${CXX##* }" >/dev/null 2>&1; then
    quietly "C++20" $CXX $flags -Wno-missing-field-initializers -std=c++20 -I"$DP_TEST_SRCDIR/include" ${LDFLAGS-} -o "$work/cxx" \
        "$work/double.cc" $libraries && train cxx
    cmp "$work/c.log" "$work/cxx.log" || complain "C++ prints other losses than C"
else
    echo "no C++ compiler: C++20 was not tried (Debian: g++)"
fi

finish
