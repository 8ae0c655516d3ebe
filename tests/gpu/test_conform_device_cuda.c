/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_device_cuda.c: device_cuda against the contract of dp.device/1. */
#include "conform.h"
#include "gpu.h"

int main(int argc, char **argv)
{
    conform_suite_t suite = conform_device;

    gpu_or_skip("test_conform_device_cuda");
    suite.plugin = "device_cuda";
    return conform_main(&suite, argc, argv);
}
