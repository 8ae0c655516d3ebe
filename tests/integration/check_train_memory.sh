#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_memory.sh: what a run announces and what its processes grow by differ by what no option changes (code, stacks, the
# BLAS, pages of other ranks): no option takes memory that is not announced, or announces what it does not take.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
case " $CFLAGS " in *fsanitize=*)
    echo "skipped: a sanitizer has separate memory"
    exit 77
    ;;
esac

small="--layers 8 --hidden 128 --heads 4 --kv-heads 2 --experts 4 --expert-hidden 128 --seq 128 --batch 2 --warmup 1"
numbers() { # announced and grown MiB of the largest rank
    tr '\n' ' ' <"$work/out" | tr -s ' ' |
        sed -n 's/.*announced \([0-9.]*\) MiB for the largest rank.* had grown by \([0-9.]*\) MiB at most.*/\1 \2/p'
}
measure() { # OPTIONS...: leaves $announced, $beside
    ranks 4 --ep 2 --steps 1 --val-every 0 --sample 0 --microbatches 8 "$@"
    [ "$status" -eq 0 ] || complain "$*: exit status $status"
    set -- $(numbers)
    announced=${1:-0}
    beside=$(awk "BEGIN { print ${2:-0} - ${1:-0} }")
}

compare() { # SCHEDULE; lines of: least and most share of the memory without the options, and the options
    measure --schedule "$1"
    all=$announced
    base=$beside
    echo "$1: announced $all MiB, beside it $base MiB"
    awk "BEGIN { exit !($all > 40 && $base > 0 && $base < 40) }" || complain "$1: no memory is announced, or far more is taken"
    while read -r least most options; do
        measure --schedule "$1" $options
        printf '    %-50s %6s MiB, beside it %s MiB\n' "$options" "$announced" "$beside"
        awk "BEGIN { d = $beside - $base; exit !(d > -2 && d < 2) }" ||
            complain "$1 $options: $beside MiB beside what is announced, $base MiB without the options"
        awk "BEGIN { s = $announced / $all; exit !(s >= $least && s <= $most) }" ||
            complain "$1 $options: $announced MiB, without the options $all MiB"
    done
}

compare dualpipe <<EOF
0.5 0.8 --recompute full
0.8 0.99 --zero 1
1 1 --varlen --documents
1 1.3 --attention-kind mla --q-rank 96 --kv-rank 32
EOF
if long; then
    compare dualpipe <<EOF
0.7 0.95 --recompute cheap
0.6 0.9 --recompute mlp
1 1 --tie-embeddings
1 1 --accumulate 2
EOF
    compare zb1p <<EOF
0.9 1.1 --recompute cheap
0.8 0.99 --zero 1
EOF
fi
compare dualpipev <<EOF
0.6 0.9 --recompute full --zero 1
EOF
finish
