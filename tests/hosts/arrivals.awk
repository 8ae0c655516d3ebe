# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# arrivals.awk: reads a Chrome trace of ours. No message is there before it was sent by more than its two ranks' clocks may
# be off; steps of all ranks lie on one time line. Prints counts; exits with 1 and what is wrong.

function number(key,   at) { # of this line; ids are text
    at = index($0, "\"" key "\":")
    return at == 0 ? 0 : substr($0, at + length(key) + 3) + 0
}
/"name":"clock"/ { bound[number("pid")] = number("bound_ns") / 1000; hosts[number("host")] = 1 }
/"ph":"[sf]"/ {
    match($0, /"id":"[^"]*"/)
    id = substr($0, RSTART, RLENGTH)
    if ($0 ~ /"ph":"s"/) { sent[id] = number("ts"); from[id] = number("pid") }
    else { there[id] = number("ts"); to[id] = number("pid") }
}
/"ph":"X"/ && /"cat":"step"/ {
    step = number("step")
    start = number("ts")
    if (!(step in first) || start < first[step]) first[step] = start
    if (!(step in last) || start > last[step]) last[step] = start
    steps++
}
END {
    for (id in sent) {
        if (!(id in there)) continue
        late = bound[from[id]] + bound[to[id]]
        far += bound[from[id]] != bound[to[id]]
        messages++
        if (there[id] - sent[id] < least || messages == 1) least = there[id] - sent[id]
        if (there[id] < sent[id] - late) {
            printf "message %s of rank %d is at rank %d %.3f us before it was sent; %.3f us may be\n", id, from[id], to[id], sent[id] - there[id], late
            wrong++
        }
    }
    for (r in bound) if (bound[r] > widest) widest = bound[r]
    for (step in first)
        if (last[step] - first[step] > 60e6) {
            printf "step %d starts %.0f s later on one rank than on another\n", step, (last[step] - first[step]) / 1e6
            wrong++
        }
    printf "%d messages, %d of them between hosts, the least %.1f us after it was sent; bounds up to %.1f us; %d steps\n",
        messages, far, least, widest, steps
    if (far == 0 || steps == 0 || widest == 0) { print "nothing was looked at"; wrong++ }
    exit wrong > 0
}
