# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# attention_cpu multiplies matrices through CBLAS.
AC_DEFUN([DP_PLUGIN_ATTENTION_CPU_CONFIGURE], [
    AS_IF([test "x$have_cblas" = xyes], [$1], [
        dp_plugin_wants="a CBLAS (Debian: libopenblas-dev)"
        $2
    ])
])
