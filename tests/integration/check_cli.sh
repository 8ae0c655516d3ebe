#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_cli.sh: what the dualpipe command promises whatever the subcommand: help, version, exit codes, lost output.
set -eu

subcommand=
. "$DP_TEST_SRCDIR/tests/integration/command.sh"

expect 0 --version
require out '^dualpipe [0-9]*\.[0-9]*\.[0-9]*$'
expect 0 --help
require out '^usage: dualpipe'
require out '^  version '
for command in $(sed -n 's/^  \([a-z]*\)  .*/\1/p' "$work/out"); do
    expect 0 "$command" --help
    [ -s "$work/out" ] || { echo "dualpipe $command --help says nothing"; failures=$((failures + 1)); }
done
expect 2
require err '^usage: dualpipe'
expect 2 no-such-command
require err 'no-such-command'
expect 2 simualte
require err 'did you mean simulate?'
expect 2 qqqqqq
! grep -q 'did you mean' err || fail "a command is guessed from nothing: $(cat err)"
expect 2 compare --rnks 8
require err 'unknown option --rnks; did you mean --ranks?'
expect 2 compare --zzzzzz
! grep -q 'did you mean' err || fail "an option is guessed from nothing: $(cat err)"
expect 0 help simulate
require out '^usage: dualpipe simulate'
expect 2 help simualte
expect 0 -V
require out '^dualpipe '
expect 2 --no-such-option

# What cannot be written is refused before the work.
status=0
timeout 60 "$dualpipe" search --ranks 4 --microbatches 8 --seconds 600 --output nowhere/x.tsv 2>err || status=$?
[ "$status" -eq 1 ] || fail "an output in a folder that is not there: $status"
require err '^dualpipe search: nowhere/x.tsv: No such file or directory$'
expect 0 simulate --method 1f1b --ranks 1 --microbatches 1
require out '^schedule   1f1b: 1 rank, 1 micro-batch, 1 chunk per rank'
expect 2 partition --method 1f1b --ranks 8 --microbatches 8 --layers 61
require err '1 layer on 8 stages'

if [ -w /dev/full ]; then
    status=0
    "$dualpipe" --help >/dev/full 2>"$work/err" || status=$?
    [ "$status" -eq 1 ] || { echo "output lost on a full disk: exit code $status, 1 was expected"; failures=$((failures + 1)); }
    require err 'No space left'
fi

finish
