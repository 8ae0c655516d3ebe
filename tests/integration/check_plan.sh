#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_plan.sh: dualpipe plan: parameters of published models to the last one, layouts whose numbers agree with each other and with
# what can be worked out by hand, advice, refusals.
set -eu

subcommand=plan
. "$DP_TEST_SRCDIR/tests/integration/command.sh"
models=$DP_TEST_SRCDIR/tests/data/models
trace=$DP_TEST_SRCDIR/tests/data/trace/deepseek_v3_train_1f1b.json.gz

python3 - "$dualpipe" "$models" "$trace" <<'P' || failures=$((failures + 1))
import json, math, subprocess, sys, tempfile

command, models, trace = sys.argv[1:]
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

# Costs take the place of estimates. The estimates themselves, as a file, change nothing; slower attention and slower messages do.
deepseek = "deepseek-v3", 512, "--pp", "16", "--ep", "32", "--memory", "141GiB", "--method", "dualpipev"
estimated = plan(*deepseek)[0]["layouts"][0]["step_seconds"]


def with_costs(times, *lines):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for segment, row in times.items():
            lines += tuple(f"{segment}.{key}={value}" for key, value in zip("FIW", row))
        file.write("\n".join(lines) + "\n")
        file.flush()
        return plan(*deepseek, "--costs", file.name)[0]


first = with_costs({"attention": [1, 1, 1]})
expect(first["measured_ms"] == {"attention": [1, 1, 1]}, first["measured_ms"])
same = with_costs(first["estimated_ms"])["layouts"][0]["step_seconds"]
expect(math.isclose(same, estimated, rel_tol=1e-6), same, estimated)
slow = {**first["estimated_ms"], "attention": [2 * t for t in first["estimated_ms"]["attention"]]}
slower = with_costs(slow)["layouts"][0]
more = 61 / 16 * slower["microbatches"] * sum(first["estimated_ms"]["attention"]) / 1e3
expect(0.9 * more < slower["step_seconds"] - estimated < 1.3 * more, slower["step_seconds"], estimated, more)
expect(with_costs(first["estimated_ms"], "HOP=5")["layouts"][0]["step_seconds"] > estimated, "HOP")
expect(with_costs(first["estimated_ms"], "BANDWIDTH=1e6")["layouts"][0]["step_seconds"] > estimated, "BANDWIDTH")

# DeepSeek's published profile (4,096 tokens, EP 64): attention as it is estimated for an H800, and the rate of the run they report.
profile = "deepseek-v3", 2048, "--gpu", "h800", "--global-batch", "15360", "--pp", "16", "--ep", "64", "--method", "dualpipe", "--costs"
answer, _ = plan(*profile, trace)
for k in (0, 2):  # of the backward for the input we are 41 % off
    expect(abs(answer["estimated_ms"]["attention"][k] / answer["measured_ms"]["attention"][k] - 1) < 0.1, answer["measured_ms"], k)
expect(abs(answer["layouts"][0]["tokens_per_second"] / 2048 / 1543 - 1) < 0.1, answer["layouts"][0])
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
expect 2 --model "$models/gpt2.json" --gpus 8 --assume HOST=1.5
require err 'HOST: a whole number'
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

# A GPU from a file, all that a data sheet has; h100's numbers in a file are an h100.
expect 0 --model "$models/mixtral-8x7b.json" --gpus 64 --pp 4 --format json
sed 's/"gpu":"[^"]*"//' out >h100.json
printf '# a comment\n TFLOPS = 989\nGIB=79.6474609375\nHOST=8 # of them\r\n\nNEAR=450\nFAR=50\n' >same.gpu
expect 0 --model "$models/mixtral-8x7b.json" --gpus 64 --pp 4 --format json --gpu same.gpu
sed 's/"gpu":"[^"]*"//' out | cmp - h100.json || fail "h100 from a file is another GPU"
expect 0 --model "$models/mixtral-8x7b.json" --gpus 64 --pp 4 --ep 4 --gpu "$DP_TEST_SRCDIR/docs/plan/mi300x.gpu" --assume HOST=4
require out 'TFLOPS=1307.4,GIB=192,HOST=4,'
gpu() { # LINE PATTERN: a file of a GPU with that line instead of FAR=50 is refused
    sed "s|^FAR=50|$1|" same.gpu >other.gpu
    expect 2 --model "$models/gpt2.json" --gpus 8 --gpu other.gpu
    require err "$2"
}
gpu '' 'other.gpu: FAR=NUMBER is missing'
gpu 'FAR=fast' 'other.gpu:7: FAR: a number above 0'
gpu 'FAR=50,LINKS=1' 'other.gpu:7: one KEY=VALUE a line'
gpu 'WIDE=50' 'other.gpu:7: at "WIDE=50": KEY=VALUE is expected'
expect 2 --model "$models/gpt2.json" --gpus 8 --gpu h300
require err 'neither a file that can be read nor one of a100'

# Costs: a trace says what the file says that `dualpipe trace costs` makes of it; what is of no use is refused.
"$dualpipe" trace costs "$trace" --output costs.txt
for costs in "$trace" costs.txt; do
    expect 0 --model "$models/deepseek-v3.json" --gpus 2048 --gpu h800 --global-batch 15360 --pp 16 --ep 64 --costs "$costs"
    require out '^measured attention F 4.37,'
    cp out "by_$(basename "$costs" .json.gz)"
done
cmp by_costs.txt by_deepseek_v3_train_1f1b || fail "a trace says something else than its costs"
costs() { # MODEL LINES PATTERN
    printf '%b\n' "$2" >some.txt
    expect 2 --model "$models/$1.json" --gpus 64 --costs some.txt
    require err "$3"
}
costs deepseek-v3 'attention.F=1\ndispatch.F=1' 'give ep, the ranks'
costs llama-3-8b 'dispatch.F=1' 'the model has no experts'
costs llama-3-8b 'attention.F=1\nproject.F=1' 'without project, shared and sum'
costs llama-3-8b 'F=1\nB=2' 'some.txt: no times of segments'
costs llama-3-8b 'attention.F=x' 'some.txt:1: attention.F=x'
expect 1 --model "$models/llama-3-8b.json" --gpus 64 --costs none.json.gz

# Arguments of Megatron-LM: the shapes of its recipes and examples, with the published numbers of parameters.
cat >deepseek.yaml <<'Y'
ENV_VARS:
  NCCL_NVLS_ENABLE: '0'
ARGS:
  tokenizer_type: HuggingFaceTokenizer
  num_layers: 61
  hidden_size: 7168 # d
  ffn_hidden_size: 18432
  num_attention_heads: 128
  kv_channels: 128
  max_position_embeddings: 4096
  normalization: RMSNorm
  swiglu: true
  disable_bias_linear: true
  untie_embeddings_and_output_weights: true
  position_embedding_type: rope
  make_vocab_size_divisible_by: 3232
  vocab_size: 128815
  multi_latent_attention: true
  q_lora_rank: 1536
  kv_lora_rank: 512
  qk_head_dim: 128
  qk_pos_emb_head_dim: 64
  v_head_dim: 128
  qk_layernorm: true
  num_experts: 256
  moe_layer_freq: ([0]*3+[1]*58)
  moe_ffn_hidden_size: 2048
  moe_shared_expert_intermediate_size: 2048
  moe_router_topk: 8
  moe_router_group_topk: 4
  moe_router_enable_expert_bias: true
  mtp_num_layers: 1
  lr: 3.9e-06
  no_load_optim: true
Y
cat >mixtral.sh <<'S'
#!/bin/bash
GPUS_PER_NODE=8
MODEL_ARGS=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 4096
    --max-position-embeddings 32768
    --num-layers=32 --hidden-size 4096 --ffn-hidden-size 14336 \\
    --num-attention-heads 32
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 8
#   --num-query-groups 4
    --vocab-size 32000
    --num-experts 8
    --moe-router-topk 2
    --lr 1e-4
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]}
S
# GPT-2's shape as Megatron's defaults have it: learned positions, biases, LayerNorm, tied; 50,257 tokens in rows of 128
echo --num-layers 12 --hidden-size 768 --num-attention-heads 12 --max-position-embeddings 1024 --vocab-size 50257 >gpt2.args
counts() { # FILE PARAMETERS
    expect 20 --model "$1" --gpus 1 --memory 1MiB --global-batch 1 --format json
    require out "\"parameters\":$2,"
}
quiet_failures=1
counts deepseek.yaml 671026419200
counts mixtral.sh 46702792704
counts gpt2.args $((124439808 + 47 * 768))
quiet_failures=
megatron() { # SED PATTERN: the YAML, changed, is refused for that
    sed "$1" deepseek.yaml >changed.yaml
    refuses changed.yaml "$2"
}
megatron '/vocab_size: 128815/d' 'vocab_size is missing'
megatron 's/num_layers: 61/num_layers: many/' 'num-layers many: a whole number'
megatron 's/num_layers: 61/num_layers: 60/' 'moe_layer_freq (\[0\]\*3+\[1\]\*58)'
megatron 's/lr: .*/hybrid_override_pattern: M-M/' 'hybrid-override-pattern: such layers are not known'
megatron 's/lr: .*/context_parallel_size: 2/' 'context parallelism'
megatron '/disable_bias/d' 'disable_bias_linear'
megatron 's/RMSNorm/BatchNorm/' 'normalization BatchNorm'

# TOML of torchtitan: a flavor has as many parameters as the checkpoint that it is named for.
titan() { # NAME FLAVOR PARAMETERS
    printf '[job]\r\nname = "x" # flavor = "no"\n\n  [model] # [job]\nname="%s" # "other"\n\tflavor = %s%s%s\r\n[training]\nflavor = "x"' \
        "$1" "'" "$2" "'" >titan.toml
    counts titan.toml "$3"
}
quiet_failures=1
titan llama3 8B 8030261248
titan llama3 70B 70553706496
titan llama3 405B 405853388800
titan deepseek_v3 16B 15706484224
titan deepseek_v3 236B 235741434880
titan deepseek_v3 671B 671026419200
titan qwen3 0.6B 596049920
titan qwen3 1.7B 1720574976
titan qwen3 4B 4022468096
titan qwen3 8B 8190735360
titan qwen3 14B 14768307200
titan qwen3 32B 32762123264
titan qwen3 30B-A3B 30532122624
titan qwen3 235B-A22B 235093634560
quiet_failures=
printf '[model]\nname = "llama3"\nflavor = "debugmodel"\n' >titan.toml
refuses titan.toml 'name "llama3", flavor "debugmodel" of torchtitan is not known here; those are llama3 8B, .*, qwen3 235B-A22B. Of others'
printf '[model]\nflavour = "8B"\nname = llama3\n' >titan.toml
refuses titan.toml 'name "", flavor ""'
printf '[model]' >titan.toml
refuses titan.toml 'name "", flavor ""'
printf '[job]\nflavor = "8B"\n' >titan.toml
refuses titan.toml 'neither a config.json nor arguments of Megatron-LM such as num_layers, nor \[model\] of torchtitan'

# The page: whole, its figures those of the JSON, names escaped, nothing loaded.
cp "$DP_TEST_SRCDIR/docs/plan/mi300x.gpu" 'a<b.gpu'
pages() { # MODEL OPTIONS...
    name=$1
    shift
    for format in html json; do
        expect 0 --model "$models/$name.json" --gpus 64 --gpu 'a<b.gpu' "$@" --format $format --output page.$format
    done
    python3 - page.html page.json <<'P' || fail "the page is not what the answer is: $name $*"
import html.parser, json, math, re, sys

page, answer = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
GIB, layouts = 2**30, answer["layouts"]
timed = [l for l in layouts if "step_seconds" in l]
best, rows, row = layouts[0], {"rank": [], "step": [], "layout": []}, None
seen, stack = [], []


class Page(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
        global row
        given = dict(attrs)
        assert not given.keys() & {"src", "href"} and given.get("xlink:href", "#").startswith("#"), attrs
        seen.append(tag)
        if tag != "meta":
            stack.append(tag)
        if tag == "tr" and "class" in given:
            row = {"texts": [], "parts": {}, "share": {}}
            rows[given["class"].split()[0]].append(row)
        if tag == "i" and "title" in given:
            name, value = given["title"].split(": ")
            row["parts"][name] = float(value.split()[0])
            row["share"][name] = float(re.match("width:([-0-9.]+)%", given["style"])[1])

    def handle_startendtag(self, tag, attrs):
        assert dict(attrs).get("xlink:href", "#").startswith("#"), attrs
        seen.append(tag)

    def handle_endtag(self, tag):
        assert stack.pop() == tag, tag

    def handle_data(self, text):
        if stack and stack[-1] == "td":
            row["texts"].append(text)


def near(a, b):
    return math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-12)


def bytes_are(parts, bytes):
    names = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer", "kept activations": "activations"}
    return (all(near(parts[a], bytes[b] / GIB) for a, b in names.items()) and near(sum(parts.values()), bytes["total"] / GIB)
            and near(parts["logits and transfers"], (bytes["logits"] + bytes["transfers"]) / GIB))


Page().feed(page)
assert not stack and not {"script", "img", "link"} & set(seen)
assert answer["advice"] in page and "64 of a&lt;b.gpu" in page
assert len(rows["layout"]) == len(layouts) and len(rows["step"]) == len(timed)
for shown, l in zip(rows["layout"], layouts):
    assert bytes_are(shown["parts"], l["bytes"]), (shown, l)
    assert shown["texts"][0].split(",")[0] in (l["method"], "no pipeline")
    assert shown["texts"][1:5] == [str(l[k]) for k in ("pp", "ep", "dp", "microbatches")], (shown, l)
longest = max(l["step_seconds"] for l in timed)
for shown, l in zip(rows["step"], timed):
    assert near(float(shown["texts"][3]), l["step_seconds"]) and near(sum(shown["parts"].values()), l["step_seconds"]), (shown, l)
    assert near(shown["parts"]["sums of gradients"], l["sums_seconds"]), (shown, l)
    assert near(shown["parts"]["computation"], l["useful_share"] * l["step_seconds"]), (shown, l)
    assert abs(sum(shown["share"].values()) - 100 * l["step_seconds"] / longest) < 0.05, (shown, longest)
assert len(rows["rank"]) == len(answer["rank_bytes"]) == best["pp"]
for shown, bytes in zip(rows["rank"], answer["rank_bytes"]):
    assert bytes_are(shown["parts"], bytes) and abs(float(shown["texts"][1]) - bytes["total"] / GIB) < 0.06, (shown, bytes)
assert max(b["total"] for b in answer["rank_bytes"]) == best["bytes"]["total"]
drawn = best["pp"] > 1 and "There is no picture" not in page
assert page.count("<svg") == page.count("</svg>") == drawn and page.count("<h2>A step of") == (best["pp"] > 1)
if drawn:
    shape = re.search(r"<svg[^>]* width=\"([0-9.]+)[^>]* height=\"([0-9.]+)", page)
    assert 900 < float(shape[1]) < 1100 and float(shape[2]) > 28 * min(best["pp"], 16), shape[0]
assert len(page) < 1500000, len(page)
P
}
pages mixtral-8x7b --pp 4 --show 8192
pages gpt2 --pp 1 --seq 1024
pages deepseek-v3 --pp 32 --ep 2 --method dualpipe --memory 500GiB
quiet_failures=1
expect 20 --model "$models/deepseek-v3.json" --gpus 8 --format html
quiet_failures=
require out 'No layout fits'
! grep -q '<svg' out || fail "a picture of a layout that does not fit"

# What others measured: a command for each row of docs/plan.md, which says what the row says.
(cd "$DP_TEST_SRCDIR" && python3 - "$dualpipe" docs/plan.md) <<'P' || fail "docs/plan.md has other figures than its commands"
import json, re, shlex, subprocess, sys

page = open(sys.argv[2]).read().split("## Beside what others measured")[1].split("What the misses say")[0]
commands = re.findall("^    dualpipe (plan .*)$", page, re.M)
rows = [row.strip("| ").split(" | ") for row in re.findall("^\\|.*[0-9].*$", page, re.M)]
assert len(commands) == len(rows) >= 14, (len(commands), len(rows))
bad = 0
for command, (run, measured, plan, off) in zip(commands, rows):
    done = subprocess.run([sys.argv[1], *shlex.split(command), "--format", "json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    best, share = answer["layouts"][0], measured.endswith("%")
    found = 100 * best["mfu"] if share else best["tokens_per_second"] / answer["gpus"]
    was = float(re.sub("[ %,]", "", measured))
    says = [f"{found:.0f} %" if share else f"{found:,.0f}", f"{100 * (found / was - 1):+.0f} %"]
    if says != [plan, off]:
        print(run, "| says", plan, "|", off, "| is", *says)
        bad += 1
sys.exit(bad > 0)
P

# What docs/plan.md shows is what the command says.
for file in "$DP_TEST_SRCDIR"/docs/plan/*.txt; do
    options=$(sed -n '1s/^\$ dualpipe plan --model //p' "$file")
    # shellcheck disable=SC2086
    expect 0 --model "$models/"$options
    sed 1,2d "$file" | cmp -s - out || fail "$file is not what the command says: $(sed 1,2d "$file" | diff - out | head -n 6)"
done
[ "$(ls "$DP_TEST_SRCDIR"/docs/plan/*.txt | wc -l)" -eq 5 ] || fail "docs/plan has not its five answers"
finish
