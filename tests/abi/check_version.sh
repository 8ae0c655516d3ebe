#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_version.sh: whatever says a version says that of configure.ac, whatever says its date that of CHANGELOG.md. "Since 0.2: NAMES" in a header names what is there, and no
# version to come.
set -eu
cd "$DP_TEST_SRCDIR"
version=$(sed -n 's/^AC_INIT(\[libdualpipe\], \[\(.*\)\])$/\1/p' configure.ac)
number=$(echo "$version" | awk -F. '{ print 10000 * $1 + 100 * $2 + $3 }')
failures=0

says() { # WHAT PATTERN FILE
    grep -qE "$2" "$3" || { echo "$1 does not say $version: $3"; failures=$((failures + 1)); }
}
says DP_VERSION "^#define DP_VERSION +\"$version\"\$" include/dualpipe/status.h
says DP_VERSION_NUMBER "^#define DP_VERSION_NUMBER $number " include/dualpipe/status.h
says "the Python package" "^version = \"$version\"\$" python/pyproject.toml
says "the first heading" "^## $version \\(" CHANGELOG.md
says "what is cited" "^version: $version\$" CITATION.cff
says "the Debian package" "^libdualpipe \\($version\\) " debian/changelog
date=$(sed -n "s/^## $version (\(.*\))\$/\1/p" CHANGELOG.md) # "not released": nothing else has a date
if [ "$date" != "not released" ]; then
    grep -qx "date-released: $date" CITATION.cff || { echo "the release is of $date: CITATION.cff"; failures=$((failures + 1)); }
    [ "$(date -u -d "$(sed -n '1,/^ -- /s/^ -- .*>  //p' debian/changelog)" +%F)" = "$date" ] ||
        { echo "the release is of $date: debian/changelog"; failures=$((failures + 1)); }
fi
says pkg-config "^Version: $version\$" "$DP_TEST_BUILDDIR/dualpipe.pc"
says "pkg-config of dualplan" "^Version: $version\$" "$DP_TEST_BUILDDIR/dualplan.pc"
says "pkg-config of the suites" "^Version: $version\$" "$DP_TEST_BUILDDIR/dualpipe-conform.pc"
for package in dualpipe dualplan; do
    says "CMake of $package" "\"$version\"" "$DP_TEST_BUILDDIR/$package-config-version.cmake"
done
"$DP_TEST_BUILDDIR/dualpipe" --version >"${TMPDIR:-/tmp}/dualpipe-version-$$"
says "dualpipe --version" "$version" "${TMPDIR:-/tmp}/dualpipe-version-$$"
rm -f "${TMPDIR:-/tmp}/dualpipe-version-$$"
for example in examples/*/CMakeLists.txt; do
    says "an example of CMake" "find_package\((dualpipe|dualplan) ${version%.*} " "$example"
done
for plugin in $(grep -l 'DP_PLUGIN_DEFINE' plugins/*/*.c apps/*/*.c apps/*/*/*.c 2>/dev/null); do
    says "a plugin" '\.version = DP_VERSION,' "$plugin"
done
for header in include/dualpipe/*.h include/dualpipe/*.hpp; do
    mark=$(awk '/^ \* Since [0-9]/ { on = 1 } on { print } /\*\// { on = 0 }' "$header")
    for since in $(echo "$mark" | sed -n 's/.*Since \([0-9.]*[0-9]\).*/\1/p'); do
        [ "$(echo "$since" | awk -F. '{ print 10000 * $1 + 100 * $2 }')" -le "$number" ] || {
            echo "$header: since $since, but this is $version"
            failures=$((failures + 1))
        }
    done
    for name in $(echo "$mark" | grep -oE '(\.|dp_|DP_)[A-Za-z_]+'); do
        [ "$(grep -cw -e "${name#.}" "$header")" -gt 1 ] || { echo "$header: since, but not there: $name"; failures=$((failures + 1)); }
    done
done
[ "$failures" -eq 0 ] || exit 1
echo "all say $version"
