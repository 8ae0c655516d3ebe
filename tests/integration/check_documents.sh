#!/bin/bash
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_documents.sh: every command of README, quickstart, docs, the man page and --help runs as it is written. Steps and seconds of the
# long ones are cut, unless DP_TEST_DOCUMENTS=long; `unrun` says which lines are not run here, and why. With an argument: those of the
# command itself alone (check_examples.sh), without: those of pages.
set -u

source=$DP_TEST_SRCDIR
build=$DP_TEST_BUILDDIR
scale=${DUALPIPE_TIMEOUT_SCALE:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
count=0

for plugin in attention_cpu moe_cpu comm_shm device_cpu; do
    if [ ! -f "$build/.libs/dp_$plugin.so" ]; then
        echo "skipped: this build has no $plugin"
        exit 77
    fi
done

# ---- the commands, "DOCUMENT<TAB>COMMAND" ----

ours='(^|[;&|] *|^[A-Z_]+=[^ ]* +)(\.\/|apps\/train_moe\/)?(dualpipe [a-z]|train_moe( |$))|^(.* )?\.\/(trainer|here)( |$)|^(srun|mpirun|torchrun) '
# What stands beside them.
others='^(\.\/quickstart|build-aux\/deps|\.\.\/configure|autoreconf|make|pip|cc|cd|cp|export|head|mkdir|mv|printf|sed)( |$)'
joined=':all;/\\$/{N;s/ *\\\n */ /;b all}' # lines that a backslash ends and the next

from_markdown() { # FILE: indented lines, and those of blocks of shell, that are commands; whole commands of ours between backticks
    sed "$joined" "$1" | awk -v ours="$ours" -v others="$others" -v file="${1#"$source"/}" '
        /^ *```/ { code = !code; shell = $0 ~ /sh|console|bash/; next }
        !code && !/^    / { text = text " " $0; next }
        code && !shell { next }
        { line = $0; sub(/^ +/, "", line); sub(/ +# .*/, "", line) }
        line ~ ours || line ~ others { print file "\t" line }
        END {
            n = split(text, part, "`")
            for (i = 2; i <= n; i += 2)
                if (part[i] ~ ours && part[i] ~ / --?[A-Za-z-]+[ =][a-z0-9]/ && part[i] !~ /\.\.\.| [A-Z]+( |$)/)
                    print file "\t" part[i]
        }'
}
from_manual() {
    sed -n '/^\.SH EXAMPLES/,/^\.SH SEE/p' "$source/docs/dualpipe.1" |
        awk '/^\.nf/ { in_code = 1; next } /^\.fi/ { in_code = 0 } in_code { gsub(/\\-/, "-"); print "dualpipe.1\t" $0 }'
}
from_help() { # NAME COMMAND...: lines of two blanks behind "examples:", put together where a backslash ends them
    name=$1
    shift
    "$@" --help | sed -n '/^[Ee]xamples:/,/^$/p' | sed "$joined" |
        sed -n "s/^  \([^ ].*\)/$name --help	\1/p"
}

if [ $# -eq 0 ]; then
    least=60
    (cd "$source" && ls README.md docs/*.md examples/*/README.md plugins/*/README.md python/README.md) |
        while read -r page; do from_markdown "$source/$page"; done >"$work/commands"
    sed "$joined" "$source/quickstart" | sed -n "/^ *cat <<'END'/,/^END/s/^\(build\/dualpipe .*\)/quickstart	\1/p" >>"$work/commands"
else
    least=60
    from_manual >"$work/commands"
    for command in $("$build/dualpipe" complete); do
        from_help "$command" "$build/dualpipe" "$command" >>"$work/commands"
    done
    from_help train_moe "$build/apps/train_moe/train_moe" >>"$work/commands"
fi

# ---- what is not run, with the reason ----

unrun() { # DOCUMENT COMMAND
    case $2 in
    *mpirun* | *'--comm mpi'*) echo "wants an MPI: check_mpi_conform.sh and check_mpi_train.sh run such" ;;
    "dualpipe status") echo "wants a live job: check_status.sh asks one" ;;
    RANK=[01]*) echo "two terminals: check_launchers.sh joins ranks by these variables" ;;
    'dualpipe explore'*) echo "wants a browser: check_explore.sh opens the page" ;;
    'dualpipe simulate --format trace') echo "names an option, and no schedule" ;;
    ./trainer*) echo "a rank of a job, which dualpipe run starts" ;;
    *./train_torch*) echo "wants libtorch: check_torch.sh runs it" ;;
    torchrun*) echo "wants PyTorch" ;;
    'srun -N'*) echo "wants several hosts of Slurm: check_slurm.sh runs such" ;;
    *'--attention naive' | *'--attention ./dp_attention_loops.so') echo "wants the plugin of that page: check_outside.sh trains with it" ;;
    ./quickstart* | build-aux/deps | autoreconf* | 'mkdir -p build'* | ../configure | 'make && '*) echo "made this build: quickstart, .ci/run" ;;
    '../configure --with-cutlass'* | 'cd libdualpipe-kit') echo "a kit for a GPU: check_kit.sh makes and unpacks one" ;;
    'pip install'*) echo "check_python.sh installs it" ;;
    'make check TESTS='* | 'make benches'*) echo "wants a GPU: docs/gpu.md says where each was run" ;;
    'cp -R'* | 'cd attention_naive' | mv* | sed* | make | 'make check' | 'make TOP='* | cc* | 'DUALPIPE_PLUGIN_PATH=$PWD'*)
        echo "wants an install: check_outside.sh runs these" ;;
    *) return 1 ;;
    esac
}

# ---- a place like a build folder, with the command in PATH as after an install ----

mkdir -p "$work/bin" "$work/place"
cat >"$work/bin/dualpipe" <<END
#!/bin/bash
case \${DP_TEST_DOCUMENTS:-},\${1:-},\$* in
long,*) ;;
,simulate,*--seconds*) set -- "\$@" --seconds 0.2 ;;
,search,*) set -- "\$@" --seconds 0.2 ;;
,demo,*) set -- "\$@" --seconds 0.2 ;;
,plugin,*) [ "\${2:-}" != check ] || set -- "\$@" messages_arrive_in_order_and_whole ;;
esac
exec "$build/dualpipe" "\$@"
END
cat >"$work/bin/train_moe" <<END
#!/bin/bash
[ "\${DP_TEST_DOCUMENTS:-}" = long ] || set -- "\$@" --steps 2 --sample 0 --val-every 0
exec "$build/apps/train_moe/train_moe" "\$@"
END
# Hosts that are this one: what ssh is given runs here. A scheduler that is dualpipe run.
printf '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n' >"$work/bin/ssh"
printf '#!/bin/sh\nexec dualpipe run "$@"\n' >"$work/bin/srun"
chmod +x "$work"/bin/*
PATH=$work/bin:$PATH
export PATH

"$build/dualpipe" schedule --method dualpipev --ranks 4 --microbatches 8 --format tsv --output "$work/mine.tsv"
"$build/dualpipe" trace costs "$source/tests/data/trace/deepseek_v3_train_1f1b.json.gz" --output "$work/costs.txt"
"$build/dualpipe" simulate --method 1f1b --ranks 4 --microbatches 8 --costs "$work/costs.txt" --lanes --format trace --output "$work/trace.json"

prepare() { # DOCUMENT: a separate folder with the files that its commands read
    place=$work/place/$(printf %s "$1" | tr -c 'a-z0-9\n' _)/build
    [ ! -d "$place" ] || return 0
    mkdir -p "$place/run" "$place/apps/train_moe" "$place/examples/smallest" "$place/examples/generate"
    ln -s "$source/libdualpipe" "$place/../libdualpipe"
    ln -s "$source/tests" "$place/tests"
    ln -s "$source/docs" "$place/docs"
    ln -s "$source/tests" "$place/../tests"
    ln -s . "$place/build"
    ln -s "$work/bin/dualpipe" "$place/dualpipe"
    ln -s "$work/bin/train_moe" "$place/apps/train_moe/train_moe"
    ln -s "$build/examples/smallest/smallest" "$place/examples/smallest/smallest"
    ln -s "$build/examples/generate/generate" "$place/examples/generate/generate"
    printf '#!/bin/sh\nexec "%s"\n' "$build/examples/smallest/smallest" >"$place/trainer"
    printf '#!/bin/sh\nshift; exec sh -c "$*"\n' >"$place/here"
    chmod +x "$place/trainer" "$place/here"
    cp "$work/mine.tsv" "$place/mine.tsv"
    cp "$work/costs.txt" "$place/run/costs.txt"
    cp "$work/costs.txt" "$place/costs.txt"
    mkdir "$place/demo"
    cp "$work/trace.json" "$place/demo/trace.json"
    cp "$work/trace.json" "$place/run/trace.json"
    cp "$source/tests/data/trace/deepseek_v3_train_1f1b.json.gz" "$place/trace.json.gz"
    for r in 0 1 2 3; do
        printf '{"distributedInfo":{"rank":%d},"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2},
            {"ph":"X","cat":"user_annotation","name":"PP:%dF0","pid":1,"tid":1,"ts":1,"dur":2},
            {"ph":"X","cat":"user_annotation","name":"PP:%dB0","pid":1,"tid":1,"ts":5,"dur":4}]}' $r $r $r >"$place/rank$r.json"
    done
    cp "$source/tests/data/models/mixtral-8x7b.json" "$place/config.json"
    cp "$source/tests/data/torch/ZBVZeroBubble_4_8.csv" "$place/torch.csv"
    mkdir -p "$place/docs/eplb"
    cp "$source"/docs/eplb/*.tsv "$source/docs/links.txt" "$place"
    cat "$source"/docs/*.md >"$place/book.txt"
    cp "$build/.libs/dp_comm_shm.so" "$place/dp_comm_mine.so"
}

wanted_status() { # COMMAND
    case $1 in
    *'--device cuda'*) echo "11 1 0" ;; # without a GPU "no CUDA device", or no such plugin
    *--resume*) echo "0 2" ;; # 2: nobody has interrupted the run before, which has had its steps
    *) echo 0 ;;
    esac
}

run() { # DOCUMENT COMMAND
    prepare "$1"
    status=0
    (cd "$place" && HOME=$place TRACE=tests/data/trace/deepseek_v3_train_1f1b.json.gz timeout $((60 * scale)) sh -c "$2") \
        >"$work/out" 2>"$work/err" </dev/null || status=$?
    case " $(wanted_status "$2") " in
    *" $status "*)
        case $status,$2 in
        2,*--resume*) grep -q 'has had its [0-9]* steps' "$work/err" && return ;;
        *) return ;;
        esac
        ;;
    esac
    echo "$1: \"$2\" ends with $status:"
    tail -n 5 "$work/out" "$work/err" | cut -c 1-300 | sed 's/^/    /'
    failures=$((failures + 1))
}

while IFS='	' read -r document command; do
    reason=$(unrun "$document" "$command") && {
        echo "not run: $document: $command ($reason)"
        continue
    }
    run "$document" "$command"
    count=$((count + 1))
done <"$work/commands"

[ "$count" -ge "$least" ] || { echo "only $count commands were found"; failures=$((failures + 1)); }
echo "$count commands, $failures failures"
[ "$failures" -eq 0 ]
