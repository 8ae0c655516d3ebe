# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
AC_DEFUN([DP_PLUGIN_COMM_NCCL_CONFIGURE], [
    AS_IF([test "x$have_cuda" = xyes && test "x$have_nccl" = xyes], [$1], [
        dp_plugin_wants="the CUDA toolkit and nccl.h (libnccl-dev)"
        $2
    ])
])
