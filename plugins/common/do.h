/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * do.h: DO(call) returns the status of a call that fails. */
#ifndef PLUGINS_COMMON_DO_H
#define PLUGINS_COMMON_DO_H

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        dp_status_t status_ = (call);                                                                                  \
        if (status_ < 0)                                                                                               \
            return status_;                                                                                            \
    } while (0)

#endif
