#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_generate.sh: the example generate answers as train_moe writes by plain forwards over the whole text, whatever the number of
# ranks, servers and slots; each byte is also what a prompt that ends before it is answered with. What cannot be answered is refused.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"
generate=$DP_TEST_BUILDDIR/examples/generate/generate

answer() { # RANKS OPTIONS AND PROMPTS...: by the checkpoint of $model
    n=$1
    shift
    status=0
    timeout $((60 * scale)) "$dualpipe" run --no-prefix -n "$n" -- "$generate" "$work/$model" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}
same() { # FILE WHAT
    [ "$status" -eq 0 ] && cmp -s "$work/$1" "$work/out" || complain "$2: exit status $status, or other answers: $(diff "$work/$1" "$work/out" | head -n 2)"
}

# A model that knows a sentence by heart, and its text after four prompts; 12 experts go over 1 to 4 servers.
yes 'the quick brown fox jumps over the lazy dog. ' | head -n 400 | tr -d '\n' >"$work/text"
learn() { # MODEL OPTIONS...
    model=$1
    shift
    timeout $((60 * scale)) "$train" --threads 1 --data "$work/text" --layers 4 --hidden 16 --heads 2 --experts 12 --expert-hidden 8 --seq 32 \
        --batch 2 --microbatches 4 --steps 40 --lr 0.02 --warmup 4 --val-every 0 --sample 16 --sample-cache 0 --temperature 0 \
        --checkpoint "$work/$model" "$@" >"$work/out" 2>"$work/err" </dev/null || complain "train_moe $*"
    sed -n 's/^  - //p' "$work/out" >"$work/$model.text"
    sed -n 's/^  - \[\(.*\)\].*/\1/p' "$work/out" >"$work/$model.prompts"
    [ "$(wc -l <"$work/$model.prompts")" -eq 4 ] || complain "train_moe wrote no text after four prompts"
}
learn latent --attention-kind mla --q-rank 8 --tie-embeddings --gate softmax --route-groups 4 --shared-experts 0
answer 2 --ep 2 -n 16 --prompts "$work/latent.prompts"
same latent.text "f32, latent attention, tied embeddings"
learn plain --dtype f64 --kv-heads 1
answer 1 -n 16 --slots 1 --prompts "$work/plain.prompts"
same plain.text "one rank, one slot"

# More prompts than slots, one of a byte, one that leaves room for two bytes, one for one.
long='the lazy dog. the quick brown fo'
{ cat "$work/plain.prompts"; printf '%s\n' o "${long%o}" "$long" brown; } >"$work/prompts"
answer 1 -n 16 --slots 3 --prompts "$work/prompts"
mv "$work/out" "$work/answers"
grep -q '^generate: prefill 133 bytes, [0-9]* a second; decode [0-9]* bytes, [0-9]* a second; [0-9.]* % idle' "$work/err" || complain "no figures"
expect 0 err 'answer 6 ends after 2 bytes: the context of 32 is full' "a prompt that fills the context but for a byte"
expect 0 err 'answer 7 ends after 1 bytes' "one that fills it"
for layout in "2 1 decode" "3 1 decode" "4 1 prefill" "2 2 prefill" "4 2 decode" "3 3 serial" "4 4 decode"; do
    set -- $layout
    answer "$1" --ep "$2" --order "$3" -n 16 --slots 2 --prompts "$work/prompts"
    same answers "$layout"
done

# Experts move beside steps, by what these have counted, a layer of each rank beside one; the answers stay.
for layout in "2 2" "4 2" "4 4"; do
    set -- $layout
    answer "$1" --ep "$2" --eplb 1 -n 16 --slots 2 --prompts "$work/prompts"
    same answers "$layout, experts placed by load"
    awk '/tokens of prompts: the fullest server has/ { prompts++; worse += $13 > $17 } /tokens of decode: the fullest/ { decode++; worse += $13 > $17 }
        END { exit !(prompts > 0 && decode > 0 && worse == 0) }' "$work/err" || complain "$layout: no better places: $(cat "$work/err")"
    grep -q "beside $((4 * $2 / $1)) steps\$" "$work/err" || complain "$layout: layers did not move one by one"
done

# A prompt with a part of its answer is answered with the rest.
line=$(sed -n 5p "$work/answers" | tr -d '[]')
set --
for bytes in 2 5 8 11 15; do
    set -- "$@" "$(printf %s "$line" | cut -c "1-$bytes")"
done
answer 2 -n 1 "$@"
for bytes in 2 5 8 11 15; do
    printf '[%s]%s\n' "$(printf %s "$line" | cut -c "1-$bytes")" "$(printf %s "$line" | cut -c $((bytes + 1)))"
done >"$work/rest"
same rest "the next byte of a part of an answer"
answer 2 -n 8 --temperature 0.5 a b
mv "$work/out" "$work/drawn"
answer 2 -n 8 --temperature 0.5 a b
same drawn "drawn twice"

# ---- refused ----

answer 1 brown ""
expect 1 err 'prompt 2 has 0 bytes: 1 to 32 are answered' "an empty prompt"
answer 2 "${long}x"
expect 1 err 'prompt 1 has 33 bytes: 1 to 32' "a prompt longer than the context"
answer 2 --ep 3 a
expect 1 err '--ep 3 of 2 ranks' "more servers than ranks"
answer 5 a
expect 1 err 'a model of 4 layers is too small for pipelines of 5 ranks' "more ranks than layers"
answer 1 --prompts "$work/none"
expect 1 err '--prompts .*/none cannot be opened' "no file of prompts"
answer 1 --order sideways a
expect 2 err 'usage: ' "an order that is none"
model=nowhere
answer 1 a
expect 1 err 'nowhere: there is no checkpoint' "no checkpoint"
finish
