# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT

# DP_PLUGIN(NAME): one call per folder plugins/NAME.
# Adds --enable-plugin-NAME=auto|yes|no and the conditional BUILD_PLUGIN_<NAME>, and runs
# DP_PLUGIN_<NAME>_CONFIGURE(IF-OK, IF-MISSING) of plugins/NAME/configure.m4, which may set dp_plugin_wants to
# a line that says what it lacks. Asked for and missing is an error; auto and missing is a line in the summary.
AC_DEFUN([DP_PLUGIN], [
    AC_ARG_ENABLE([plugin-$1],
        [AS_HELP_STRING([--enable-plugin-$1=auto|yes|no], [build the plugin $1 @<:@auto@:>@])],
        [], [AS_VAR_SET([enable_plugin_$1], [auto])])
    AS_CASE([$enable_plugin_$1],
        [auto|yes|no], [],
        [AC_MSG_ERROR([--enable-plugin-$1=$enable_plugin_$1: the value must be auto, yes or no])])
    dp_plugin_$1=no
    AS_IF([test "x$enable_plugin_$1" = xno], [
        dp_summary_without="$dp_summary_without
    $1: switched off by --enable-plugin-$1=no"
    ], [
        dp_plugin_wants=
        m4_indir([DP_PLUGIN_]m4_toupper([$1])[_CONFIGURE], [dp_plugin_$1=yes], [:])
        AS_IF([test "x$dp_plugin_$1" = xyes], [
            dp_summary_plugins="$dp_summary_plugins $1"
        ], [test "x$enable_plugin_$1" = xyes], [
            AC_MSG_ERROR([--enable-plugin-$1=yes was asked for, but it needs $dp_plugin_wants])
        ], [
            dp_summary_without="$dp_summary_without
    $1: needs $dp_plugin_wants"
        ])
    ])
    AM_CONDITIONAL([BUILD_PLUGIN_]m4_toupper([$1]), [test "x$dp_plugin_$1" = xyes])
])
