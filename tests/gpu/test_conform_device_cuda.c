/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_device_cuda.c: device_cuda against the contract of dp.device/1. */
#include "gpu.h"
#include <dualpipe/conform.h>

int main(int argc, char **argv)
{
    gpu_or_skip("test_conform_device_cuda");
    return dp_conform_main(DP_IFACE_DEVICE, "device_cuda", argc, argv);
}
