#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_pytorch.sh: what docs/pytorch.md says. torch.distributed.pipelining trains with our schedules, four gloo processes, and has the losses
# and parameters of a serial run and of its schedules; what it dumps, of ours and of all of PyTorch's, is verified and simulated; costs
# are taken from its profile. PyTorch from PyPI takes 5 GB, so this runs with DP_TEST_PYTORCH=1 alone, as in continuous integration: with
# the torch of python3 on PATH, or else with one from PyPI in the build folder, if that comes within DP_TEST_PYTORCH_SECONDS.
set -eu

if [ "${DP_TEST_PYTORCH:-0}" != 1 ]; then
    echo "skipped: DP_TEST_PYTORCH=1 runs it (PyTorch from PyPI takes 5 GB); .ci/run does"
    exit 77
fi
dualpipe=$DP_TEST_BUILDDIR/dualpipe
venv=$DP_TEST_BUILDDIR/pytorch-venv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=python3
if ! python3 -c 'from torch.distributed.pipelining import ScheduleDualPipeV' 2>/dev/null; then
    python=$venv/bin/python
    if [ ! -e "$venv/complete" ]; then
        seconds=${DP_TEST_PYTORCH_SECONDS:-200}
        rm -rf "$venv"
        if ! python3 -m venv "$venv" >"$work/log" 2>&1; then
            echo "skipped: no PyTorch, and no python3 with venv to install it (Debian: python3-venv)"
            exit 77
        fi
        if ! timeout "$seconds" "$venv/bin/pip" -q --retries 1 --timeout 10 install --no-cache-dir --no-compile torch numpy >"$work/log" 2>&1; then
            echo "skipped: PyTorch did not come from PyPI within $seconds s: $(tail -n 1 "$work/log")"
            rm -rf "$venv"
            exit 77
        fi
        touch "$venv/complete"
    fi
fi

methods=$("$python" "$DP_TEST_SRCDIR/tests/integration/pytorch_train.py" --methods)
for method in $methods; do
    case $method in
    found) "$dualpipe" search --ranks 4 --microbatches 8 --placement v --seconds 1 --output "$work/found.csv" >/dev/null ;;
    *) "$dualpipe" schedule --method "$method" --ranks 4 --microbatches 8 --format csv --output "$work/$method.csv" ;;
    esac
done
CUDA_VISIBLE_DEVICES= "$python" -W ignore "$DP_TEST_SRCDIR/tests/integration/pytorch_train.py" "$work" 2>"$work/err" || { tail -n 20 "$work/err"; exit 1; }
dumps=0
for file in "$work"/*.torch.csv; do
    for transport in credits:2 group; do
        "$dualpipe" verify "$file" --transport "$transport" >/dev/null
    done
    "$dualpipe" simulate "$file" >/dev/null
    dumps=$((dumps + 1))
done
echo "$dumps files of torch verified and simulated"
[ "$dumps" -eq 23 ] # thirteen of ours, five of PyTorch's in two formats
"$dualpipe" trace merge "$work"/rank?.json --output "$work/run.json"
"$dualpipe" trace costs "$work/run.json" --output "$work/costs.txt"
cat "$work/costs.txt"
"$dualpipe" compare --ranks 4 --microbatches 8 --costs "$work/costs.txt"
