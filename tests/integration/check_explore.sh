#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_explore.sh: the explorer in a headless browser: figures as the command has them, circles, keys, names, contrast, no error
# and no request. Skipped where there is no Chromium, no Python or no compiler for WebAssembly (Debian: chromium python3 clang lld
# wasi-libc libclang-rt-dev-wasm32). explore.py has the checks.
set -eu

browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v $name) || browser=
done
skip() {
    echo "skipped: $*"
    exit 77
}
[ -n "$browser" ] || skip "no chromium on this machine"
command -v python3 >/dev/null 2>&1 || skip "no python3 on this machine"
page=$DP_TEST_BUILDDIR/explore.html
[ -f "$page" ] || page=$DP_TEST_SRCDIR/explore.html
[ -f "$page" ] || skip "explore.html was not built: no clang that links for wasm32-wasi"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$(wc -c <"$page")" -le 1500000 ] || { echo "explore.html has $(wc -c <"$page") bytes"; exit 1; }
[ "$(cd "$work" && "$DP_TEST_BUILDDIR/dualpipe" explore '#method=zbv' | sed 's/^.*explore\.html//')" = '#method=zbv' ] ||
    { echo "dualpipe explore: $("$DP_TEST_BUILDDIR/dualpipe" explore '#method=zbv' 2>&1)"; exit 1; }
"$DP_TEST_BUILDDIR/dualpipe" explore a b >"$work/out" 2>&1 && status=0 || status=$?
[ $status -eq 2 ] && grep -q 'b: one operand too many' "$work/out" || { echo "dualpipe explore a b: exit status $status"; exit 1; }
mkdir "$work/alone" && cp "$DP_TEST_BUILDDIR/dualpipe" "$work/alone"
"$work/alone/dualpipe" explore >"$work/out" 2>&1 && status=0 || status=$?
[ $status -eq 1 ] && grep -q 'no explore.html .*make explore' "$work/out" || grep -q '^file://.*/explore.html$' "$work/out" ||
    { echo "dualpipe explore without a page: exit status $status"; exit 1; }
PYTHONDONTWRITEBYTECODE=1 python3 "$DP_TEST_SRCDIR/tests/integration/explore.py" "$browser" "$page" \
    "$DP_TEST_BUILDDIR/dualpipe" "$work" "$DP_TEST_DATA/trace/deepseek_v3_train_1f1b.json.gz"
