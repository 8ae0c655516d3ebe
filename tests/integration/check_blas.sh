#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_blas.sh: which kernels of OpenBLAS multiply: the best ones of the processor where nobody says otherwise, never wrong
# ones. A mock in the place of the library chooses old kernels, and errs in those that it is told to.
set -u
. "$DP_TEST_SRCDIR/tests/integration/train.sh"

blas=$(readelf -d "$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so" | sed -n 's/.*NEEDED.*\[\(lib[a-z]*blas.*\)\]/\1/p')
if [ -z "$blas" ]; then
    echo "skipped: moe_cpu is linked to no shared BLAS"
    exit 77
fi
has() { # FLAGS...
    for flag; do
        grep -q "^flags.* $flag\( \|$\)" /proc/cpuinfo 2>/dev/null || return 1
    done
}
best=Prescott second=Prescott
if has avx2 fma; then best=Haswell second=Prescott; fi
if has avx512f avx512dq avx512bw avx512vl; then best=SkylakeX second=Haswell; fi
unset OPENBLAS_CORETYPE
mkdir "$work/mock"
cp "$DP_TEST_MOCKS/mock_blas.so" "$work/mock/$blas"

case=outputs_f32
check() { # VARIABLES...: a suite's case, whose formula is not BLAS's; leaves $status, $work/out, $work/err
    status=0
    env DUALPIPE_LOG=info "$@" "$dualpipe" plugin check moe_cpu $case --mode threads >"$work/out" 2>"$work/err" || status=$?
}
uses() { # KERNELS WHAT
    expect 0 err "OpenBLAS chose its kernels .*: it uses $1 instead" "$2"
}
silent() { # WHAT
    [ "$status" -eq 0 ] || complain "$1: exit status $status"
    if grep -q OpenBLAS "$work/err"; then complain "$1: something is said of OpenBLAS"; fi
}

mock="LD_LIBRARY_PATH=$work/mock"
if [ $best != Prescott ]; then
    check $mock
    uses $best "old kernels"
    check $mock MOCK_BLAS_WRONG=$best
    uses $second "old kernels, and wrong best ones"
    check $mock OPENBLAS_CORETYPE=Prescott
    expect 0 err "OPENBLAS_CORETYPE=Prescott is set.*without it $best would be taken" "old kernels by the user"
    check LD_PRELOAD="$work/mock/$blas"
    expect 0 err "OpenBLAS uses its kernels Prescott.*set OPENBLAS_CORETYPE=$best before" "a library that was there before"
fi
check $mock MOCK_BLAS_CHOOSES=$best
silent "the best kernels"
check $mock MOCK_BLAS_CHOOSES=Tomorrow
silent "kernels for a younger processor"
check $mock MOCK_BLAS_CHOOSES=Tomorrow MOCK_BLAS_WRONG=Tomorrow
expect 0 err "kernels Tomorrow, whose products are wrong here: it uses $best instead" "wrong kernels"
check $mock MOCK_BLAS_WRONG=Prescott,Haswell,SkylakeX
expect 1 err "moe_cpu: the products of OpenBLAS 0.0.1, kernels [A-Za-z]* are wrong on this processor: install another" "no right kernels"
check $mock OPENBLAS_CORETYPE=Haswell MOCK_BLAS_WRONG=Haswell
expect 1 err "kernels Haswell are wrong on this processor: unset OPENBLAS_CORETYPE" "wrong kernels by the user"

# The library that is here. The report names it, and ranks that multiply otherwise.
if nm -D "$(ldd "$DP_TEST_BUILDDIR/.libs/dp_moe_cpu.so" | sed -n 's/.*libopenblas[^ ]* => \([^ ]*\).*/\1/p')" 2>/dev/null |
    grep -q gotoblas_dynamic_init && [ $best != Prescott ]; then
    ranks 1 --steps 1 --sample 0
    expect 0 out 'OpenBLAS [0-9.]*, kernels' "the report"
    if grep -q 'kernels Prescott' "$work/out"; then complain "the default kernels are old ones"; fi
    check DUALPIPE_LOG=warn
    silent "the default of OpenBLAS"
    status=0
    "$dualpipe" run -n 2 -- sh -c '[ "$RANK" = 0 ] || export OPENBLAS_CORETYPE=Prescott; exec "$@"' sh "$train" $small \
        --steps 1 --sample 0 >"$work/out" 2>"$work/err" </dev/null || status=$?
    expect 0 out '^.0. bits  *rank 1 multiplies by OpenBLAS' "ranks that differ"
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
