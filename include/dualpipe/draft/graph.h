/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draft/graph.h: transfers inside captured graphs, for dp_pipeline_options_t.graph with several
 * ranks.
 *
 * A draft (docs/draft.md): it may change or go in any release, and the frozen ABI says nothing of
 * it. It leaves the draft room when several GPUs have trained by graphs as fast as without, and no
 * wait has held up another.
 *
 * With this bit a transport's send, recv, release, exchange, exchange_release and reductions are
 * [capture]. They put on the stream only what a graph can hold, so a wait for another rank is a
 * kernel that spins or an operation of the stream. A replay makes the captured transfers once more.
 * So messages are counted on the device, and the number of a message tag counts calls, not
 * messages. A number that a call is given belongs to the capture. The host gives a channel as many
 * slots as divide its messages in a step: every replay then begins at the same slot. */
#ifndef DUALPIPE_DRAFT_GRAPH_H
#define DUALPIPE_DRAFT_GRAPH_H

#include <dualpipe/comm.h>

enum {
    DP_COMM_CAP_CAPTURE = 1u << 1
}; /* of dp_comm_vt_t.caps: transfers may be captured into a
                                           graph */

#endif
