/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_device.c: device plugins against the contract of dp.device/1. */
#include <dualpipe/conform.h>
#include <dualpipe/device.h>

int main(int argc, char **argv)
{
    return dp_conform_main(DP_IFACE_DEVICE, NULL, argc, argv);
}
