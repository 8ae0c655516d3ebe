#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_comm_ofi.sh: the contract of dp.comm/1 as comm_ofi keeps it over libfabric's tcp, ranks as processes. As threads it is
# check_comm_ofi_threads.sh: libfabric opens slowly, and together they pass the limit of a test on a loaded machine.
set -eu

DUALPIPE_OFI_PROVIDER=tcp
export DUALPIPE_OFI_PROVIDER
exec ${TEST_WRAPPER:-} "$DP_TEST_BUILDDIR/tests/conform/test_conform_comm" --plugin comm_ofi --mode "${1:-processes}"
