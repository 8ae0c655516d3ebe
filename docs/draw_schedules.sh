#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# draw_schedules.sh DUALPIPE FOLDER: writes FOLDER/schedules.md and FOLDER/schedules/METHOD.png, all from what the command
# says. `make schedule-pictures` runs it.
set -eu

dualpipe=$1
folder=$2
ranks=8

field() { # NAME: of the JSON in $json
    printf '%s' "$json" | tr -d '\n' | sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p"
}
range() { # NAME: lowest and highest of an array in $json, idle time with its share of the step
    printf '%s' "$json" | tr -d '\n' | sed -n "s/.*\"$1\":\[\([^]]*\)\].*/\1/p" | tr ',' '\n' | sort -g |
        awk 'NR == 1 { low = $1 } { high = $1 } END { print (low == high ? low : low " to " high) }'
}
share() {
    printf '%s' "$json" | tr -d '\n' | sed -n 's/.*"bubble":\[\([^]]*\)\].*/\1/p' | tr ',' '\n' |
        awk -v step="$(field step_time)" '{ sum += $1 } END { printf "%.1f %%", sum / NR / step * 100 }'
}
described() { # METHOD LINE: the method's first or second line of --help
    "$dualpipe" schedule --help | awk -v method="$1" -v wanted="$2" '
        /^methods:/ { listed = 1; next }
        listed && $1 == method && /^  [^ ]/ { found = 1; line = 0 }
        found { line++; if (line == wanted) { if (line == 1) sub(/^ *[^ ]+ */, ""); sub(/^ */, ""); print; exit } }'
}

mkdir -p "$folder/schedules"
exec >"$folder/schedules.md"
cat <<'END'
# Schedules

Every built-in schedule on 8 ranks, with 20 micro-batches (24 where a multiple of the ranks is needed), every forward, backward for
the input and backward for the weights of a device taking one unit of time, an overlapped pair as long as its halves, and hops
nothing. With other costs the order changes: `dualpipe compare` ranks the schedules for yours. This page and its pictures are made by
`make schedule-pictures`.

Read the pictures like this: a row is a rank, a box an operation, its number the micro-batch. Forward is orange, backward green,
backward for the input alone light green, backward for the weights blue, idle time white. A frame joins a forward and a backward
that run overlapped. Dark boxes belong to the second direction, leg or chunk. Schedules that cut a rank's share into chunks are
drawn for 4 ranks and 8 micro-batches.

| schedule | step | idle on each rank | of the step | published formula | most micro-batches held | copies of the weights |
|---|---|---|---|---|---|---|
END

rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
for method in $("$dualpipe" schedule --help | sed -n '/^methods:/,$s/^  \([a-z0-9][^ ]*\) .*/\1/p'); do
    microbatches=20
    "$dualpipe" schedule --method "$method" --ranks $ranks --microbatches $microbatches >/dev/null 2>&1 || microbatches=24
    size="--method $method --ranks $ranks --microbatches $microbatches"
    json=$("$dualpipe" simulate $size --format json)
    formula=$(field formula_bubble)
    [ "$formula" != null ] || formula="none"
    copies=1
    [ "$(field placement)" != '"bidirectional"' ] || copies=2
    name=$method
    [ $microbatches -eq 20 ] || name="$method, 24 micro-batches"
    row="| [$name](#$method) | $(field step_time) | $(range bubble) | $(share) | $formula | $(range peak_activations) | $copies |"
    printf '%s\n' "$row"
    # Chunks make a picture wide: these are drawn for fewer ranks, so that a page can show their numbers.
    shown="$ranks ranks"
    case $(field chunks)/$(field placement) in
    1/* | */'"bidirectional"') "$dualpipe" schedule $size --format png --output "$folder/schedules/$method.png" ;;
    *)
        shown="4 ranks, 8 micro-batches"
        "$dualpipe" schedule --method "$method" --ranks 4 --microbatches 8 --format png --output "$folder/schedules/$method.png"
        ;;
    esac
    {
        printf '\n## %s\n\n' "$method"
        summary=$(described "$method" 1)
        source=$(described "$method" 2)
        printf '%s.\n%s.\n\n' "$(printf '%s' "$summary" | awk '{ print toupper(substr($0, 1, 1)) substr($0, 2) }')" \
            "$(printf '%s' "$source" | sed 's/; limits: /. Limits: /')"
        printf 'Step %s, idle %s (%s), formula %s, at most %s micro-batches held, %s of the weights.\n\n' \
            "$(field step_time)" "$(range bubble)" "$(share)" "$formula" "$(range peak_activations | sed 's/.* to //')" \
            "$([ $copies -eq 1 ] && echo one copy || echo two copies)"
        printf '![%s](schedules/%s.png)\n' "$method on $shown" "$method"
    } >>"$rows"
done
cat "$rows"
