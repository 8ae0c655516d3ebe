# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# DP_VERSION_CHECK: status.h, which compiles without configure, and Python's project file have configure.ac's version.
AC_DEFUN([DP_VERSION_CHECK], [
for dp_place in include/dualpipe/status.h python/pyproject.toml; do
    AS_IF([grep -iE "^(.define DP_)?version( =|) *\"$PACKAGE_VERSION\"" "$srcdir/$dp_place" >/dev/null], [],
        [AC_MSG_ERROR([$dp_place has another version than configure.ac, $PACKAGE_VERSION])])
done
])
