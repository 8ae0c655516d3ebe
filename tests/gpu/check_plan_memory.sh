#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_plan_memory.sh: the bytes of `dualpipe plan` beside what train_moe announces for the same model and ranks, in bf16 on the emulated
# device: parameters and optimizer to 0.2 %, what micro-batches keep to 3 %, the three together to 2 %.
set -eu

fakes=$DP_TEST_BUILDDIR/tests/fake_cuda/.libs
[ -e "$fakes/libcuda_fake.so" ] || { echo "SKIP: built without CUDA" && exit 77; }
export DUALPIPE_PLUGIN_PATH="$DP_TEST_BUILDDIR/.libs"
export DUALPIPE_DEBUG="lib.cuda=$fakes/libcuda_fake.so,lib.cublaslt=$fakes/libcublaslt_fake.so,lib.cutlass=$fakes/libcutlass_fake.so"
python3 - "$DP_TEST_BUILDDIR" <<'P'
import json, os, re, subprocess, sys, tempfile

build = sys.argv[1]
work = tempfile.mkdtemp()
LAYERS, HIDDEN, HEADS, SEQUENCE, EXPERTS, WIDTH = 8, 256, 4, 64, 8, 128
common = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": 256,
          "max_position_embeddings": SEQUENCE, "num_experts_per_tok": 2}
plain = {**common, "model_type": "mixtral", "num_key_value_heads": 2, "intermediate_size": WIDTH, "num_local_experts": EXPERTS}
latent = {**common, "model_type": "deepseek_v3", "intermediate_size": WIDTH, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32,
          "qk_nope_head_dim": 64, "v_head_dim": 64, "n_routed_experts": EXPERTS, "moe_intermediate_size": WIDTH, "n_shared_experts": 1}
options = {"plain": "--kv-heads 2 --shared-experts 0", "latent": "--attention-kind mla --q-rank 96 --kv-rank 64 --rope-dim 32 --shared-experts 1"}
for name, config in (("plain", plain), ("latent", latent)):
    with open(f"{work}/{name}.json", "w") as f:
        json.dump(config, f)


def announced(ranks, method, recompute, model):
    """MiB of rank 0 as it says before its first step; it is ended then."""
    command = f"""{build}/apps/train_moe/train_moe --threads {ranks} --schedule {method} --recompute {recompute} --layers {LAYERS}
        --hidden {HIDDEN} --heads {HEADS} --seq {SEQUENCE} --batch 1 --experts {EXPERTS} --expert-hidden {WIDTH} --microbatches 8
        --warmup 2 --steps 1 --sample 0 --val-every 0 --device cuda --dtype bf16 --attention cuda {options[model]}"""
    said = ""
    with subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout:
            said += " " + line.strip()
            if "step takes" in line:
                break
        job.kill()
    part = re.search(r"rank 0 takes.*?step takes", said)
    if not part:
        raise SystemExit(f"{command}: {said[-400:]}")
    return {k: float(v) for k, v in re.findall(r"(parameters|gradients|activations|of backwards alone|optimizer) ([\d.]+)", part[0])}


def planned(ranks, method, recompute, model):
    said = subprocess.run([f"{build}/dualpipe", "plan", "--model", f"{work}/{model}.json", "--gpus", str(ranks), "--pp", str(ranks), "--dp", "1",
                           "--global-batch", "8", "--no-zero", "--method", method, "--recompute", recompute, "--memory", "1000GiB",
                           "--format", "json"], capture_output=True, text=True, check=True)
    return {k: v / 2**20 for k, v in json.loads(said.stdout)["layouts"][0]["bytes"].items()}


bad = 0
layouts = [("plain", 2, "1f1b", "none"), ("plain", 4, "dualpipev", "mlp"), ("latent", 2, "dualpipe", "none")]
if os.environ.get("DP_TEST_LONG") == "1":
    layouts += [("plain", 1, "1f1b", "none"), ("plain", 2, "dualpipe", "none"), ("plain", 2, "zb1p", "none"), ("plain", 4, "1f1b", "none"),
                ("plain", 4, "dualpipe", "none"), ("plain", 4, "dualpipev", "cheap"), ("plain", 4, "1f1b", "full"),
                ("latent", 2, "1f1b", "none"), ("latent", 4, "dualpipev", "full")]
for model, ranks, method, recompute in layouts:
    said, plan = announced(ranks, method, recompute, model), planned(ranks, method, recompute, model)
    kept = said["activations"] + said["of backwards alone"]
    pairs = [("weights", plan["weights"], said["parameters"], 0.002), ("optimizer", plan["optimizer"], said["optimizer"], 0.002),
             ("kept", plan["activations"], kept, 0.03),
             ("together", plan["weights"] + plan["optimizer"] + plan["activations"], said["parameters"] + said["optimizer"] + kept, 0.02)]
    print(model, ranks, method, recompute, *(f"{name} {a:.2f} of {b:.2f}" for name, a, b, _ in pairs))
    for name, a, b, share in pairs:
        if abs(a - b) > share * b + 0.01:
            print(f"    {name}: {a / b - 1:+.1%}")
            bad += 1
    # train_moe has a second gradient for its sums, where both are not on one path
    if min(abs(plan["gradients"] * n - said["gradients"]) for n in (1, 2)) > 0.002 * said["gradients"] + 0.01:
        print(f"    gradients {plan['gradients']:.2f} and {said['gradients']:.2f}")
        bad += 1
sys.exit(bad > 0)
P
