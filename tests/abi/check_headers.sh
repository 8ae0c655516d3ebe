#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_headers.sh: each public header, alone and twice, compiles without a warning as C99, C11 and C++11; all are installed.
set -eu

headers=$DP_TEST_SRCDIR/include/dualpipe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
seen=0

compile() { # HEADER COMPILER OPTIONS...
    header=$1
    shift
    if ! "$@" -Wall -Wextra -pedantic -Werror -fsyntax-only -I"$DP_TEST_SRCDIR/include" "$source" 2>"$work/messages"; then
        echo "$header fails: $*"
        cat "$work/messages"
        failures=$((failures + 1))
    fi
}

for path in "$headers"/*.h "$headers"/draft/*.h; do
    [ -f "$path" ] || continue
    header=dualpipe/${path#"$headers"/}
    seen=$((seen + 1))
    for suffix in c cc; do
        printf '#include <%s>\n#include <%s>\nint dp_test_nothing;\n' "$header" "$header" >"$work/one.$suffix"
    done
    source=$work/one.c
    compile "$header" $CC -std=c99
    compile "$header" $CC -std=c11
    if command -v "$CXX" >/dev/null 2>&1; then
        source=$work/one.cc
        compile "$header" "$CXX" -std=c++11
    fi
    if ! grep -q "%D%/${path#"$headers"/}\\>" "$headers/Makefile.inc"; then
        echo "$header is not in include/dualpipe/Makefile.inc: it would not be installed"
        failures=$((failures + 1))
    fi
done

command -v "$CXX" >/dev/null 2>&1 || echo "no C++ compiler: C++11 was not tried (Debian: g++)"
echo "$seen headers, $failures failures"
[ "$seen" -gt 0 ] && [ "$failures" -eq 0 ]
