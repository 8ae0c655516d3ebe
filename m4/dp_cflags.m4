# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT

# DP_ADD_CFLAG(FLAG): appends FLAG to DP_CFLAGS when the C compiler takes it.
AC_DEFUN([DP_ADD_CFLAG], [
    AC_MSG_CHECKING([whether $CC accepts $1])
    dp_saved_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $1"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
        [AC_MSG_RESULT([yes])
         DP_CFLAGS="${DP_CFLAGS:+$DP_CFLAGS }$1"],
        [AC_MSG_RESULT([no])])
    CFLAGS=$dp_saved_CFLAGS
])
