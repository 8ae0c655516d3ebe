#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_comm_ofi_threads.sh: the contract of dp.comm/1 as comm_ofi keeps it, ranks as threads.
exec sh "$DP_TEST_SRCDIR/tests/conform/check_comm_ofi.sh" threads
