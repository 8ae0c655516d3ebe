# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# report_step.sh: what the benches of train_moe share; they read it with ".".

# The median step in ms that a report of train_moe names. Lines break anywhere; where ranks share cores, it is "N ms a step (median of",
# else "measured N ms (median of". A text without it is shown, and the status is 1.
report_step() { # FILE
    report_step_ms=$(sed 's/^\[0\] //' "$1" | tr '\n' ' ' | tr -s ' ' | sed -n 's/.* \([0-9.]*\) ms \(a step \)\{0,1\}(median of.*/\1/p')
    [ -n "$report_step_ms" ] || { echo "the report names no step:" >&2; cat "$1" >&2; return 1; }
    echo "$report_step_ms"
}
