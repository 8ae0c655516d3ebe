# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# comm_shm needs Linux and POSIX threads alone, which the core needs as well.
AC_DEFUN([DP_PLUGIN_COMM_SHM_CONFIGURE], [$1])
