#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_rust.sh: the example rust: bindgen reads the headers, cargo builds both crates with nothing fetched, and two ranks have the losses
# of one process, to the last bit. bindgen sees each DP_*_MIN of the headers that it reads.
set -u

for tool in cargo bindgen pkg-config; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "skipped: no $tool (Debian: cargo, bindgen, pkgconf)"
        exit 77
    fi
done
. "$DP_TEST_SRCDIR/tests/integration/built_pc.sh"
cp -R "$DP_TEST_SRCDIR/examples/rust" "$work/rust"
cd "$work/rust" || exit 1
if ! cargo --version >"$work/log" 2>&1; then
    echo "skipped: cargo does not run: $(tail -n 1 "$work/log")"
    exit 77
fi

quietly "both crates build" cargo build --release --offline || { finish; exit 1; }
! grep -i 'warning' "$work/log" || complain "warnings"
quietly "make check: the losses of one process" make check || :
[ "$(wc -l <serial.txt)" -eq 9 ] || complain "not nine lines of losses"
bindings=$(find target -name bindings.rs | head -n 1)
for least in $(sed -n 's/^enum { \(DP_[A-Z0-9_]*_MIN\) = .*/\1/p' "$DP_TEST_SRCDIR"/include/dualpipe/stage.h \
    "$DP_TEST_SRCDIR"/include/dualpipe/pipeline.h "$DP_TEST_SRCDIR"/include/dualpipe/simulate.h); do
    grep -q "pub const $least *:" "$bindings" || complain "bindgen does not see $least"
done
if grep -n 'define DP_[A-Z0-9_]*_MIN ' "$DP_TEST_SRCDIR"/include/dualpipe/*.h "$DP_TEST_SRCDIR"/include/dualpipe/draft/*.h |
    grep -v '_ABI_MINOR '; then
    complain "these are macros with sizeof, which bindgen leaves out: make them constants of an enum"
fi
for header in types number; do
    for name in $(sed -n 's/^static inline [a-z0-9_ ]*[ *]\(dp_[a-z0-9_]*\)(.*/\1/p' "$DP_TEST_SRCDIR/include/dualpipe/$header.h"); do
        grep -q "pub fn dp_ffi_${name#dp_} *(" "$bindings" || complain "$name has no twin in ffi.h"
    done
done
finish
