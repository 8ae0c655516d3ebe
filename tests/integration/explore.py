# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# explore.py BROWSER PAGE DUALPIPE FOLDER TRACE: what check_explore.sh checks. With `--picture FILE` behind: draws the page for docs.
import base64
import json
import os
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

from browser import Browser

program, page, dualpipe, folder, trace = sys.argv[1:6]
scale = float(os.environ.get("DUALPIPE_TIMEOUT_SCALE", "1"))
failures = 0
LAYER = {"attention.F": 4, "dispatch.F": 6, "mlp.F": 5, "combine.F": 8, "attention.I": 9, "dispatch.I": 7, "mlp.I": 5,
         "combine.I": 6, "attention.W": 2, "mlp.W": 5, "LAYERS": 4}
# Rank 0 waits for rank 1's first gradient, rank 1 for rank 0's second forward.
DEADLOCK = ("# method=custom ranks=2 microbatches=2 chunks=1 placement=line\n" +
            "#rank\tseq\top\tdir\tmb\tdir2\tmb2\tpeer\tn\n" +
            "".join(f"{rank}\t{seq}\t{op[0]}\t0\t{op[1]}\t-1\t-1\t-1\t-1\n"
                    for rank, ops in enumerate(["F0 B0 F1 B1", "F1 B1 F0 B0"])
                    for seq, op in enumerate(ops.split())))


def check(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("failed:", *what)
    return condition


def command(*words, file=None):
    result = subprocess.run([dualpipe, *map(str, words)], capture_output=True, text=True, input=file, check=False)
    return result.returncode, result.stdout, result.stderr


def link(**state):
    return "#" + "&".join(f"{key}={value}" for key, value in state.items())


def listed(costs, between=","):
    return between.join(f"{key}={value}" for key, value in costs.items())


def settle(browser):
    browser.until("document.body && document.body.dataset.first && document.body.dataset.busy === '0'")


def follow(browser, **state):
    """Goes to a state by its link, as a reader does. A browser follows 200 in 10 seconds, no more."""
    browser.value(f"document.body.dataset.first = ''; drawn = 0; history.replaceState(null, '', '#'); location.hash = {json.dumps(link(**state))}; 0")
    settle(browser)


def show(browser, **state):
    browser.value(f"document.body.dataset.first = ''; drawn = 0; readLink({json.dumps(link(**state))}).then(update)")
    settle(browser)


def test_figures(browser):
    """Every method under ten sets of costs, sizes among them that some methods refuse."""
    chance = random.Random(1)
    compared = shown = refused = 0
    for k in range(10):
        ranks, microbatches = chance.choice([(2, 4), (3, 7), (4, 8), (4, 16), (6, 12), (8, 16)]), 0
        ranks, microbatches = ranks
        draw = lambda: round(chance.uniform(0.3, 3), 3)
        costs = {"F": draw(), "I": draw(), "W": draw(), "HOP": chance.choice([0, draw() / 10])}
        if k % 3 == 1:
            costs["FB"] = draw() + 2
        if k >= 7:
            costs = {name: value if name == "LAYERS" else round(value * chance.uniform(0.5, 2), 3)
                     for name, value in LAYER.items()}
        sizes = ["--ranks", ranks, "--microbatches", microbatches, "--cost", listed(costs)]
        extra = {"slow": f"rank {ranks - 1}: 1.25"} if k % 2 else {}
        slow = ["--rank-scale", f"{ranks - 1}:1.25"] if k % 2 else []
        _, text, _ = command("compare", *sizes, *slow, "--format", "json")
        table = json.loads(text)
        for method in [s["method"] for s in json.loads(browser.value("JSON.stringify(methods.map((m) => ({method: m.name})))"))]:
            show(browser, method=method, ranks=ranks, microbatches=microbatches, cost=listed(costs), **extra)
            code, text, problem = command("simulate", "--method", method, *sizes, *slow, "--format", "json")
            page_says = browser.value("document.getElementById('problem').textContent")
            if code != 0:
                refused += 1
                check(page_says != "" and page_says.split("\n")[0] in problem, method, ranks, microbatches, "page:", page_says, "command:", problem)
                continue
            run = json.loads(text)
            seen = browser.value("""(() => { const m = picture.model; return {
                method: m.method, step: m.step, idle: [...m.idle], peaks: [...m.peaks],
                card: Number(document.getElementById('step').dataset.value),
                held: m.idle.map((_, rank) => Math.max(...m.stepsOf(rank).map(([, held]) => held))),
                ends: Math.max(...m.ranksOf.flat(2).map((s) => s.end)),
                causes: m.ranksOf.flat(2).every((s) => !m.causes(s).length || m.causes(s)[0].time <= m.together(s)[0].start + 1e-6 * m.end) }; })()""")
            what = (method, ranks, microbatches, costs)
            check(page_says == "" and seen["method"] == method, *what, page_says)
            check(seen["step"] == seen["card"] == run["step_time"], *what, "step", seen["step"], run["step_time"])
            check(seen["idle"] == run["bubble"], *what, "idle", seen["idle"], run["bubble"])
            check(seen["peaks"] == run["peak_activations"], *what, "held", seen["peaks"], run["peak_activations"])
            check(all(abs(a - b) < 1e-9 for a, b in zip(seen["held"], seen["peaks"])), *what, "drawn as held", seen["held"], seen["peaks"])
            check(abs(seen["ends"] - run["step_time"]) <= 1e-6 * run["step_time"], *what, "the picture ends at", seen["ends"])
            check(seen["causes"], *what, "a cause that comes later")
            shown += 1
        rows = browser.value("""[...document.querySelectorAll('#table tbody tr')].map((tr) => ({ method: tr.dataset.method, chunks: Number(tr.dataset.chunks),
            values: [...tr.querySelectorAll('td[data-value]')].map((td) => td.dataset.value) }))""")
        fitting = [s for s in table["schedules"] if s["fits"]]
        if check([(r["method"], r["chunks"]) for r in rows] == [(s["method"], s["chunks"]) for s in fitting], "rows of the table", rows):
            for row, entry in zip(rows, fitting):
                wanted = [entry[key] for key in ("step_time", "gain", "bubble", "peak_activations", "weight_copies", "slots")]
                check([float(v) if v != "" else None for v in row["values"]] == wanted, "table", row, wanted)
                compared += 1
        check(len(browser.value("[...document.querySelectorAll('#reasons li')].map((li) => li.textContent)")) ==
              len(table["schedules"]) - len(fitting), "reasons of those that do not fit")
    check(shown >= 100 and compared >= 100 and refused >= 3, f"only {shown} schedules, {compared} rows, {refused} refusals")
    print(f"figures: {shown} schedules, {compared} rows of tables, {refused} refusals as the command has them")


def test_text(browser):
    """A schedule that is typed in: the deadlock's circle, the way back, a hostile name, CSV."""
    show(browser, method="1f1b", ranks=2, microbatches=2)
    browser.value("document.getElementById('text').focus()")
    browser.call("Input.insertText", text=DEADLOCK)
    settle(browser)
    verdict = browser.value("document.getElementById('verdict').textContent")
    check("deadlock" in verdict and verdict in command("verify", "-", file=DEADLOCK)[2].replace("-: ", "mine.tsv: ", 1), "verdict:", verdict)
    circle = browser.value("picture.circle.map((s) => [s.rank, s.pass, s.microbatch])")
    check(sorted(circle) == [[0, 0, 1], [0, 1, 0], [1, 0, 1], [1, 1, 0]], "circle", circle)
    red = browser.value("""(async () => { await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); const c = picture.canvas;
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
        const [r, g, b] = colours.red.match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16));
        for (let i = 0; i < d.length; i += 4) n += d[i] === r && d[i + 1] === g && d[i + 2] === b; return n; })()""")
    check(red > 500, f"the circle has {red} red points")
    kept = browser.value("(async () => { const hash = await linkOf(state); const before = JSON.stringify(state); await readLink(hash); return before === JSON.stringify(state) && hash; })()")
    check(kept, "a link does not hold the text")
    hostile = DEADLOCK.replace("method=custom", "method=<img/src=x/onerror=f()>")
    browser.value("document.getElementById('text').select()")
    browser.call("Input.insertText", text=hostile)
    settle(browser)
    check(browser.value("document.getElementById('name-a').textContent.includes('<img') && document.images.length === 0"), "a name is taken for a tag")
    check("<img" not in browser.value("picture.svg()"), "a name is a tag in SVG")
    browser.value("document.getElementById('leave').click()")
    settle(browser)
    check(browser.value("state.text === '' && picture.model.method === '1f1b'"), "no way back to the method")
    browser.value("document.getElementById('edit-csv').click()")
    browser.until("state.text !== ''")
    settle(browser)
    check(browser.value("document.getElementById('verdict').textContent").startswith("accepted"), "CSV of torch", browser.value("document.getElementById('verdict').textContent"))
    browser.value("document.getElementById('leave').click()")
    settle(browser)


def test_files(browser):
    """What goes out is what the command writes; a trace that comes in gives its costs."""
    words = ["--method", "zbv", "--ranks", 4, "--microbatches", 6]
    show(browser, method="zbv", ranks=4, microbatches=6)
    for kind, wanted in [("tsv", command("schedule", *words, "--format", "tsv")), ("csv", command("schedule", *words, "--format", "csv")),
                         ("trace", command("simulate", *words, "--format", "trace"))]:
        check(browser.value(f"written('{kind}')") == wanted[1], kind, "is not what the command writes")
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=folder)
    for kind in ("png", "svg", "tsv"):
        browser.value(f"document.querySelector('[data-export={kind}]').click()")
        end, path = time.monotonic() + 20 * scale, f"{folder}/zbv-4x6.{kind}"
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.05)
        check(os.path.exists(path) and os.path.getsize(path) > 1000, "not saved:", path)
    drawn = xml.fromstring(browser.value("picture.svg()"))
    boxes = drawn.findall(".//{http://www.w3.org/2000/svg}rect/{http://www.w3.org/2000/svg}title")
    check(len(boxes) == 4 * 2 * 6 * 3, f"SVG names {len(boxes)} boxes")
    with open(trace, "rb") as file:
        packed = base64.b64encode(file.read()).decode()
    browser.value(f"""(() => {{ const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob('{packed}'), (c) => c.charCodeAt(0))], 'trace.json.gz'));
        document.body.dispatchEvent(new DragEvent('drop', {{ bubbles: true, cancelable: true, dataTransfer: data }})); }})()""")
    browser.until("'attention.F' in state.costs")
    settle(browser)
    costs = dict(line.split("=") for line in command("trace", "costs", trace)[1].splitlines() if "=" in line and not line.startswith("#"))
    check(browser.value("state.costs") == costs and len(costs) > 8, "costs of a trace", browser.value("state.costs"), costs)
    check(browser.value("picture.model.lanes") is True, "segments without lanes")


def test_workers(browser):
    """Plans and searches run beside the page, say how far they are and may be stopped."""
    size = {"method": "dualpipev", "ranks": 2, "microbatches": 4, "cost": listed(LAYER), "seconds": 1}
    show(browser, **size)
    published = browser.value("picture.model.step")
    show(browser, **size, overlap="planned")
    check(browser.value("picture.model.step") < published, "a plan is not shorter", browser.value("picture.model.step"), published)
    plan = browser.value("written('tsv')")
    check("|" in plan or "+" in plan, "a plan without braids:", plan[:300])
    with open(folder + "/plan.tsv", "w", encoding="utf-8") as file:
        file.write(plan)
    _, text, _ = command("simulate", folder + "/plan.tsv", "--cost", listed(LAYER), "--format", "json")
    check(json.loads(text)["step_time"] == browser.value("picture.model.step"), "the plan that is saved is another one")
    show(browser, method="1f1b", ranks=4, microbatches=6, cap=4, seconds=2)
    browser.value("document.getElementById('search').click()")
    browser.until("/tried, best step/.test(document.getElementById('progress-text').textContent)")
    browser.until("state.text !== ''")
    settle(browser)
    check(browser.value("picture.model.method") == "search" and "found" in browser.value("document.getElementById('verdict').textContent"), "nothing was found")
    check(browser.value("Math.max(...picture.model.peaks)") <= 4, "more is held than the cap says")
    browser.value("set({ seconds: 60, text: '' }); document.getElementById('search').click(); document.getElementById('stop').click()")
    settle(browser)
    check(browser.value("!document.getElementById('search').disabled"), "a search that was stopped goes on")


FOCUSABLE = """[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter((e) => !e.disabled && e.checkVisibility())"""


def focused(browser):
    return browser.value("""(() => { const e = document.activeElement; return e === document.body ? null
        : [(window.everything ??= [""" + "..." + FOCUSABLE + """]).indexOf(e), e.id || e.textContent, getComputedStyle(e.type === 'file' ? e.parentElement : e).outlineStyle]; })()""")


def test_keys(browser):
    """Tab reaches everything that can be used, in the order of the page, and shows where it is; the rest by keys as well."""
    browser.value("document.activeElement.blur(); document.body.focus(); window.everything = undefined; getSelection().removeAllRanges(); 0")
    show(browser, method="dualpipe", ranks=4, microbatches=8)
    count, reached = browser.value(FOCUSABLE + ".length"), []
    browser.value("document.querySelector('.skip').focus({ focusVisible: true })")
    for _ in range(count + 5):
        at = focused(browser)
        if at is None or (reached and at[0] == reached[0][0]):
            break
        reached.append(at)
        browser.press("Tab")
    check([at[0] for at in reached] == list(range(count)), f"Tab reached {len(reached)} of {count}:", reached)
    check(all(at[2] not in ("none", "") for at in reached), "no outline:", [at for at in reached if at[2] in ("none", "")])
    browser.value("document.getElementById('view').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End"):
        browser.press(key)
    detail = browser.value("document.getElementById('detail').textContent")
    check("on rank 1" in detail and "waits for" in detail, "keys in the picture:", detail)
    browser.press("Enter")
    check("Chain of causes" in browser.value("document.getElementById('detail').textContent"), "Enter gives no chain")
    for key in ("+", "+"):
        browser.press(key)
    check(browser.value("view.to - view.from < 0.6 * view.whole"), "+ does not zoom")
    browser.press("0")
    check(browser.value("view.to === view.whole"), "0 does not show all")
    browser.press("Escape")
    browser.value("document.querySelector('#table button:not([aria-current])').focus()")
    chosen = browser.value("document.activeElement.closest('tr').dataset.method")
    browser.press("Enter")
    settle(browser)
    check(browser.value("state.method") == chosen, "a row of the table does not answer to Enter")
    browser.value("document.querySelector('#export summary').focus()")
    browser.press("Enter")
    check(browser.value("document.getElementById('export').open"), "the menu does not open")
    browser.press("Tab")
    check(browser.value("document.activeElement.dataset.export") == "svg", "Tab does not go into the menu")
    browser.press("Escape")
    check(browser.value("!document.getElementById('export').open && document.activeElement.tagName === 'SUMMARY'"), "Escape does not leave the menu")


TOUR = ["set({ microbatches: 20 })", "set({ costs: { ...state.costs, W: '0.5' } })", "set({ costs: { ...state.costs, FB: '2.4' } })",
        "set({ versus: 'dualpipe' })", "set({ more: '--microbatch-group 10' })"]


def test_tour(browser):
    browser.value("document.getElementById('tour-open').focus()")
    browser.press("Enter")
    for at, act in enumerate(TOUR):
        settle(browser)
        check(browser.value("document.getElementById('tour-title').textContent").startswith(f"{at + 1} of {len(TOUR)}"), "tour, step", at + 1)
        check(browser.value("document.getElementById('problem').hidden"), "tour:", browser.value("document.getElementById('problem').textContent"))
        check(browser.value("document.getElementById('tour-task').className") == "", "tour: done before it is begun", at + 1)
        browser.value(act + "; 0")
        settle(browser)
        browser.value("tourCheck()")
        check(browser.value("document.querySelectorAll('#table tbody tr').length") > 5, "tour: no table", at + 1)
        check(browser.value("document.getElementById('tour-task').className") == "done", "tour: what it asks for is not seen", at + 1)
        check(browser.value("document.getElementById('problem').hidden"), "tour:", browser.value("document.getElementById('problem').textContent"))
        browser.value("document.getElementById('tour-next').focus()")
        browser.press("Enter")
    check(browser.value("document.getElementById('tour').hidden"), "the tour does not end")


CONTRAST = """(() => {
    const parse = (c) => c.match(/[\\d.]+/g).map(Number), over = (a, b) => a.slice(0, 3).map((x, i) => x * (a[3] ?? 1) + b[i] * (1 - (a[3] ?? 1)));
    const light = (rgb) => rgb.map((x) => x / 255).map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)).reduce((s, x, i) => s + x * [0.2126, 0.7152, 0.0722][i], 0);
    const paper = (e) => { const c = e ? parse(getComputedStyle(e).backgroundColor) : [255, 255, 255]; return c[3] === 0 ? paper(e.parentElement) : (c[3] ?? 1) < 1 ? over(c, paper(e.parentElement)) : c.slice(0, 3); };
    const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
    const bad = [];
    for (const e of document.querySelectorAll('body *')) {
        if (!e.checkVisibility() || !(['INPUT', 'SELECT', 'TEXTAREA'].includes(e.tagName) || [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))) continue;
        if (e.closest('.skip') || ['SCRIPT', 'STYLE'].includes(e.tagName)) continue;
        const r = ratio(parse(getComputedStyle(e).color).slice(0, 3), paper(e));
        if (r < 4.5) bad.push(e.tagName + ' ' + (e.id || e.className || e.textContent.slice(0, 20)) + ' ' + r.toFixed(2));
    }
    for (const pass of [0, 1, 2, 3, 6]) for (const chunk of [0, 1]) {
        const ink = inkOf(pass, chunk, 2), r = ratio(parse(ink.fill), ink.text === '#ffffff' ? [255, 255, 255] : [16, 19, 24]);
        if (r < 4.5) bad.push('box ' + pass + ' ' + chunk + ' ' + r.toFixed(2));
    }
    return bad; })()"""


def test_access(browser):
    """Everything that can be used has a name; headings in order; contrast by day and by night."""
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    usable = {"button", "textbox", "combobox", "slider", "spinbutton", "checkbox", "link", "application", "region", "table", "progressbar", "meter", "form", "searchbox", "DisclosureTriangle"}
    nodes = [n for n in tree if n.get("role", {}).get("value") in usable and not n.get("ignored")]
    check(len(nodes) > 30, f"only {len(nodes)} roles")
    for node in nodes:
        check(node.get("name", {}).get("value", "").strip() != "", "no name:", node["role"]["value"], node.get("backendDOMNodeId"))
    levels = browser.value("[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
    check(levels[0] == 1 and levels.count(1) == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:])), "headings", levels)
    check(browser.value("document.documentElement.lang === 'en' && document.title !== ''"), "language or title")
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        bad = browser.value(CONTRAST)
        check(bad == [], scheme, "contrast below 4.5:", bad)
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_speed(browser):
    """The first picture, and frames of 32 ranks with 256 micro-batches."""
    first = float(browser.value("document.body.dataset.first"))
    follow(browser, method="zbv", ranks=32, microbatches=256)
    frame = browser.value("(() => { const begin = performance.now(); for (let i = 0; i < 10; i++) picture.paint(); return (performance.now() - begin) / 10; })()")
    print(f"first picture after {first:.0f} ms, a frame of 32 x 256 in {frame:.1f} ms")
    check(first < 5000 * scale and frame < 200 * scale, "slow")
    browser.value("zoom(0.02)")
    check(browser.value("view.to - view.from < 0.05 * view.whole"), "no zoom")


def test_fingers(browser):
    """Two pictures have one scale; two fingers zoom, one moves."""
    show(browser, method="1f1b", ranks=3, microbatches=6, versus="dualpipe")
    check(browser.value("!document.getElementById('view-b').checkVisibility() && /even/.test(document.getElementById('name-b').textContent)"),
          "beside it:", browser.value("document.getElementById('name-b').textContent"))
    show(browser, method="1f1b", ranks=4, microbatches=8, versus="dualpipe")
    check(browser.value("document.getElementById('view-b').checkVisibility() && view.whole === Math.max(picture.model.end, beside.model.end)"), "two pictures, two scales")
    show(browser, method="dualpipe", ranks=4, microbatches=8)
    box = browser.value("(() => { const b = picture.canvas.getBoundingClientRect(); return [b.x + b.width / 2, b.y + 20]; })()")

    def touch(kind, *places):
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": box[0] + x, "y": box[1], "id": k} for k, x in enumerate(places)])

    touch("touchStart", -40, 40)
    for reach in (60, 90, 120, 160):
        touch("touchMove", -reach, reach)
    touch("touchEnd")
    whole, from_, to = browser.value("[view.whole, view.from, view.to]")
    check(to - from_ < 0.5 * whole, "pinching does not zoom:", whole, from_, to)
    touch("touchStart", 0)
    for x in (-20, -60, -100):
        touch("touchMove", x)
    touch("touchEnd")
    check(browser.value("view.from") > from_ + 0.01 * whole, "a finger does not move the picture")


def draw_picture(browser, path):
    browser.value("document.getElementById('view').focus()")
    follow(browser, method="dualpipe", ranks=8, microbatches=20)
    browser.value("picture.select(picture.model.ranksOf[3][0][21], true); document.activeElement.blur(); 0")
    time.sleep(0.5)
    browser.screenshot(path)


def main():
    browser = Browser(program, folder + "/profile", 60 * scale, "1280,860")
    began = time.monotonic()
    try:
        browser.open("file://" + os.path.abspath(page))
        settle(browser)
        if len(sys.argv) > 6:
            draw_picture(browser, sys.argv[6])
            return 0
        for test in (test_speed, test_figures, test_text, test_files, test_workers, test_keys, test_fingers, test_tour, test_access):
            test(browser)
            print(f"{test.__name__}: {time.monotonic() - began:.1f} s, {failures} failures")
        check(browser.complaints == [], "the page complains:", browser.complaints)
        check(all(a.startswith(("file://", "data:", "blob:", "about:")) for a in browser.addresses), "requests:", browser.addresses)
    finally:
        browser.close()
    print(f"{failures} failures")
    return 1 if failures else 0


sys.exit(main())
