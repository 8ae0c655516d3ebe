#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_manual.sh: help, the manual page and bash completion have the commands and options of the tables, and no others; the pages of
# section 3 have every function of the public headers.
set -eu

dualpipe=$DP_TEST_BUILDDIR/dualpipe
page=$DP_TEST_SRCDIR/docs/dualpipe.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "$*"
    failures=$((failures + 1))
}

# Hyphens are escaped in the page.
sed 's/\\-/-/g; s/\\~/ /g' "$page" >"$work/page"
"$dualpipe" complete >"$work/commands"
for command in $(cat "$work/commands"); do
    grep -q "^\.SS dualpipe $command\$" "$work/page" || fail "dualpipe.1 has no section on dualpipe $command"
    "$dualpipe" "$command" --help >"$work/help"
    "$dualpipe" help | grep -q "^  $command  " || fail "dualpipe help does not list $command"
    # The section's own options, and those that it says are as in another's, are the command's.
    sed -n "/^\.SS dualpipe $command\$/,/^\.S[SH] /p" "$work/page" | sed 1d >"$work/section"
    "$dualpipe" complete "$command" | grep '^--' | sort -u >"$work/options"
    while read -r option; do
        grep -q -e "$option " "$work/help" || grep -q -e "$option\$" "$work/help" || fail "$command --help lacks $option"
        grep -q -e "$option" "$work/page" || fail "dualpipe.1 does not mention $option of dualpipe $command"
    done <"$work/options"
    awk 'head { print } { head = $0 == ".TP" }' "$work/section" | grep -o -e '--[a-z][a-z-]*' | sort -u >"$work/described"
    for option in $(comm -13 "$work/options" "$work/described"); do
        fail "dualpipe.1 describes $option of dualpipe $command, which has no such option"
    done
    grep -n '.\{81\}' "$work/help" && fail "$command --help has lines of more than 80 columns"
done

# What a page shows: its text without its comments. Prototypes stand there whole, what is said about them under them.
for header in "$DP_TEST_SRCDIR"/include/dualpipe/*.h; do
    name=$(basename "$header" .h)
    made=$DP_TEST_BUILDDIR/docs/man3/dualpipe_$name.3
    [ -s "$made" ] || { fail "no manual page of $name.h"; continue; }
    tr '\n' ' ' <"$header" | grep -o -E '(DP_API|static inline) [^;{(]*[ *]dp_[a-z0-9_]*\(' | sed 's/($//; s/.*[ *]//' | sort -u >"$work/declared"
    sed -n 's/^\.\\" offers //p' "$made" | sort -u | diff "$work/declared" - || fail "functions of $name.h (<) and those that dualpipe_$name.3 offers (>)"
    grep -v '^\.\\"' "$made" | sed 's/\\-/-/g; s/\\&//g; s/\\e/\\/g' >"$work/page3"
    grep -v '^\(#\|extern\|}\)' "$header" | grep '^\(DP_API\|typedef\|struct\)' | while read -r line; do
        grep -q -x -F -e "$line" "$work/page3" || echo "$line"
    done >"$work/lost"
    [ ! -s "$work/lost" ] || fail "dualpipe_$name.3 lacks $(cat "$work/lost")"
    pages="${pages-} $made"
done

if command -v groff >/dev/null 2>&1; then
    for made in "$page" ${pages-}; do
        groff -man -Tascii -rLL=120n -ww -z "$made" 2>"$work/warnings" || fail "groff refuses $made"
        [ ! -s "$work/warnings" ] || fail "groff on $made: $(cat "$work/warnings")"
    done
fi

if command -v bash >/dev/null 2>&1; then
    complete() { # WORDS...: the last one is being typed
        bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dualpipe; printf "%s\n" "${COMPREPLY[@]}"' \
            complete "$DP_TEST_SRCDIR/tools/completion/dualpipe" "$dualpipe" "$@"
    }
    wanted() { # TEXT WORDS...
        word=$1
        shift
        complete "$@" >"$work/words"
        grep -q -x -e "$word" "$work/words" || fail "completion of \"dualpipe $*\" lacks $word: $(cat "$work/words")"
    }
    wanted schedule sch
    wanted simulate s
    wanted --microbatches schedule --m
    wanted --memory-cap verify --
    wanted dualpipev schedule --method dualp
    wanted 1f1b simulate --method ''
    wanted trace schedule --format tr
    wanted text compare --format ''
    wanted check plugin c
    wanted processes plugin check x --mode p
    wanted comm_shm plugin check comm_s
    wanted --list plugin check --l
    wanted device_cpu plugin check x --device d
    wanted comm_shm bench-links --near c
    wanted dualpipe,zbv demo --methods dualpipe,z
    wanted env run -n 2 -- en
    wanted zbv demo --methods z
    wanted --far bench-links --f
    wanted --grace run --g
    wanted json simulate x.tsv --format j
    wanted hierarchical eplb --policy h
    wanted --expert-bytes eplb --e
    wanted group verify x.tsv --transport g
    wanted overlap trace ov
    wanted view trace ''
    wanted --comm trace overlap --c
    wanted svg trace overlap --format ''
    wanted start trace merge --align s
    (cd "$work" && wanted page verify pa && [ "$failures" -eq 0 ]) || fail "completion of a file"
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
