#!/bin/sh
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# check_trace_view.sh: the page of dualpipe trace view in a headless browser: figures, zoom, pan, hover, find, jumps, several
# ranks, odd names and an empty name; a screenshot that is not empty. Skipped where there is no Chromium (Debian: chromium).
set -eu

browser=
for name in chromium chromium-browser google-chrome; do
    if command -v $name >/dev/null 2>&1; then
        browser=$name
        break
    fi
done
if [ -z "$browser" ]; then
    echo "no chromium on this machine: the page is not checked"
    exit 77
fi

dualpipe=$DP_TEST_BUILDDIR/dualpipe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

fail() {
    echo "$*"
    failures=$((failures + 1))
}
browse() { # OPTIONS...
    HOME=$work timeout -k 5 90 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$work/profile" --window-size=1400,1200 --force-device-scale-factor=1 "$@" 2>browser.err
}
# PAGE SCRIPT REPORT: loads a page with a script behind it, which fills an array `report` in steps that each see the last one
# drawn. Errors of the page's own go there too.
try() {
    awk -v steps="$2" '
        /<body>/ { print; print "<script>window.report = []; window.onerror = (m) => report.push(\"error: \" + m);</script>"; next }
        /<\/body>/ {
            print "<pre id=\"report\"></pre><script>"
            print "const settle = async () => { await new Promise((done) => setTimeout(done, 20)); paint(); };" # frames are rare here
            print "(async () => { try { await settle();"
            while ((getline line < steps) > 0) print line
            print "} catch (e) { report.push(\"error: \" + e); }"
            print "document.getElementById(\"report\").textContent = \"REPORT\\n\" + report.join(\"\\n\") + \"\\nEND\"; })();</script>"
        }
        { print }' "$1" >tried.html
    browse --virtual-time-budget=8000 --dump-dom "file://$work/tried.html" >dom || fail "$browser: $(tail -3 browser.err)"
    sed -n '/REPORT$/,/^END/p' dom | sed 1d >"$3"
    grep -q '^END' "$3" || fail "$1: the script did not end: $(tail -3 browser.err)"
    ! grep '^error' "$3" || fail "$1: an error in the page"
}
require() { # FILE PATTERN
    grep -q -e "$2" "$1" || fail "\"$2\" is not in $1: $(cut -c 1-300 "$1")"
}

gzip -dc "$DP_TEST_DATA/trace/deepseek_v3_train_1f1b.json.gz" >profile.json
"$dualpipe" trace view profile.json --output page.html

cat >steps <<'END'
const view1 = document.getElementById("view"), box = () => view1.getBoundingClientRect();
const now = () => [Number(document.body.dataset.from), Number(document.body.dataset.to)];
const send = (kind, type, x, y, more) => view1.dispatchEvent(new kind(type, { bubbles: true, cancelable: true, clientX: box().left + x, clientY: box().top + y, ...more }));
const say = (what, value) => report.push(what + ": " + value);
say("state", document.body.dataset.state);
say("figures", document.getElementById("figures").innerText.replace(/\s+/g, " "));
say("tables", document.getElementById("tables").textContent.replace(/\s+/g, " "));
say("all", now().join(" "));
say("alone", getComputedStyle(document.getElementById("fold").parentElement).display + " " + getComputedStyle(document.getElementById("empty-row")).display);
/* the wheel keeps the time below the pointer */
const under = (x) => T(x);
const before = under(700);
send(WheelEvent, "wheel", 700, 80, { deltaY: -400, ctrlKey: true });
await settle();
say("zoomed", now()[1] - now()[0] < 65e6 && Math.abs(under(700) - before) < 2e3);
/* dragging to the right shows what was before */
const length = now()[1] - now()[0], from = now()[0];
send(PointerEvent, "pointerdown", 700, 80, { pointerId: 1 });
send(PointerEvent, "pointermove", 800, 80, { pointerId: 1 });
send(PointerEvent, "pointerup", 800, 80, { pointerId: 1 });
await settle();
say("dragged", now()[0] < from && Math.abs(now()[1] - now()[0] - length) < 1);
document.dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true }));
await settle();
say("back", now().join(" "));
document.dispatchEvent(new KeyboardEvent("keydown", { key: "w", bubbles: true }));
await settle();
say("key", (now()[1] - now()[0]) / 129012000 < .61);
document.getElementById("all").click();
await settle();
/* hover: the all-to-all kernel that is exposed for longest, and its annotation */
const lane = rows.find((r) => r.kind === "lane" && r.lane.label === "stream 27");
send(PointerEvent, "pointermove", X(116e6), lane.y + lane.h - 5);
await settle();
say("kernel", document.getElementById("tip").innerText.replace(/\s+/g, " "));
send(PointerEvent, "pointermove", X(116e6), lane.y + 5);
await settle();
say("band", document.getElementById("tip").innerText.replace(/\s+/g, " "));
send(MouseEvent, "dblclick", X(116e6), lane.y + 5);
await settle();
say("fitted", now()[0] > 100e6 && now()[1] < 129e6);
send(PointerEvent, "pointermove", 5, 5);
await settle();
say("tip", document.getElementById("tip").style.display);
/* find */
const find = document.getElementById("find");
find.value = "internode::combine";
find.dispatchEvent(new Event("input"));
await settle();
say("found", document.getElementById("found").textContent);
/* a row of the table of stretches goes there */
document.querySelector("tr.jump button").click();
await settle();
say("jumped", now()[0] > 112e6 && now()[1] < 120e6);
/* far zoom has a floor, far pan an end */
for (let k = 0; k < 60; k++) send(WheelEvent, "wheel", 700, 80, { deltaY: -400, ctrlKey: true });
for (let k = 0; k < 60; k++) document.dispatchEvent(new KeyboardEvent("keydown", { key: "d", bubbles: true }));
await settle();
say("floor", now()[1] - now()[0]);
for (let k = 0; k < 90; k++) send(WheelEvent, "wheel", 700, 80, { deltaY: 400, ctrlKey: true });
await settle();
say("ceiling", now().join(" "));
END
try page.html steps report
require report '^state: ready$'
require report '^figures: .*129\.012 ms 983 records on 3 streams'
require report '^figures: .*computation 96\.38 % of the span'
require report '^figures: .*communication 113\.440 ms'
require report '^figures: .*96\.32 % of it 109\.263 ms hidden, 4\.177 ms exposed'
require report '^tables: .*1\.758.*stream 7.*927.*118\.193'
require report '^all: 0 129012000$'
require report '^alone: none none$'
require report '^zoomed: true$'
require report '^dragged: true$'
require report '^back: 0 129012000$'
require report '^key: true$'
require report '^kernel: void dpsk::ep::internode::combine.* annotation dispatch(B) grid 20 blocks, 20 of 132 SMs exposed'
require report '^band: dispatch(B) first start to last end'
require report '^fitted: true$'
require report '^tip: none$'
require report '^found: 8 kernels, 49\.448 ms$'
require report '^jumped: true$'
require report '^floor: 200$'
require report '^ceiling: 0 129012000$'

# A run of ours: pairs and the second direction are marked, of several steps the last is shown first.
"$dualpipe" simulate --method dualpipe --ranks 4 --microbatches 8 --format trace --output ours.json
sed 's/"step":0/"step":1/g; s/"ts":\([0-9]*\)\./"ts":9\1./g; s/"pid":/"pid":1/g; s/"rank \([0-9]\)"/"rank 1\1"/' ours.json >later.json
"$dualpipe" trace merge ours.json later.json --output steps.json
"$dualpipe" trace view steps.json --output ours.html
cat >steps <<'END'
const lanes = data.ranks.slice(0, 4).flatMap((r) => r.lanes), of = (mask) => lanes.reduce((n, l) => n + l.marks.reduce((k, x) => k + (x & mask ? 1 : 0), 0), 0);
report.push("pairs: " + of(PAIR) + ", second: " + (of(SECOND) > 0));
report.push("legend: " + document.getElementById("legend").textContent);
report.push("bands: " + lanes[0].bands.slice(0, 2).map((b) => b.text).join(" "));
const step = document.getElementById("step");
report.push("steps: " + [...step.options].map((o) => o.textContent).join(", ") + "; " + step.value);
const from = Number(document.body.dataset.from);
report.push("last: " + (from > 0 && from === data.steps[1][1]));
step.selectedIndex = 2;
step.onchange();
await settle();
report.push("all: " + document.body.dataset.from);
END
try ours.html steps report
require report '^pairs: [1-9][0-9]*, second: true$'
require report '^legend: .*overlapped pair.*second direction'
require report '^bands: F3|B1′ F2′|B0$'
require report '^steps: step 0, step 1, all steps; step 1$'
require report '^last: true$'
require report '^all: 0$'

# What is recomputed belongs to its I: it has the number of its micro-batch, and makes no pair of it a whole backward.
layer=attention.F=1,attention.I=1,attention.W=1,mlp.F=1,mlp.I=1,mlp.W=1,combine.I=1
"$dualpipe" simulate --method zb1p --ranks 4 --microbatches 8 --lanes --recompute full --cost $layer --format trace --output again.json
"$dualpipe" trace view again.json --output again.html
cat >steps <<'END'
const of = (name) => data.names.findIndex((n) => n[0] === name), lane = (...names) => ({ name: names.map(of), marks: names.map(() => 0) });
report.push("number: " + numbers[of("mlp R 3")]);
report.push("recomputed: " + passesOf(lane("mlp R 3", "mlp I 3"), { from: 0, upto: 1 }));
report.push("whole: " + passesOf(lane("mlp R 3", "mlp I 3", "mlp W 3"), { from: 0, upto: 2 }));
report.push("apart: " + passesOf(lane("mlp R 3"), { from: 0, upto: 0 }));
END
try again.html steps report
require report '^number: 3$'
require report '^recomputed: I3$'
require report '^whole: B3$'
require report '^apart: I3$'

# Several ranks, of which one can be chosen; names that are markup; a trace of one instant.
sed 's/"rank": 0/"rank": 5/' profile.json >other.json
"$dualpipe" trace merge profile.json other.json --output both.json
"$dualpipe" trace view both.json --output both.html
cat >steps <<'END'
report.push("ranks: " + [...document.querySelectorAll("#rank option")].map((o) => o.textContent).join(", "));
const choice = document.getElementById("rank");
choice.value = "1";
choice.dispatchEvent(new Event("change"));
await settle();
report.push("lanes: " + rows.filter((r) => r.kind === "lane").length);
report.push("second: " + document.getElementById("figures").innerText.replace(/\s+/g, " "));
END
try both.html steps report
require report '^ranks: figures of rank 0, figures of rank 5$'
require report '^lanes: 6$'
require report '^second: .*96\.32 %'

# Many ranks: a rank is a row, the canvas is as high as what is seen, and rows, names and the address lead to places.
"$dualpipe" simulate --method dualpipev --ranks 24 --microbatches 48 --cost attention.F=1,attention.I=1,attention.W=1,dispatch.F=1,mlp.F=1 --format trace --output many.json
"$dualpipe" trace view many.json --output many.html
cat >steps <<'END'
const scroll = document.getElementById("scroll"), canvas1 = document.getElementById("view"), drawn = [];
const say = (what, value) => report.push(what + ": " + value), seen = () => { drawn.length = 0; paint(); return drawn.length; };
const kinds = () => [...new Set(rows.map((r) => r.kind))].join(" ") + " " + rows.length, press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const text = g.fillText.bind(g);
g.fillText = (t, x, y) => { if (/^[▸▾]/.test(t)) drawn.push(t); text(t, x, y); };
say("folded", kinds());
press("f");
await settle();
say("unfolded", [...new Set(rows.map((r) => r.kind))].join(" "));
say("low", canvas1.clientHeight <= innerHeight * .7 && height > 3 * canvas1.clientHeight);
say("few are drawn", seen() > 0 && drawn.length < 12);
press("PageDown");
await settle();
say("scrolled", scroll.scrollTop > 100 && seen() > 0 && !drawn.includes("▾ rank 0"));
scroll.scrollTop = 0;
await settle();
const head = rows.find((r) => r.kind === "head" && r.rank.label === "rank 1"), box = () => canvas1.getBoundingClientRect();
for (const type of ["pointerdown", "pointerup"]) canvas1.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: 1, clientX: box().left + 20, clientY: box().top + head.y + 5 }));
await settle();
say("one folded", data.ranks.filter((r) => r.folded).map((r) => r.label).join(" "));
canvas1.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box().left + X(span * .4), clientY: box().top + rows.find((r) => r.kind === "rank").y + 3 }));
await settle();
say("under the pointer", document.getElementById("tip").style.display === "block" && view.hover.rank.label);
const finger = (type, id, x) => canvas1.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: id, pointerType: "touch", clientX: box().left + x, clientY: box().top + 60 }));
show(0, span);
finger("pointerdown", 1, 600); finger("pointerdown", 2, 700);
finger("pointermove", 1, 500); finger("pointermove", 2, 800);
finger("pointerup", 1, 500); finger("pointerup", 2, 800);
say("pinched", view.to - view.from < span / 2);
goTo("#1000000-5000000-7");
await settle();
say("place", [view.from, view.to].join(" ") + " " + rows.find((r) => r.y + r.h > scroll.scrollTop + AXIS).rank.label);
say("reachable", [...document.querySelectorAll("tr.jump")].every((r) => r.querySelector("button")) && document.querySelectorAll("tr.jump").length > 0);
say("told", document.getElementById("view").getAttribute("aria-describedby") === "told" && document.getElementById("told") !== null);
say("whose", document.getElementById("whose").textContent);
END
try many.html steps report
for line in 'folded: rank 24' 'unfolded: head lane strip' 'low: true' 'few are drawn: true' 'scrolled: true' 'one folded: rank 1' \
    'under the pointer: rank 1' 'pinched: true' 'place: 1000000 5000000 rank 7' 'reachable: true' 'told: true' 'whose: rank 0, one of 24'; do
    require report "^$line\$"
done

echo '[{"ph":"X","cat":"kernel","name":"</script><b id=b>&é","pid":0,"tid":1,"ts":5,"dur":0},
{"ph":"X","cat":"kernel","name":"","pid":"<i>","tid":"","ts":5,"dur":0}]' >odd.json
"$dualpipe" trace view odd.json --output odd.html
cat >steps <<'END'
report.push("names: " + data.names.map((n) => n[1]).join("|") + " " + document.getElementById("b"));
report.push("state: " + document.body.dataset.state);
END
try odd.html steps report
require report '^names: |&lt;/script&gt;&lt;b id=b&gt;&amp;é null$' # a device that has no number comes first
require report '^state: ready$'

# A timeline of ours.
"$dualpipe" simulate --method dualpipe --ranks 4 --microbatches 8 --format trace --output sim.json
"$dualpipe" trace view sim.json --output sim.html
echo 'report.push("ranks: " + data.ranks.length + " " + document.getElementById("legend").textContent);' >steps
try sim.html steps report
require report '^ranks: 4 .*forward'

browse --screenshot="$work/page.png" "file://$work/page.html" >/dev/null || fail "no screenshot: $(tail -3 browser.err)"
[ "$(wc -c <page.png)" -gt 60000 ] || fail "the screenshot is nearly empty"
if [ -n "${DP_TEST_KEEP:-}" ]; then
    for page in page both sim; do
        browse --screenshot="$DP_TEST_KEEP/$page.png" "file://$work/$page.html" >/dev/null
    done
fi

echo "$failures failures"
[ "$failures" -eq 0 ]
