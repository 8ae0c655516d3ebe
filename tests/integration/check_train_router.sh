#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_router.sh: train_moe trains the router with one expert a token as with two. What the optimizer keeps of its
# gradients is not zero.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

if ! python3 -c '' 2>/dev/null; then
    echo "skipped: no python3 to read a checkpoint"
    exit 77
fi
cat >"$work/means.py" <<'EOF'
# The largest mean of each router's gradients in the safetensors files of a folder.
import glob, json, struct, sys

for name in glob.glob(sys.argv[1] + "/*.safetensors"):
    with open(name, "rb") as f:
        data = f.read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    for key, value in json.loads(data[8:end]).items():
        if key.startswith("adam.mean.") and key.endswith("moe.router"):
            begin, stop = value["data_offsets"]
            means = struct.unpack("<%dd" % ((stop - begin) // 8), data[end + begin : end + stop])
            print(key, max(map(abs, means)) > 1e-6)
EOF
for k in 1 2; do
    threads 2 --steps 2 --warmup 1 --top-k $k --dtype f64 --bias-rate 0 --val-every 0 --sample 0 --quiet \
        --checkpoint "$work/k$k" --every 2
    [ "$status" -eq 0 ] || complain "--top-k $k: exit status $status"
    python3 "$work/means.py" "$work/k$k/step-00000002" >"$work/out" || complain "--top-k $k: the checkpoint cannot be read"
    [ "$(grep -c ' True$' "$work/out")" -eq 8 ] || complain "--top-k $k: a router has no gradient"
done
finish
