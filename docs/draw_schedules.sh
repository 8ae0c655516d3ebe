#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# draw_schedules.sh DUALPIPE FOLDER: writes FOLDER/schedules.md and FOLDER/schedules/METHOD.png from what the command
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
described() { # METHOD PART: 1: the method's summary in --help; 2: its source, which begins with a capital letter
    "$dualpipe" schedule --help | awk -v method="$1" -v wanted="$2" '
        /^methods:/ { listed = 1; next }
        listed && /^  [^ ]/ { found = $1 == method; part = 1; sub(/^ *[^ ]+ */, "") }
        found { sub(/^ */, ""); if (seen++ && /^[A-Z][A-Za-z0-9 -]*, /) part = 2 }
        found && part == wanted { text = text (text == "" ? "" : " ") $0 }
        END { print text }'
}

mkdir -p "$folder/schedules"
exec >"$folder/schedules.md"
cat <<'END'
# Schedules

This page shows every built-in schedule on 8 ranks with 20 micro-batches, or 24 where a multiple of
the ranks is needed. Every forward, backward for the input and backward for the weights of a device
takes one unit of time. An overlapped pair takes as long as its sides, and hops take nothing. With
other costs the order changes: `dualpipe compare` ranks the schedules for yours.
`make schedule-pictures` makes this page and its pictures. *Explore* opens a schedule in the
[explorer](explore.md), whose page lies above this folder where the documentation is installed.

A row is a rank, a box an operation, its number the micro-batch. Forward is orange, backward green,
backward for the input alone light green, backward for the weights blue, idle time white. A frame
joins a forward and a backward that run overlapped. Dark boxes belong to the second direction, leg
or chunk. Schedules that cut a rank's share into chunks are drawn for 4 ranks and 8 micro-batches.

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
            "$(printf '%s' "$source" | sed 's/; limits: /. Limits: /')" | fold -s -w 100 | sed 's/ *$//'
        printf 'Step %s, idle %s (%s), formula %s, at most %s micro-batches held, %s of the weights.\n\n' \
            "$(field step_time)" "$(range bubble)" "$(share)" "$formula" "$(range peak_activations | sed 's/.* to //')" \
            "$([ $copies -eq 1 ] && echo one copy || echo two copies)" | fold -s -w 100 | sed 's/ *$//'
        printf '![%s](schedules/%s.png)\n\n' "$method on $shown" "$method"
        printf '[Explore](../explore.html#method=%s&ranks=%s&microbatches=%s)\n' "$method" "${shown%% *}" \
            "$([ "$shown" = "$ranks ranks" ] && echo $microbatches || echo 8)"
    } >>"$rows"
done
cat "$rows"

# What bench/overlap_plan printed last, and a planned step.
layer=attention.F=4.36975,dispatch.F=6.69025,mlp.F=4.60375,combine.F=8.684,attention.I=9.34075,dispatch.I=7.48675,mlp.I=5.306
layer=$layer,combine.I=5.76925,attention.W=2.3885,mlp.W=5.06275,LAYERS=4
for drawn in "pairs --overlap canonical" "planned --overlap planned"; do
    "$dualpipe" simulate --method dualpipev --ranks 2 --microbatches 4 --cost $layer ${drawn#* } --format png \
        --output "$folder/schedules/${drawn%% *}.png"
done
# Two micro-batches of a server beside each other, for README.md and inference.md.
for drawn in "prefill attention.F=4,shared.F=3,mlp.F=4,dispatch.F=4,combine.F=6" \
    "decode project.F=3,attention.F=5,shared.F=3,mlp.F=5,dispatch.F=6,combine.F=5"; do
    "$dualpipe" simulate --method 1f1b --ranks 1 --microbatches 4 --inference "${drawn%% *}" --cost "${drawn#* },LAYERS=2" --format png \
        --output "$folder/schedules/${drawn%% *}.png"
done
cat <<'END'

## Groups of micro-batches

Micro-batches pass the chunks of a rank in groups of P, and `--microbatch-group G` makes them larger
(Megatron's `microbatch_group_size_per_virtual_pipeline_stage`). A forward of a MoE layer takes
longer to reach the next rank than to make way for the next forward: 24 ms and 20 ms with
DeepSeek-V3's costs. So groups of P leave a gap in each round while the pipeline fills. Groups of
1.2 P close it:

| 64 micro-batches, 4 chunks | group | useful share | held | slots |
|---|---|---|---|---|
| 8 ranks | 8 | 89.88 % | 10 | 1 |
| | 10 | **90.88 %** | 11.5 | 2 |
| | 13 | 89.72 % | 13.75 | 6 |
| 16 ranks | 16 | 81.36 % | 20 | 1 |
| | 22 | **82.46 %** | 24.5 | 6 |

The groups are alike but for one micro-batch, so 64 in groups of 10 are seven of 9 or 10. A channel
needs as many slots as the largest group is larger than P, or one more; commands and pipelines that
leave slots open take as many. `dualpipe search` tries groups of up to 2 P.

## Layers on stages

Stages need not hold equal numbers of layers.
`dualpipe partition --layers 1.3,1x6,3.5 --method dualpipe --ranks 4 --microbatches 16` cuts a model
so that the simulated step is short. It prints `--stage-scale` for `simulate`, `compare` and
`search`, and `--partition` for `train_moe`, which keeps its embedding with the first layer and its
head with the last. `train_moe --partition auto` measures its own layers in a few steps. Losses are
the same to the last bit, whichever stage holds a layer.

`dualpipe compare --ranks 8 --microbatches 40 --layers 1x61,5.45` does so for every schedule. So all
of them compete with a head that costs as much as five layers. Fewer stages are easier to fill
evenly: `dualpipe` needs 128.6, `zbv` with its 16 stages 134.8. With layers that are all alike it is
126 and 123.5.

## Devices that are not alike

`--rank-scale 3:1.2` makes rank 3 slower by a fifth in all that it computes, operations and segments
on every lane. `simulate` shows what that costs the others, `compare` and `search` which schedule
bears it best, `partition` gives such a rank fewer layers, and `dualpipe demo` runs it: the rank's
segments sleep so much longer.

## Layers, order and memory in one

`dualpipe search` with `--layers 1x61,5.45` looks for the cut of the layers together with the order.
Every schedule gets the cut that suits it, annealing moves a layer at times, and behind a plan of
segments the cut moves once more. `--chunks 2,3,4` says with how many chunks interleaved schedules
are tried. Memory is in bytes: a stage has bytes by the number of its layers, and weights count
twice where a rank has two copies. Ranks may differ:

    dualpipe search --ranks 4 --microbatches 16 --layers 1x30,3 --chunks 2,3,4 \
        --activation-bytes 4GiB --weight-bytes 24GiB --memory 64GiB,2:40GiB --output mine.tsv

It prints what it found, the runners-up, and two lines for `simulate` and `verify`. `--stage-scale`
says what each stage takes, `--partition` by how many layers it has bytes. The planner of segments
knows one limit for all ranks, so a plan keeps the tightest one.

`--frontier` shows what a GiB buys. It searches under one limit after the other, each below what was
found before, in the time of `--seconds` together:

END
frontier="search --ranks 8 --microbatches 32 --activation-bytes 4GiB --weight-bytes 24GiB --frontier --seconds 60"
printf '    dualpipe %s\n' "$frontier" | sed 's/ --frontier/ \\\n        --frontier/'
"$dualpipe" $frontier --picture "$folder/schedules/frontier.png" | sed -n 's/^./    &/p; /^$/q'
cat <<'END'

![The shortest step found in each memory](schedules/frontier.png)

## Simulated and measured

`dualpipe demo` runs schedules in the engine with segments that sleep their cost. So every rank has
its own device on any machine. Milliseconds per step on two cores, 8 ranks, 16 micro-batches, as
root (which lets sleepers wake in time):

    schedule             simulated  measured    off
    dualpipe                 881.0     876.4  -0.5 %
    dualpipev                910.8     910.7  -0.0 %
    1f1b                    1211.0    1219.2  +0.7 %
    zb1p                    1095.1    1103.4  +0.8 %
    interleaved_overlap      902.1     908.2  +0.7 %

![DualPipe as the engine executed it](schedules/executed.png)

## Planned

`--overlap planned` puts the segments of all passes beside each other (`dp_plan_overlap()`):
forwards beside forwards where the pipeline fills, backwards beside weight gradients where it
empties. The table has the share of a step in which a rank computes. Costs are those of
DeepSeek-V3's published profile ([traces.md](traces.md) makes `costs.txt`; 4 layers a device), with
64 micro-batches.

- *pairs*: as published, the same command without `--overlap planned` and what follows;
- *planned*: the command as shown;
- *bound*: what no order of these passes in this memory can beat.

With a cap, the slots are those of the command, and three seeds were planned, of which the table has
the worst. `bench/overlap_plan` prints them; its runs are in `bench/results`, without a cap of
2026-11-24, with one of 2026-11-28.

| command | pairs | planned | bound |
|---|---|---|---|
| `dualpipe simulate --method interleaved_overlap --chunks 4 --ranks 8 --microbatches 64 --costs costs.txt --overlap planned --seconds 60 --memory-cap 12 --transport credits:6` | 89.88 % | 91.61 % | 93.38 % |
| `dualpipe simulate --method interleaved_overlap --chunks 4 --ranks 8 --microbatches 64 --costs costs.txt --overlap planned --seconds 60 --memory-cap 16 --transport credits:6` | 89.88 % | 91.91 % | 95.21 % |
| `dualpipe simulate --method dualpipev --ranks 8 --microbatches 64 --costs costs.txt --overlap planned --seconds 60` | 84.02 % | 84.58 % | 85.21 % |
| `dualpipe simulate --method dualpipe --ranks 8 --microbatches 64 --costs costs.txt --overlap planned --seconds 60` | 84.71 % | 85.74 % | 86.47 % |
| `dualpipe simulate --method interleaved_overlap --chunks 4 --ranks 16 --microbatches 64 --costs costs.txt --overlap planned --seconds 60` | 81.36 % | 81.36 % | 82.74 % |
| `dualpipe simulate --method interleaved_overlap --chunks 4 --ranks 16 --microbatches 64 --costs costs.txt --overlap planned --seconds 60 --memory-cap 24 --transport credits:8` | 81.36 % | 83.66 % | 87.25 % |
| `dualpipe simulate --method interleaved_overlap --chunks 4 --ranks 16 --microbatches 64 --costs costs.txt --overlap planned --seconds 60 --memory-cap 32 --transport credits:8` | 81.36 % | 84.08 % | 90.57 % |
| `dualpipe simulate --method dualpipev --ranks 16 --microbatches 64 --costs costs.txt --overlap planned --seconds 60` | 71.76 % | 72.87 % | 73.32 % |
| `dualpipe simulate --method dualpipe --ranks 16 --microbatches 64 --costs costs.txt --overlap planned --seconds 60` | 72.34 % | 72.71 % | 74.25 % |

The pictures show a step of `dualpipev` on 2 ranks with 4 micro-batches, as published and planned. A
row has two lanes: above, what a rank computes; below, what it dispatches and combines meanwhile. A
frame goes around passes that run beside each other as one operation, in both lanes, with their
names above it. As published, the frames are those of the steady state. Planned, forwards run beside
forwards before it (`F0.2|F1.1` on rank 1). Behind it backwards run beside each other (`I1.3|I0.2`)
and beside weight gradients (`I0.3|W0.1`). Weight gradients alone fill the end.

`dualpipe simulate --method dualpipev --ranks 2 --microbatches 4 --costs costs.txt --format png
--output pairs.png` and the same with `--overlap planned` draw them. `--format trace` and `dualpipe
trace view` make a page of it, where the frames can be opened.

![dualpipev on 2 ranks, 4 micro-batches, as published pairs](schedules/pairs.png)

![dualpipev on 2 ranks, 4 micro-batches, planned](schedules/planned.png)
END
