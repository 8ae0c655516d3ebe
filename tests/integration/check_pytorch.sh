#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_pytorch.sh: what docs/pytorch.md says. torch.distributed.pipelining trains with our schedules, four gloo processes, and has the losses
# and parameters of a serial run; what it dumps is verified and simulated; costs are taken from its profile. PyTorch takes 5 GB, so this
# runs with DP_TEST_PYTORCH=1 alone, with the torch of python3 on PATH, or else one from PyPI in the build folder.
set -eu

if [ "${DP_TEST_PYTORCH:-0}" != 1 ]; then
    echo "skipped: DP_TEST_PYTORCH=1 runs it (PyTorch from PyPI takes 5 GB)"
    exit 77
fi
dualpipe=$DP_TEST_BUILDDIR/dualpipe
venv=$DP_TEST_BUILDDIR/pytorch-venv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=python3
if ! python3 -c 'import torch' 2>/dev/null; then
    python=$venv/bin/python
    if [ ! -e "$venv/complete" ]; then
        if ! python3 -m venv "$venv" || ! "$venv/bin/pip" -q install --no-cache-dir torch; then
            echo "skipped: PyPI is out of reach"
            exit 77
        fi
        touch "$venv/complete"
    fi
fi

methods=$("$python" "$DP_TEST_SRCDIR/tests/integration/pytorch_train.py" --methods)
for method in $methods; do
    "$dualpipe" schedule --method "$method" --ranks 4 --microbatches 8 --format csv --output "$work/$method.csv"
done
CUDA_VISIBLE_DEVICES= "$python" -W ignore "$DP_TEST_SRCDIR/tests/integration/pytorch_train.py" "$work" 2>"$work/err" || { tail -n 20 "$work/err"; exit 1; }
for method in $methods; do
    for transport in credits:2 group; do
        "$dualpipe" verify "$work/$method.torch.csv" --transport "$transport" >/dev/null
    done
    "$dualpipe" simulate "$work/$method.torch.csv" >/dev/null
done
"$dualpipe" trace merge "$work"/rank?.json --output "$work/run.json"
"$dualpipe" trace costs "$work/run.json" --output "$work/costs.txt"
cat "$work/costs.txt"
"$dualpipe" compare --ranks 4 --microbatches 8 --costs "$work/costs.txt"
