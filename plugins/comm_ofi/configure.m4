# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# comm_ofi is written on libfabric, from 1.14 on.
AC_DEFUN([DP_PLUGIN_COMM_OFI_CONFIGURE], [
    AS_IF([test "x$have_ofi" = xyes], [$1], [
        dp_plugin_wants="libfabric 1.14 or later (Debian: libfabric-dev)"
        $2
    ])
])
