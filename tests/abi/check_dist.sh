#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_dist.sh: the release archive has the same bytes whoever makes it, and when: two, by people with other settings.
set -eu
case "${CFLAGS-}" in
*-fsanitize*) echo "skipped: it is the same with a sanitizer"; exit 77 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive() { # NAME UMASK ENVIRONMENT...
    name=$1
    umask "$2"
    shift 2
    env MAKEFLAGS= "$@" make -C "$DP_TEST_BUILDDIR" release >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
    (cd "$DP_TEST_BUILDDIR" && sha256sum --quiet -c libdualpipe-[0-9]*.tar.gz.sha256)
    rm "$DP_TEST_BUILDDIR"/libdualpipe-[0-9]*.tar.gz.sha256
    mv "$DP_TEST_BUILDDIR"/libdualpipe-[0-9]*.tar.gz "$work/$name"
}
archive here 022
archive there 077 TZ=Asia/Tokyo LC_ALL=C GZIP=-1
cmp "$work/here" "$work/there"
tar -tzf "$work/here" >"$work/list"
for file in configure debian/rules REUSE.toml CITATION.cff quickstart tests/data/trace/deepseek_v3_train_1f1b.json.gz; do
    grep -q "^libdualpipe-[0-9.]*/$file\$" "$work/list" || { echo "the archive has no $file"; exit 1; }
done
! grep -E '\.o$|/\.git/' "$work/list"
sha256sum <"$work/here"
