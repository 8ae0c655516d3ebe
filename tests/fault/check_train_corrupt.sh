#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_train_corrupt.sh: a bit of a parameter is changed from outside, in the memory of a rank of train_moe that trains. With
# --check-bits the run names rank and parameter; where two other copies are right it goes on, with the losses of an undisturbed one.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

if ! python3 -c '' 2>/dev/null; then
    echo "skipped: no python3 to change memory with"
    exit 77
fi
cat >"$work/flip.py" <<'EOF'
# flip.py PID FOLDER TENSOR: changes a bit wherever the process has the bytes that a checkpoint has under that name.
import glob, json, struct, sys

pid, folder, tensor = sys.argv[1:]
for name in glob.glob(folder + "/*.safetensors"):
    with open(name, "rb") as f:
        data = f.read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    if tensor in (head := json.loads(data[8:end])):
        begin, stop = head[tensor]["data_offsets"]
        value = data[end + begin : end + stop]
found = 0
with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
    for line in maps.readlines():
        span, mode, _, _, inode = line.split()[:5]
        if not mode.startswith("rw") or inode != "0":
            continue
        first, last = (int(x, 16) for x in span.split("-"))
        if last - first > 1 << 30:  # a sanitizer's own
            continue
        try:  # the run may end meanwhile
            memory.seek(first)
            there = memory.read(last - first)
            at = there.find(value)
            while at >= 0:
                memory.seek(first + at + 5)
                memory.write(bytes([there[at + 5] ^ 4]))
                found += 1
                at = there.find(value, at + len(value))
        except OSError:
            continue
sys.exit(0 if found > 0 else 1)
EOF

# Nothing moves the parameters, so a checkpoint of the same run has the bytes that are in memory.
still="--lr 1e-30 --min-lr 1e-30 --weight-decay 0 --bias-rate 0 --steps 400 --val-every 0 --sample 0 --log-every 1"
tensor=layer1.moe.experts.2.w_up
ranks 4 --dp 2 $still --losses "$work/undisturbed" --checkpoint "$work/ck" --every 400
[ "$status" -eq 0 ] || complain "undisturbed: exit status $status"

disturb() { # NAME RANK OPTIONS OF THE LAUNCHER, --, OPTIONS: a run in which the memory of a rank changes
    name=$1
    mark=$$.$name
    rank=$2
    shift 2
    : >"$work/out"
    DP_TEST_CASE=$mark "$dualpipe" run "$@" $still --check-bits 1 --losses "$work/losses" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    tries=$((1500 * scale))
    until grep -q 'step  *5/' "$work/out" || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.02
    done
    target=$(member "$rank")
    python3 "$work/flip.py" "$target" "$work/ck/step-00000400" $tensor 2>"$work/why" || {
        kill -TERM "$job"
        wait "$job"
        if grep -q PermissionError "$work/why"; then
            echo "skipped: no process may write to the memory of another"
            exit 77
        fi
        cat "$work/why"
        complain "$name: nothing was changed"
    }
    status=0
    wait "$job" || status=$?
}

# Four ranks hold the layer: two mirrors in two data groups.
disturb named 3 -n 4 -- "$train" $small --dp 2
expect 21 err "rank 3: step [0-9]*: the parameter $tensor of stage 0 has other bits than on rank 0, 1 and 2: memory of rank 3 has changed" "named"
disturb replaced 2 --respawn 1 -n 4 -- "$train" $small --dp 2
expect 0 err "rank 2: step [0-9]*: the parameter $tensor of stage 0 has other bits" "replaced"
grep -q "a rank's state was replaced in [0-9.]* s: step [0-9]* is taken again" "$work/out" || complain "replaced: not said"
cmp -s "$work/undisturbed" "$work/losses" || complain "replaced: other losses than undisturbed"

# Of two mirrors nobody knows which is right.
disturb either 1 -n 2 -- "$train" $small
expect 21 err "rank 0 or 1: step [0-9]*: the parameter $tensor of stage 0 has not the same bits on all of these" "either"
finish
