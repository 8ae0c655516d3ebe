#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_site.sh: the documentation as a site: it builds, no link or anchor of it is broken, no page loads anything from elsewhere, and
# the search has every function. Skipped where there is no mkdocs (Debian: mkdocs).
set -eu

for name in mkdocs python3; do
    command -v $name >/dev/null 2>&1 || { echo "skipped: no $name on this machine"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1
python3 "$DP_TEST_SRCDIR/docs/site/gather.py" "$DP_TEST_SRCDIR" "$DP_TEST_BUILDDIR" 0 "$work/site"
python3 "$DP_TEST_SRCDIR/tests/integration/site.py" "$work/site"
sed -n 's/^\.\\" offers //p' "$DP_TEST_BUILDDIR"/docs/man3/*.3 | sort -u | while read -r name; do
    grep -q "\"title\":\"[^\"]*$name" "$work/site/search/search_index.json" || echo "search does not find $name"
done >"$work/lost"
cat "$work/lost"
[ ! -s "$work/lost" ]
