#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_plan_library.sh: libdualplan.a asks for C11, libm and a few functions of POSIX, and for no thread, process or file. Its sources
# are plain C11. It offers what plan.h declares and nothing else. libdualpipe.a holds the same objects, so a program that links both
# has each once. The Python package is built of the same rooms.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/planning.sh"

plan=$DP_TEST_BUILDDIR/libdualplan.a
pipe=$DP_TEST_BUILDDIR/libdualpipe.a
symbols() { # OPTION OBJECT...: names; what compilers and sanitizers add begins with __ or GLOBAL_
    $NM "$@" 2>/dev/null | sed -n 's/^.* [A-TV-Zuw] \([^@ ]*\)$/\1/p; s/^ *U \([^@ ]*\)$/\1/p' |
        grep -v -E '^(__|_GLOBAL_|\.|_ZN)' | sort -u
}

# ---- what it asks for ----

iso="clearerr fclose feof ferror fflush fprintf fputc fputs fwrite putc snprintf vsnprintf vfprintf sscanf
    abs atoi atof bsearch free getenv labs llabs qsort strtod strtof strtol strtoll strtoul strtoull
    memchr memcmp memcpy memmove memset strchr strcmp strcspn strlen strncmp strpbrk strrchr strspn strstr
    isalnum isalpha isdigit isspace isupper tolower toupper errno stderr
    ceil exp fabs floor fmax fmaxf fmin fminf fmod ldexp llround log lround nan nearbyint pow rint round sqrt sqrtf trunc"
posix="clock_gettime posix_memalign regcomp regerror regexec regfree strcasecmp strncasecmp strnlen stpcpy"
symbols -u $planning_objects >"$work/asked"
symbols --defined-only $planning_objects >"$work/own"
printf '%s\n' $iso $posix | sort -u >"$work/allowed"
[ "$(wc -l <"$work/own")" -gt 300 ] || complain "nm found $(wc -l <"$work/own") names: they are more"
comm -23 "$work/asked" "$work/own" | comm -23 - "$work/allowed" >"$work/log"
[ ! -s "$work/log" ] || complain "libdualplan.a asks for what planning does not need"
echo 'int main(void) { return 0; }' >"$work/main.c"
quietly "all of it links with libm alone" $CC ${CFLAGS-} ${LDFLAGS-} -o "$work/main" "$work/main.c" \
    -Wl,--whole-archive "$plan" -Wl,--no-whole-archive -lm || :

strict="-std=c11 -pedantic -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror"
quietly "its sources are C11" $CC $strict -fsyntax-only -I"$DP_TEST_SRCDIR/include" -I"$DP_TEST_SRCDIR/libdualpipe" $planning_sources || :

# ---- what it offers ----

for header in $(echo '#include <dualpipe/plan.h>' | $CC -I"$DP_TEST_SRCDIR/include" -MM -MT x -x c - | tr -d '\\' | sed 's/^x://'); do
    cat "$header"
done | grep -v '^#' | tr '\n' ' ' | grep -o 'DP_API [^;{(]*dp_[a-z0-9_]*(' | sed 's/($//; s/.*[ *]//' | sort -u >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 50 ] || complain "plan.h declares $(wc -l <"$work/declared") functions: they are more"
grep -v '^dp__' "$work/own" >"$work/offered" || :
diff "$work/declared" "$work/offered" >"$work/log" || complain "declared by plan.h (<) and offered (>) are not the same"

# ---- the two archives ----

ar t "$plan" | sort >"$work/members"
ar t "$pipe" | sort | comm -23 "$work/members" - >"$work/log"
[ ! -s "$work/log" ] || complain "not in libdualpipe.a"
links() { # NAME LIBRARIES...: the planning example
    name=$1
    shift
    quietly "$name links" $CC $flags -I"$DP_TEST_SRCDIR/include" ${LDFLAGS-} -o "$work/$name" "$DP_TEST_SRCDIR/examples/plan/plan.c" "$@" &&
        quietly "$name plans" sh -c "LD_LIBRARY_PATH='$DP_TEST_BUILDDIR' '$work/$name' >'$work/$name.out'" &&
        { cmp "$work/plan.out" "$work/$name.out" || complain "$name: another plan"; } || :
    once=$($NM "$work/$name" | grep -c ' [TU] dp_fail\(@.*\)*$' || :)
    [ "$once" -eq 1 ] || complain "$name: dp_fail is there $once times"
}
links plan "$plan" -lm
$NM -D -u "$work/plan" | grep -q pthread_create && complain "a program that plans needs threads"
links plan_pipe "$plan" "$pipe" -lpthread -ldl -lm
links pipe_plan "$pipe" "$plan" -lpthread -ldl -lm
links pipe "$pipe" -lpthread -ldl -lm
if [ -e "$DP_TEST_BUILDDIR/libdualpipe.so" ]; then
    links shared -L"$DP_TEST_BUILDDIR" -ldualpipe -lm
    links shared_plan -L"$DP_TEST_BUILDDIR" -ldualpipe -ldualplan -lm # what pkg-config makes of both
    $NM "$work/shared_plan" | grep -q ' T dp_' && complain "a program of both holds objects that libdualpipe.so has"
fi

# ---- Python ----

sed -n 's/^ROOMS = (\(.*\))$/\1/p' "$DP_TEST_SRCDIR/python/setup.py" | tr -d '" ' | tr ',' '\n' | sort >"$work/python"
echo "$planning_sources" | tr ' ' '\n' | sed -n 's|.*/libdualpipe/\([a-z]*\)/.*|\1|p' | sort -u >"$work/rooms"
diff "$work/python" "$work/rooms" >"$work/log" || complain "rooms of python/setup.py (<) and of libdualplan.a (>)"

finish
