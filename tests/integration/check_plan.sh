#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_plan.sh: dualpipe plan: parameters of published models to the last one, layouts whose numbers agree with each other and with
# what can be worked out by hand, advice, refusals.
set -eu

subcommand=plan
. "$DP_TEST_SRCDIR/tests/integration/command.sh"
models=$DP_TEST_SRCDIR/tests/data/models

python3 - "$dualpipe" "$models" <<'P' || failures=$((failures + 1))
import json, math, subprocess, sys

command, models = sys.argv[1:]
GIB = 2**30
bad = 0


def plan(model, gpus, *options):
    done = subprocess.run([command, "plan", "--model", f"{models}/{model}.json", "--gpus", str(gpus), "--format", "json", "--show", "8192",
                           *options], capture_output=True, text=True)
    if done.returncode not in (0, 20):
        raise SystemExit(f"plan {model} {gpus} {options}: {done.returncode} {done.stderr}")
    return json.loads(done.stdout), done.returncode


def expect(true, *words):
    global bad
    if not true:
        print(*words)
        bad += 1


# As the published checkpoints have them (sizes of their safetensors, without scales and layers that predict further tokens).
published = {
    "deepseek-v3": 671026419200, "deepseek-v2": 235741434880, "deepseek-v2-lite": 15706484224, "mixtral-8x7b": 46702792704,
    "mixtral-8x22b": 140620634112, "qwen3-30b-a3b": 30532122624, "qwen3-235b-a22b": 235093634560, "qwen3-0.6b": 596049920,
    "llama-3-8b": 8030261248, "llama-3-70b": 70553706496, "llama-3.1-405b": 405853388800, "gpt-oss-20b": 20914757184,
    "gpt-oss-120b": 116829156672, "gpt2": 124439808,
}
for model, parameters in published.items():
    answer, _ = plan(model, 1, "--memory", "1MiB", "--global-batch", "1")
    expect(answer["model"]["parameters"] == parameters, model, answer["model"], "published:", parameters)
    expect(not any(l["fits"] for l in answer["layouts"]), model, "fits into 1 MiB")
# Parameters that a token meets, in thousands of millions, as their authors round them.
for model, active in (("deepseek-v3", 37), ("deepseek-v2", 21), ("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22), ("mixtral-8x7b", 12.9)):
    answer, _ = plan(model, 1, "--memory", "1MiB", "--global-batch", "1")
    expect(abs(answer["model"]["active_parameters"] / 1e9 / active - 1) < 0.03, model, answer["model"], active)

# What every answer promises.
for model, gpus, options in (("mixtral-8x7b", 64, ()), ("deepseek-v3", 2048, ("--gpu", "h800", "--global-batch", "15360")),
                             ("llama-3-70b", 128, ("--tp", "8")), ("qwen3-30b-a3b", 16, ("--global-batch", "256"))):
    answer, status = plan(model, gpus, *options)
    timed = [l for l in answer["layouts"] if "step_seconds" in l]
    expect(status == 0 and timed, model, "has no layout")
    expect([l["step_seconds"] for l in timed] == sorted(l["step_seconds"] for l in timed), model, "is not in order")
    for l in answer["layouts"]:
        where = model, l["method"], l["pp"], l["ep"]
        expect(l["tp"] * l["pp"] * l["dp"] == gpus and l["dp"] % l["ep"] == 0, *where, "ranks")
        expect(l["microbatches"] * l["dp"] * answer["micro_batch"] == answer["global_batch"], *where, "batch")
        parts = sum(v for k, v in l["bytes"].items() if k != "total") + answer["assumed"]["RESERVE"] * GIB
        expect(math.isclose(parts, l["bytes"]["total"], rel_tol=1e-10), *where, "bytes", parts, l["bytes"])
        expect(not l["fits"] or l["bytes"]["total"] <= answer["assumed"]["GIB"] * GIB, *where, "does not fit")
    for l in timed:
        expect(0 < l["useful_share"] <= 1 + 1e-9 and l["mfu"] < answer["assumed"]["PRODUCTS"], l)
        tokens = answer["global_batch"] * answer["sequence"]
        expect(math.isclose(l["tokens_per_second"], tokens / l["step_seconds"]), l)
        expect(l["method"] != "1f1b" or l["gain_over_1f1b"] == 0, l)
    # all weights are somewhere: the dp groups and directions of a layout hold the model once each
    best = timed[0]
    held = best["bytes"]["weights"] / 2 * best["tp"] * best["pp"] / best["weight_copies"]
    whole = answer["model"]["parameters"]
    expect(whole / best["ep"] * 0.7 < held < whole * 1.6, model, held, whole)

# One GPU, by hand: GPT-2 in bf16 with fp32 gradients, master and moments; as many operations as its products have.
answer, _ = plan("gpt2", 1, "--seq", "1024", "--global-batch", "8", "--assume", "PRODUCTS=1,CORE=1")
one = answer["layouts"][0]
n = 124439808
expect([one["bytes"][k] for k in ("weights", "gradients", "optimizer")] == [2 * n, 4 * n, 12 * n], one)
matrices = n - 50257 * 768 - 1024 * 768 + 50257 * 768  # the head multiplies, the embedding does not
attention = 3.5 * 12 * 768 * 2 * 1024  # forward and backward of the core: 7 products of n^2 / 2
by_hand = 8 * 1024 * (6 * matrices + attention) / 989e12
expect(abs(one["step_seconds"] / by_hand - 1) < 0.001, one["step_seconds"], by_hand)

# More memory, or faster links, never hurt; less recomputation is taken first.
slow = plan("deepseek-v3", 512, "--memory", "80GiB", "--pp", "16")[0]["layouts"][0]["step_seconds"]
large = plan("deepseek-v3", 512, "--memory", "141GiB", "--pp", "16")[0]["layouts"][0]
expect(large["step_seconds"] <= slow and large["recompute"] != "full", slow, large)
fast = plan("deepseek-v3", 512, "--memory", "80GiB", "--pp", "16", "--assume", "FAR=400")[0]["layouts"][0]["step_seconds"]
expect(fast < slow, fast, slow)

# gpipe keeps every micro-batch, however many there are.
kept = {}
for batch in (128, 256):
    answer, _ = plan("llama-3-8b", 16, "--tp", "8", "--pp", "2", "--global-batch", str(batch), "--method", "gpipe", "--recompute", "full",
                     "--memory", "9000GiB")
    kept[batch] = answer["layouts"][0]["bytes"]["activations"]
expect(1.9 < kept[256] / kept[128] < 2.001, kept)
# Experts that every rank of a dp group has alone have nobody to sum with.
answer, _ = plan("qwen3-30b-a3b", 16, "--global-batch", "256", "--pp", "2", "--recompute", "full", "--memory", "9000GiB", "--method", "1f1b")
sums = {l["ep"]: l["sums_seconds"] / l["bytes"]["weights"] for l in answer["layouts"] if "sums_seconds" in l}
expect(sums[8] < 0.7 * sums[1], sums)

# Advice.
for model, gpus, options, words in (
        ("gpt2", 8, ("--global-batch", "512", "--seq", "1024"), "You need no pipeline"),
        ("llama-3-70b", 128, ("--tp", "8"), "You need no DualPipe here"),
        ("deepseek-v3", 2048, ("--gpu", "h800", "--global-batch", "15360", "--ep", "64", "--pp", "16"), "Take "),
        ("deepseek-v3", 8, (), "No layout fits"),
        ("gpt2", 7, ("--global-batch", "512", "--pp", "1"), "No layout is possible")):
    answer, status = plan(model, gpus, *options)
    expect(answer["advice"].startswith(words), model, gpus, answer["advice"])
    expect(status == (20 if words.startswith("No ") else 0), model, gpus, status)
# DeepSeek's own numbers of ranks: the schedules with pairs come first, DualPipe's before 1f1b by more than its bubble alone.
answer, _ = plan("deepseek-v3", 2048, "--gpu", "h800", "--global-batch", "15360", "--ep", "64", "--pp", "16")
order = [l["method"] for l in answer["layouts"] if "step_seconds" in l]
expect(order.index("dualpipev") < order.index("zb1p") if "zb1p" in order else True, order)
sys.exit(bad > 0)
P

cd "$work"
expect 0 --model "$models/gpt2.json" --gpus 8 --global-batch 512
require out '^gpus  *8 of h100'
require out '^no pipeline '
expect 2
require err 'are required'
expect 2 --model "$models/gpt2.json" --gpus 8 --memory 80
require err 'GiB'
expect 2 --model "$models/gpt2.json" --gpus 8 --assume FAST=1
require err 'at "FAST=1"'
expect 2 --model "$models/gpt2.json" --gpus 8 --assume LINKS=2
require err 'LINKS: a number above 0, at most 1'
expect 2 --model "$models/gpt2.json" --gpus 8 more
expect 2 --model "$models/gpt2.json" --gpus 8 --method none
require err 'no built-in schedule'
expect 0 --model "$models/mixtral-8x7b.json" --gpus 64 --method zbv
require out '^zbv '
! grep -q '^1f1b ' out || fail "--method zbv lists 1f1b"
expect 1 --model nowhere.json --gpus 8
refuses() { # FILE PATTERN
    expect 2 --model "$1" --gpus 8
    require err "$2"
}
changed() { # MODEL SED PATTERN: a config.json that is refused for that
    sed "$2" "$models/$1.json" >changed.json
    refuses changed.json "$3"
}
printf '{"model_type": "mamba", "hidden_size": 8}' >other.json
refuses other.json 'models of type mamba are not known here; those are deepseek_v2'
printf '{"hidden_size": 8}' >none.json
refuses none.json 'no model_type'
changed deepseek-v3 's/"num_experts_per_tok": 8/"num_experts_per_tok": 800/' 'more experts'
changed deepseek-v3 's/"hidden_size": 7168/"hidden_size": 71.5/' 'hidden_size is no whole number'
changed deepseek-v3 '/vocab_size/d' 'the key vocab_size is missing'
changed qwen3-30b-a3b 's/"mlp_only_layers": \[\]/"mlp_only_layers": [3]/' 'mlp_only_layers'
head -c 100 "$models/gpt2.json" >cut.json
expect 2 --model cut.json --gpus 8
expect 2 --model "$models/gpt2.json" --gpus 8 --seq 2048
require err 'has 1024 positions'

# What docs/plan.md shows is what the command says.
for file in "$DP_TEST_SRCDIR"/docs/plan/*.txt; do
    options=$(sed -n '1s/^\$ dualpipe plan --model //p' "$file")
    # shellcheck disable=SC2086
    expect 0 --model "$models/"$options
    sed 1,2d "$file" | cmp -s - out || fail "$file is not what the command says: $(sed 1,2d "$file" | diff - out | head -n 6)"
done
[ "$(ls "$DP_TEST_SRCDIR"/docs/plan/*.txt | wc -l)" -eq 5 ] || fail "docs/plan has not its five answers"
finish
