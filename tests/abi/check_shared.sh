#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_shared.sh: libdualpipe.so offers the functions that the public headers declare and nothing else, needs the C library alone,
# and a program linked with it loads the same plugins and trains with the same bits as one that holds the archive.
set -eu
. "$DP_TEST_SRCDIR/tests/abi/outside.sh"

abi=$(awk '$2 == "DP_ABI_MAJOR" { print $3 }' "$DP_TEST_SRCDIR/include/dualpipe/plugin.h")
library=$DP_TEST_BUILDDIR/libdualpipe.so.$abi
dynamic() { # FIELD
    readelf -d "$library" | sed -n "s/.*($1).*\\[\\(.*\\)\\]/\\1/p"
}

# ---- the file ----

[ "$(dynamic SONAME)" = "libdualpipe.so.$abi" ] || complain "its soname is \"$(dynamic SONAME)\""
[ "$(readlink "$DP_TEST_BUILDDIR/libdualpipe.so")" = "libdualpipe.so.$abi" ] || complain "libdualpipe.so does not lead to it"
needs=$(dynamic NEEDED | grep -v -E '^(libc|libm|libpthread|libdl|libgcc_s|libasan|libubsan|libtsan|ld-linux.*)\.so\.' || :)
[ -z "$needs" ] || complain "needs" $needs
readelf -d "$library" | grep -q TEXTREL && complain "has text relocations"

$NM -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sort >"$work/offered"
cat "$DP_TEST_SRCDIR"/include/dualpipe/*.h | grep -v '^#' | tr '\n' ' ' | grep -o 'DP_API [^;{(]*dp_[a-z0-9_]*(' | sed 's/($//; s/.*[ *]//' |
    grep -v '^conform_\|^dp_conform' | sed "s/$/@@DUALPIPE_$abi/" | sort -u >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 100 ] || complain "found $(wc -l <"$work/declared") functions in the headers: they are more"
diff "$work/declared" "$work/offered" >"$work/log" || complain "declared (<) and offered (>) are not the same"

# ---- programs ----

for way in static shared; do
    case $way in
    static) libraries="$DP_TEST_BUILDDIR/libdualpipe.a -lpthread -ldl -lm" ;;
    shared) libraries="-L$DP_TEST_BUILDDIR -ldualpipe -lm" ;;
    esac
    quietly "$way: smallest.c links" $CC $flags -I"$DP_TEST_SRCDIR/include" ${LDFLAGS-} -o "$work/$way" \
        "$DP_TEST_SRCDIR/examples/smallest/smallest.c" $libraries || continue
    ldd=$(LD_LIBRARY_PATH=$DP_TEST_BUILDDIR ldd "$work/$way" | grep -c libdualpipe || :)
    case $way$ldd in
    static0 | shared1) ;;
    *) complain "$way: ldd names libdualpipe $ldd times" ;;
    esac
    quietly "$way: trains with plugins" env LD_LIBRARY_PATH="$DP_TEST_BUILDDIR" timeout $((60 * scale)) \
        "$DP_TEST_BUILDDIR/dualpipe" run -n 2 --no-prefix -- "$work/$way" && cp "$work/log" "$work/$way.log" || :
done
cmp -s "$work/static.log" "$work/shared.log" || complain "the two print other losses"
grep -q '[0-9]' "$work/shared.log" || complain "nothing was printed"

# ---- a plugin that links it ----

sed 's/DP_FAIL(host, /dp_fail(/; s/DP_FAIL(a->host, /dp_fail(/' "$DP_TEST_SRCDIR/examples/plugin_template/attention/attention_mine.c" >"$work/attention.c"
$CC ${CFLAGS-} -fPIC -fvisibility=hidden -I"$DP_TEST_SRCDIR/include" -shared ${LDFLAGS-} -o "$work/dp_attention_linked.so" \
    "$work/attention.c" -L"$DP_TEST_BUILDDIR" -ldualpipe -lm
if LD_LIBRARY_PATH=$DP_TEST_BUILDDIR "$DP_TEST_BUILDDIR/dualpipe" plugin check "$work/dp_attention_linked.so" --list >"$work/log" 2>&1; then
    complain "a plugin that links libdualpipe.so was taken"
elif ! grep -q 'needs dp_fail from outside' "$work/log"; then
    complain "a plugin that links libdualpipe.so: refused without the reason"
fi

finish
