#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# freeze.sh: makes frozen/MAJOR.MINOR of the headers as they are, with the smallest trainer. Once, with a release.
set -eu
cd "$(dirname "$0")/../.."
number() { awk -v name="DP_ABI_$1" '$2 == name { print $3 }' include/dualpipe/plugin.h; }
folder=tests/abi/frozen/$(number MAJOR).$(number MINOR)
rm -rf "$folder/include"
mkdir -p "$folder/include"
cp -R include/dualpipe "$folder/include/"
rm -rf "$folder/include/dualpipe/Makefile.inc" "$folder/include/dualpipe/draft" # drafts are not frozen
cp examples/smallest/smallest.c "$folder/"
[ -f "$folder/host.c" ] || echo "freeze: write $folder/host.c, a trainer that uses what is new" >&2
