#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_plugin_command.sh: dualpipe plugin list shows good and bad plugins, check runs the right suite and fails a bad plugin.
set -eu

subcommand=plugin
quiet_failures=1 # list says on standard output what cannot be used
. "$DP_TEST_SRCDIR/tests/integration/command.sh"

chmod 755 "$work"
expect 0 list
require out '^device_cpu .*dp.device/1'
require out "^    $DUALPIPE_PLUGIN_PATH/dp_device_cpu.so"

# the first of a name is the one that is used
mkdir -m 755 "$work/copy" "$work/bad"
cp "$DUALPIPE_PLUGIN_PATH/dp_device_cpu.so" "$work/copy/"
DUALPIPE_PLUGIN_PATH=$DUALPIPE_PLUGIN_PATH:$work/copy expect 0 list
require out 'hidden by the one above'

echo 'not an object' >"$work/bad/dp_broken.so"
DUALPIPE_PLUGIN_PATH=$work/bad expect 1 list
require out 'dp_broken.so$'
require out 'cannot be used: .*dp_broken.so'

expect 0 check device_cpu copies_and_zeroes --mode threads
require out '^passed  copies_and_zeroes'
expect 1 check "$DP_TEST_MOCKS/mock_major.so"
require err 'ABI'
expect 1 check no_such_plugin
require err 'no_such_plugin'
expect 2 check moe_cpu
require err 'no suite'
expect 2 check
expect 2 check --mode
expect 2
expect 2 lsit

finish
