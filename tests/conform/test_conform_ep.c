/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_ep.c: plugins that carry experts' rows against the contract of dp.ep.draft/1. */
#include <dualpipe/conform.h>
#include <dualpipe/draft/ep.h>

int main(int argc, char **argv)
{
    return dp_conform_main(DP_IFACE_EP, NULL, argc, argv);
}
