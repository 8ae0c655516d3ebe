# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# ep_exchange needs nothing but the core's own.
AC_DEFUN([DP_PLUGIN_EP_EXCHANGE_CONFIGURE], [$1])
