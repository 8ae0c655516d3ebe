#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_manual.sh: help, the manual page, docs/json.md and bash completion have the commands, options and keys of the command, and
# no others; the pages of section 3 have every function of the public headers.
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

# docs/json.md has the keys that are printed, and no others.
cp "$DP_TEST_SRCDIR/docs/eplb/loads.tsv" "$DP_TEST_SRCDIR/docs/links.txt" "$work"
cp "$DP_TEST_SRCDIR"/tests/data/trace/deepseek_v3_train_1f1b.json.gz "$work/trace.json.gz"
layer=attention.F=1,attention.I=1,attention.W=1,dispatch.F=2,dispatch.I=2,mlp.F=1,mlp.I=1,mlp.W=1,combine.F=2,combine.I=2,LAYERS=2
small="--ranks 4 --microbatches 8"
keys() { # SECTION ARGUMENTS...: adds the keys that a command prints
    section=$1
    shift
    (cd "$work" && "$dualpipe" "$@" --format json) | grep -o '"[A-Za-z0-9_]*":' | tr -d '":' >>"$work/printed_$section"
}
keys schedule schedule --method dualpipe $small
keys simulate simulate --method dualpipe $small --cost $layer --topology links.txt --rank-scale 1:1.2 --activation-bytes 1GiB
keys simulate simulate --method 1f1b --ranks 1 --microbatches 8 --inference prefill --cost $layer --overlap planned
keys compare compare $small --topology links.txt --activation-bytes 1GiB --memory 7GiB
keys plan plan --model "$DP_TEST_DATA/models/mixtral-8x7b.json" --gpus 64 --global-batch 256 --show 400
keys plan plan --model "$DP_TEST_DATA/models/deepseek-v3.json" --gpus 2048 --gpu h800 --global-batch 15360 --pp 16 --ep 64 --method dualpipe \
    --costs trace.json.gz
keys eplb eplb --replicas 288 --gpus 32 loads.tsv
keys trace trace overlap trace.json.gz
for printed in "$work"/printed_*; do
    section=${printed##*_}
    sort -u "$printed" >"$work/has"
    awk -v section="$section" '/^## / { on = $2 == section } on' "$DP_TEST_SRCDIR/docs/json.md" | sed -n 's/^| \(`[^|]*\)|.*/\1/p' |
        tr ', ' '\n\n' | tr -d '`[]' | tr '.' '\n' | sed '/^$/d' | sort -u >"$work/says"
    echo schema >>"$work/says"
    [ "$section" != compare ] || printf 'B\nBANDWIDTH\nBYTES\nF\nFB\nHOP\nI\nR\nW\n' >>"$work/says" # costs, as for simulate
    [ "$section" != plan ] || echo reason >>"$work/has" # of a layout that cannot be simulated: these can
    sort -u "$work/has" -o "$work/has"
    sort -u "$work/says" | diff "$work/has" - >"$work/differ" ||
        fail "$section: keys printed (<) and those of docs/json.md (>): $(grep '^[<>]' "$work/differ" | tr '\n' ' ')"
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
    (cd "$work" && failures=0 && wanted page verify pa && [ "$failures" -eq 0 ]) || fail "completion of a file"
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
