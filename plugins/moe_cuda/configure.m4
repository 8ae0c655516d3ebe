# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
AC_DEFUN([DP_PLUGIN_MOE_CUDA_CONFIGURE], [
    AS_IF([test "x$have_cuda" = xyes], [$1], [
        dp_plugin_wants="the CUDA toolkit"
        $2
    ])
])
