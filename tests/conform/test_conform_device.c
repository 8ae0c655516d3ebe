/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_device.c: device plugins against the contract of dp.device/1. */
#include "conform.h"

int main(int argc, char **argv)
{
    return conform_main(&conform_device, argc, argv);
}
