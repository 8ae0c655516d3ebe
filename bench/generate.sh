#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# generate.sh: what it is worth that keys and values are kept, and that two micro-batches run beside each other. The best of ROUNDS in
# turn. Run in the build folder:   ../bench/generate.sh [ROUNDS]
#
#   cache      train_moe's default model over two ranks: bytes a second of text behind 256 bytes, 128 for each of 32 sequences, the reading
#              of the 256 included, over those of computing a window of 256 for every byte (wanted: >= 10)
#   prefill    generate, two ranks that are two servers: time to read 64 prompts of 192 bytes in the order prefill, over that of one
#              micro-batch after the other (wanted: <= 1)
#   decode     the same of writing 200 bytes behind 16 prompts of 32 bytes, in the order decode, its exchanges posted
#              Both over processes of this host, and of two hosts made of namespaces: as root, after "make tests/hosts/cable"
set -eu

rounds=${1:-5}
DP_TEST_BUILDDIR=$PWD
DP_TEST_SRCDIR=$(cd "$(dirname "$0")/.." && pwd)
DUALPIPE_PLUGIN_PATH=$PWD/.libs
DUALPIPE_OFI_PROVIDER=${DUALPIPE_OFI_PROVIDER:-tcp}
OMP_NUM_THREADS=1
OPENBLAS_NUM_THREADS=1
export DUALPIPE_PLUGIN_PATH DUALPIPE_OFI_PROVIDER OMP_NUM_THREADS OPENBLAS_NUM_THREADS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
generate=$PWD/examples/generate/generate

run() { # COMMAND...: what it prints only where it fails
    "$@" >"$work/out" 2>&1 </dev/null || { cat "$work/out" >&2; exit 1; }
}
ratio() { # FILE OF A FILE OF B: the largest number of each, and theirs
    a=$(sort -g "$1" | tail -n 1) b=$(sort -g "$2" | tail -n 1)
    awk -v a="$a" -v b="$b" 'BEGIN { printf "%d and %d bytes a second: %.3f", a, b, a / b }'
}

# ---- keys and values ----

write_text() { # CACHE SEQ BYTES: bytes a second
    run ./dualpipe run -n 2 -- apps/train_moe/train_moe --steps 1 --val-every 0 --sample-seconds 1000 --sample-cache "$1" --seq "$2" --sample "$3"
    sed -n 's/.*Written by the model.*, \([0-9]*\) bytes a second.*/\1/p' "$work/out"
}
for round in $(seq "$rounds"); do
    write_text 1 512 128 >>"$work/with"
    write_text 0 256 4 >>"$work/without"
done
echo "with a cache and without, $(ratio "$work/with" "$work/without") times (wanted: >= 10)"

# ---- two micro-batches ----

run ./dualpipe run -n 2 -- apps/train_moe/train_moe --steps 2 --val-every 0 --sample 0 --seq 256 --checkpoint "$work/model"
tr -cs '[:alnum:]' ' ' <"$DP_TEST_SRCDIR/docs/inference.md" >"$work/words"
cat "$work/words" "$work/words" "$work/words" | fold -w 192 | head -n 64 >"$work/long"
fold -w 32 "$work/words" | head -n 16 >"$work/short"

near() { # OPTIONS...
    run ./dualpipe run -n 2 -- "$generate" "$work/model" --ep 2 "$@"
}
far() { # the same, a rank on each host
    port=$((port + 1))
    hosts_port=$port hosts_ranks 1 "$generate" "$work/model" --ep 2 "$@"
    for r in 0 1; do
        hosts_await rank$r 120
        [ "$status" = 0 ] || { cat "$hosts_work/rank$r.err" >&2; exit 1; }
    done
    cp "$hosts_work/rank0.err" "$work/out"
}
rate() { # PHASE FILE: adds its bytes a second
    sed -n "s/.*$1 [0-9]* bytes, \([0-9]*\) a second.*/\1/p" "$work/out" >>"$2"
}
compare() { # near or far, WHERE
    for round in $(seq "$rounds"); do
        for order in prefill serial; do
            "$1" --order $order -n 1 --prompts "$work/long"
            rate prefill "$work/$1.prefill.$order"
        done
        for order in decode serial; do
            "$1" --order $order -n 200 --prompts "$work/short"
            rate decode "$work/$1.decode.$order"
        done
    done
    for phase in prefill decode; do
        echo "$2: one after the other and in the order $phase, $(ratio "$work/$1.$phase.serial" "$work/$1.$phase.$phase") times (wanted: <= 1)"
    done
}
compare near "one host"
(
    . "$DP_TEST_SRCDIR/tests/hosts/hosts.sh"
    port=29700
    hosts_begin 2
    compare far "two hosts"
) || { [ $? -eq 77 ] && echo "two hosts: not possible here"; }
