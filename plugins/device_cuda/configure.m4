# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
AC_DEFUN([DP_PLUGIN_DEVICE_CUDA_CONFIGURE], [
    AS_IF([test "x$have_cuda" = xyes], [$1], [
        dp_plugin_wants="the CUDA toolkit 12.4 or later (nvcc and cuda.h)"
        $2
    ])
])
