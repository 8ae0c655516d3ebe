#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# faults.sh: all sweeps of faults on this machine, one after the other: deaths in every operation of a step and of a recovery
# (recovery), in every change of a file that a save makes (resume), and calls of libc that fail (failing_calls.sh). For each kind: how
# many were tried and survived, how many ended with the bits of an undisturbed run, the worst time. Hours with every case of each; run
# in the build folder, after `make benches` and `make check TESTS=`:   ../bench/faults.sh [STRIDE [MOST]]
# Every so many operations [1]; MOST calls of each function [24; 0: all]. Exit status 1 when one of them says 1.
set -u

stride=${1:-1}
DUALPIPE_PLUGIN_PATH=$PWD/.libs
OPENBLAS_NUM_THREADS=1
export DUALPIPE_PLUGIN_PATH OPENBLAS_NUM_THREADS
bad=0

bench/recovery "$stride" || bad=1
bench/resume "$stride" || bad=1
"$(dirname "$0")/failing_calls.sh" "${2:-24}" || bad=1
exit "$bad"
