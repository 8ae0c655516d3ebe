# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
AC_DEFUN([DP_PLUGIN_COMM_MPI_CONFIGURE], [
    AS_IF([test "x$have_mpi" = xyes], [$1], [
        dp_plugin_wants="Open MPI or MPICH (Debian: libopenmpi-dev or libmpich-dev), see --with-mpi"
        $2
    ])
])
