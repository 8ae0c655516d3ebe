#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_archive.sh: what libdualpipe.a may ask of the world: libc, libm, threads and dl; no standard output, no end of the
# process, no allocation past the hooks. What it offers begins with dp_, what libdualpipe_conform.a offers with conform_ too.
set -eu

archive=$DP_TEST_BUILDDIR/libdualpipe.a
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# Lines "room/file symbol" for what the objects leave undefined.
cd "$DP_TEST_BUILDDIR"
$NM -A -u $DP_TEST_OBJECTS | sed -n 's/^libdualpipe\/\(.*\)\/[a-z_]*-\(.*\)\.o: *[Uw] \([^@]*\).*/\1\/\2 \3/p' >"$work/needs"
if [ "$(cut -d' ' -f1 "$work/needs" | sort -u | wc -l)" -lt 2 ]; then
    echo "nm says nothing about $DP_TEST_OBJECTS"
    exit 1
fi

forbid() { # WHY ALLOWED-FILES PATTERN
    if awk -v allowed=" $2 " -v pattern="^($3)\$" '$2 ~ pattern && index(allowed, " " $1 " ") == 0 { print; bad = 1 }
            END { exit !bad }' "$work/needs"; then
        echo "^ $1"
        failures=$((failures + 1))
    fi
}

forbid "the library never ends the process" "" \
    "exit|_exit|_Exit|quick_exit|abort|__assert_fail|__assert_perror_fail|raise|err|errx"
forbid "the library never writes to standard output" "" \
    "printf|vprintf|puts|putchar|putchar_unlocked|stdout|__printf_chk|__vprintf_chk"
forbid "memory comes through the allocator table" "base/memory" \
    "malloc|calloc|realloc|reallocarray|free|strdup|strndup|asprintf|vasprintf|__asprintf_chk|aligned_alloc|posix_memalign|memalign"
forbid "unsafe or not reentrant" "" "gets|strcpy|strcat|sprintf|vsprintf|strtok|tmpnam|mktemp|system|popen"

foreign=$($NM -g --defined-only "$archive" 2>/dev/null | awk 'NF == 3 && $3 !~ /^dp_/ && $3 !~ /^(__|_ZN|\.)/ {print $3}')
if [ -n "$foreign" ]; then
    echo "names outside dp_*:" $foreign
    failures=$((failures + 1))
fi

foreign=$($NM -g --defined-only "$DP_TEST_BUILDDIR/libdualpipe_conform.a" 2>/dev/null |
    awk 'NF == 3 && $3 !~ /^(dp_|conform_)/ && $3 !~ /^(__|_ZN|\.)/ {print $3}')
if [ -n "$foreign" ]; then
    echo "names of the suites outside conform_*:" $foreign
    failures=$((failures + 1))
fi

# Every member goes in, so that whatever is missing shows.
echo 'int main(void) { return 0; }' >"$work/main.c"
if ! $CC ${CFLAGS-} ${LDFLAGS-} -o "$work/main" "$work/main.c" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lpthread -ldl -lm; then
    failures=$((failures + 1))
else
    extra=$(readelf -d "$work/main" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -v -E '^(libc|libm|libpthread|libdl|libgcc_s|libasan|libubsan|libtsan|ld-linux.*)\.so\.' || :)
    if [ -n "$extra" ]; then
        echo "needs" $extra
        failures=$((failures + 1))
    fi
fi

# Someone will put it into a shared object.
if ! $CC ${CFLAGS-} ${LDFLAGS-} -shared -o "$work/lib.so" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lpthread -ldl -lm; then
    failures=$((failures + 1))
fi

echo "$(cut -d' ' -f1 "$work/needs" | sort -u | wc -l) files, $failures failures"
[ "$failures" -eq 0 ]
