/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_talk.h: what `dualpipe run` and its agents on other hosts say to each other: lines of a word
 * and an argument.
 *
 * To the agent, on its standard input:
 *   name, secret, first, count, world, respawn, begun, prefix, wdir, env, arg, address, hint
 *                                     the order, a word for each item
 *   listen                            rank 0 is yours: open its socket
 *   ordered                           that was all
 *   go ADDRESS PORT                   start the ranks
 *   again RANK PID HOW STATUS         start the rank again that has ended so
 *   hung RANK PID                     kill the rank's process
 *   close                             no rank of any host is started again
 *   ended TEXT                        who has ended, and how, for ranks that are joining
 *   signal NUMBER                     pass it on; kill: end them
 *   status                            what are all ranks at? rank 0 is yours
 *   alive                             every two seconds
 * From the agent, on its standard error, behind TALK_MARK:
 *   ready, listening ADDRESS PORT     the order is understood
 *   end RANK PID HOW STATUS           a rank has ended, or could not be started again after that
 *                                     end
 *   again RANK PID HOW STATUS NEWPID  it was started again
 *   told TEXT                         what a rank says (run_verdict_hear)
 *   nothing ERRNO                     the program cannot be executed
 *   says TEXT                         for people
 *   status TEXT                       a line of what each rank is doing
 *   done                              all have ended and nothing of them is left
 *   flushed                           what they have printed is handed over
 *   alive
 * Whoever hears nothing for TALK_SILENCE_NS takes the other one for gone. */
#ifndef DP_TOOLS_RUN_TALK_H
#define DP_TOOLS_RUN_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TALK_MARK       "\001dualpipe-agent-1 "
#define TALK_ALIVE_NS   2000000000ll
#define TALK_SILENCE_NS 15000000000ll

/* Lines that come in parts. */
typedef struct talk_in {
    char *text;
    size_t used, room, taken;
} talk_in_t;

/* Reads what there is. 1: something came; 0: nothing for now; -1: the other side is gone, or no
 * memory. */
int talk_read(talk_in_t *in, int fd);
/* The next whole line, without its end; NULL: none. Valid until the next talk_read. */
char *talk_line(talk_in_t *in);
/* Takes the first word off a line: the rest, decoded in place. */
char *talk_split(char *line);

/* Lines on their way to a descriptor that does not block. */
typedef struct talk_out {
    char *text;
    size_t used, room;
    bool broken; /* the other side is gone, or no memory */
} talk_out_t;

/* Encodes the argument, which may hold anything but a zero byte. */
void talk_put(talk_out_t *out, const char *mark, const char *word, const char *argument);
void talk_flush(talk_out_t *out, int fd);

#endif
