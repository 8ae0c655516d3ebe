#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_examples.sh: the examples of the man page and of --help run as they are written.
exec bash "$DP_TEST_SRCDIR/tests/integration/check_documents.sh" examples
