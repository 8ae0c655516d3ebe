# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# device_cpu needs Linux and POSIX threads alone, which the core needs as well.
AC_DEFUN([DP_PLUGIN_DEVICE_CPU_CONFIGURE], [$1])
