/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_failing_device.h: how a test tells the failing device when to fail, and what its clock
 * does. */
#ifndef DP_TESTS_MOCK_FAILING_DEVICE_H
#define DP_TESTS_MOCK_FAILING_DEVICE_H

#include <stdint.h>

#define MOCK_FAILING_DEVICE "test.failing_device/1"

/* Counts the calls that may fail, of all instances of the process. */
typedef struct mock_failing_device {
    uint32_t struct_size;
    void (*arm)(long k);           /* call k from now (from 0) fails, once; negative: none does */
    long (*calls)(void);           /* since arm */
    const char *(*struck)(void);   /* the call that failed since arm, NULL: none */
    uint64_t (*local_ranks)(void); /* of all devices opened so far, a bit for each */
    void (*turn_back)(int64_t ns); /* every other stamp from now on is as much earlier; 0: none */
} mock_failing_device_t;

#endif
