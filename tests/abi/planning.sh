# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# planning.sh: what libdualplan.a is made of; scripts read it with ".".

. "$DP_TEST_SRCDIR/tests/abi/say.sh"
planning_objects=
planning_sources=
for object in $DP_TEST_PLANNING; do
    planning_objects="$planning_objects $DP_TEST_BUILDDIR/$object"
    planning_sources="$planning_sources $DP_TEST_SRCDIR/$(echo "$object" | sed 's|/[a-z_]*-\([^/]*\)\.o$|/\1.c|')"
done
