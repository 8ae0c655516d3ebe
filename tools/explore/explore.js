// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
// explore.js: the explorer. Every figure and every list comes from the library, which runs the commands of `dualpipe` in workers.
"use strict";

/* ---- the library: a program for WASI with its files in memory. This function is the source of the workers ---- */
function engine() {
    const NO_FILE = 44, BAD_DESCRIPTOR = 8, NOT_THERE = 52, ROOT = 3, DIRECTORY = 3, TERMINAL = 2, REGULAR = 4;
    const encode = new TextEncoder(), decode = new TextDecoder();
    class Exit { constructor(code) { this.code = code; } }

    function run(library, words, files, tell) {
        const args = words.map((w) => encode.encode(w + "\0")), open = new Map(), written = { 1: [], 2: [] };
        let memory, next = ROOT + 1;
        const view = () => new DataView(memory.buffer);
        const bytes = (at, length) => new Uint8Array(memory.buffer, at, length);
        const u32 = (at, value) => view().setUint32(at, value, true);
        const u64 = (at, value) => view().setBigUint64(at, BigInt(value), true);
        const name = (at, length) => decode.decode(bytes(at, length));
        const each = function* (list, count) {
            for (let i = 0; i < count; i++) yield bytes(view().getUint32(list + 8 * i, true), view().getUint32(list + 8 * i + 4, true));
        };
        const known = {
            args_sizes_get(count, size) { u32(count, args.length); u32(size, args.reduce((n, a) => n + a.length, 0)); return 0; },
            args_get(list, at) {
                for (const a of args) { u32(list, at); bytes(at, a.length).set(a); list += 4; at += a.length; }
                return 0;
            },
            clock_time_get(clock, precision, at) { u64(at, Math.round((clock === 0 ? Date.now() : performance.now()) * 1e6)); return 0; },
            proc_exit(code) { throw new Exit(code); },
            fd_prestat_get(fd, at) { if (fd !== ROOT) return BAD_DESCRIPTOR; u32(at, 0); u32(at + 4, 1); return 0; },
            fd_prestat_dir_name(fd, at) { bytes(at, 1)[0] = 47; return 0; },
            fd_fdstat_get(fd, at) {
                bytes(at, 24).fill(0);
                view().setUint8(at, fd === ROOT ? DIRECTORY : fd === 2 ? TERMINAL : REGULAR); // a search tells terminals how far it is
                for (let k = 8; k < 24 && fd >= ROOT; k++) view().setUint8(at + k, 255);
                return 0;
            },
            fd_fdstat_set_flags: () => 0,
            fd_sync: () => 0,
            fd_close(fd) {
                const file = open.get(fd);
                if (file && file.blocks) files[file.name] = joined(file.blocks);
                open.delete(fd);
                return 0;
            },
            path_open(fd, follow, at, length, create, rights, inherited, flags, out) {
                const path = name(at, length);
                if (!(create & 1) && !(path in files)) return NO_FILE;
                open.set(next, { name: path, bytes: files[path], at: 0, blocks: create & 1 ? [] : null });
                u32(out, next++);
                return 0;
            },
            path_filestat_get(fd, flags, at, length, out) {
                const path = name(at, length);
                if (path !== "." && !(path in files)) return NO_FILE;
                bytes(out, 64).fill(0);
                view().setUint8(out + 16, path === "." ? DIRECTORY : REGULAR);
                return 0;
            },
            path_unlink_file(fd, at, length) { delete files[name(at, length)]; return 0; },
            fd_read(fd, list, count, out) {
                const file = open.get(fd);
                let n = 0;
                if (!file) return BAD_DESCRIPTOR;
                for (const to of each(list, count)) {
                    const part = file.bytes.subarray(file.at, file.at + to.length);
                    to.set(part);
                    file.at += part.length;
                    n += part.length;
                }
                u32(out, n);
                return 0;
            },
            fd_write(fd, list, count, out) {
                const to = open.get(fd)?.blocks ?? written[fd];
                let n = 0;
                if (!to) return BAD_DESCRIPTOR;
                for (const from of each(list, count)) { to.push(from.slice()); n += from.length; }
                u32(out, n);
                if (fd === 2 && n > 0) {
                    const line = decode.decode(joined(written[2])).split("\r").pop().replace(/\x1b\[K/g, "");
                    if (/ tried, /.test(line)) { tell(line); written[2] = []; }
                }
                return 0;
            },
        };
        const imports = {};
        for (const { name: wanted } of WebAssembly.Module.imports(library)) imports[wanted] = known[wanted] ?? (() => NOT_THERE);
        const instance = new WebAssembly.Instance(library, { wasi_snapshot_preview1: imports });
        let code = 0;
        memory = instance.exports.memory;
        try { instance.exports._start(); } catch (e) {
            if (e instanceof Exit) code = e.code;
            else { code = 1; written[2].push(encode.encode("the library ended: " + e.message)); }
        }
        return { code, out: decode.decode(joined(written[1])), problem: decode.decode(joined(written[2])).replace(/[\r]|\x1b\[K/g, "").trim(), files };
    }
    function joined(blocks) {
        const all = new Uint8Array(blocks.reduce((n, b) => n + b.length, 0));
        let at = 0;
        for (const b of blocks) { all.set(b, at); at += b.length; }
        return all;
    }

    let library;
    onmessage = ({ data }) => {
        if (data.library) { library = data.library; return; }
        const result = run(library, ["dualpipe", ...data.words], data.files, (line) => postMessage({ line })), moved = [];
        if (data.words[0] === "show" && result.out !== "") {
            result.shown = JSON.parse(result.out);
            result.shown.rows = result.shown.rows.map((row) => { const flat = Float64Array.from(row); moved.push(flat.buffer); return flat; });
            result.out = "";
        }
        postMessage({ result }, moved);
    };
}

/* ---- small things ---- */
const $ = (id) => document.getElementById(id);
const make = (tag, text, cls) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    if (cls) e.className = cls;
    return e;
};
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const figure = (x) => (Number.isFinite(x) ? String(Number(x.toPrecision(6))) : "–");
const percent = (x) => (x * 100).toFixed(1) + " %";
const plural = (n, word, many = word + "s") => n + " " + (n === 1 ? word : many);
const utf8 = (text) => new TextEncoder().encode(text);
function bytesOf(binary) {
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
}

const library = new WebAssembly.Module(bytesOf(atob($("library").textContent)));
const engineSource = URL.createObjectURL(new Blob(["(" + engine + ")()"], { type: "text/javascript" }));
let busy = 0;
const count = (n) => { busy += n; document.body.dataset.busy = busy; };

/* One worker. A newer job replaces one that waits, and one that takes long. Replaced jobs give null. */
class Runner {
    constructor(patience) { this.patience = patience; this.worker = this.job = this.waiting = null; }
    run(words, files = {}, tell = null) {
        count(1);
        return new Promise((done) => {
            const job = { words, files, tell, done: (result) => { count(-1); done(result); }, since: 0 };
            this.waiting?.done(null);
            this.waiting = job;
            this.next();
            if (this.waiting === job)
                setTimeout(() => { if (this.waiting === job) this.stop(); }, Math.max(0, this.patience - (performance.now() - this.job.since)));
        });
    }
    begin() {
        this.worker = new Worker(engineSource);
        this.worker.postMessage({ library });
        this.worker.onmessage = ({ data }) => {
            if (data.line !== undefined) { this.job.tell?.(data.line); return; }
            const job = this.job;
            this.job = null;
            job.done(data.result);
            this.next();
        };
    }
    next() {
        if (this.job || !this.waiting) return;
        [this.job, this.waiting] = [this.waiting, null];
        this.job.since = performance.now();
        if (!this.worker) this.begin();
        this.worker.postMessage({ words: this.job.words, files: this.job.files });
    }
    stop() {
        if (this.job) {
            this.worker.terminate();
            this.worker = null;
            this.job.done(null);
            this.job = null;
        }
        this.next();
    }
}
const drawing = new Runner(400), besides = new Runner(400), comparing = new Runner(400), asking = new Runner(60000), searching = new Runner(0);

/* ---- the state: what the controls say, and a link holds ---- */
const FIELDS = ["F", "I", "W", "FB", "HOP"], UNIT = { F: "1", I: "1", W: "1" };
const DEEPSEEK = { "attention.F": "4.36975", "dispatch.F": "6.69025", "mlp.F": "4.60375", "combine.F": "8.684", "attention.I": "9.34075", "dispatch.I": "7.48675", "mlp.I": "5.306", "combine.I": "5.76925", "attention.W": "2.3885", "mlp.W": "5.06275", LAYERS: "4" };
const START = { method: "dualpipe", ranks: 8, microbatches: 20, chunks: "", overlap: "canonical", cap: "", slow: "", more: "", versus: "", seconds: 5, text: "", memory: true };
const state = { ...START, costs: { ...UNIT } };
let methods = [];
const placementOf = (method) => methods.find((m) => m.name === method)?.placement;

const isSegments = (costs) => Object.keys(costs).some((k) => k.includes("."));
/* Lines NAME=VALUE, or several with commas between them. */
function costsOf(text) {
    const costs = {};
    for (const line of text.split("\n").map((l) => l.replace(/#.*/, "").trim()).filter((l) => l))
        for (const part of line.startsWith("STAGE_SCALE") ? [line] : line.split(",")) {
            const at = part.indexOf("=");
            costs[(at < 0 ? part : part.slice(0, at)).trim()] = at < 0 ? "" : part.slice(at + 1).trim();
        }
    return costs;
}
const costList = (costs, between) => Object.entries(costs).map(([k, v]) => k + "=" + v).join(between);
const same = (a, b) => costList(a, ",") === costList(b, ",");

/* Words of a command line for what is shown, and the files that it reads. */
function wordsOf(method, s = state) {
    const words = [], files = {};
    if (s.text !== "" && method === null) {
        files[fileName(s.text)] = utf8(s.text);
        words.push(fileName(s.text));
    } else {
        words.push("--method", method ?? s.method, "--ranks", String(s.ranks), "--microbatches", String(s.microbatches));
        if (s.chunks && placementOf(method ?? s.method) === "loop") words.push("--chunks", String(s.chunks));
    }
    words.push(...runWords(files, s));
    if (s.overlap !== "canonical") words.push("--overlap", s.overlap);
    if (s.overlap === "planned") words.push("--seconds", String(s.seconds), ...(s.cap !== "" ? ["--memory-cap", String(s.cap)] : []));
    return { words, files };
}
function runWords(files, s = state) {
    const words = [];
    if ("STAGE_SCALE" in s.costs) {
        files["costs.txt"] = utf8(costList(s.costs, "\n"));
        words.push("--costs", "costs.txt");
    } else if (!same(s.costs, UNIT) && costList(s.costs, ",") !== "") words.push("--cost", costList(s.costs, ","));
    const slow = s.slow.replace(/rank|\s/g, "");
    if (slow !== "") words.push("--rank-scale", slow);
    words.push(...s.more.split(/\s+/).filter((w) => w));
    return words;
}
/* Rows of TSV begin with a comment or have tabs. */
const fileName = (text) => (/^\s*#|\t/.test(text.slice(0, 4000)) ? "mine.tsv" : "mine.csv");
const shellWord = (w) => (/^[\w.,:=\/+@%-]+$/.test(w) ? w : "'" + w.replace(/'/g, "'\\''") + "'");

async function pack(text) {
    const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    let raw = "";
    for (const b of bytes) raw += String.fromCharCode(b);
    return btoa(raw).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}
async function unpack(packed) {
    const bytes = bytesOf(atob(packed.replace(/-/g, "+").replace(/_/g, "/")));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}
/* #method=zbv&ranks=8&microbatches=20&cost=F=1,W=2: what differs from the start, method and sizes always. */
async function linkOf(s) {
    const parts = [];
    const put = (key, value) => parts.push(key + "=" + encodeURIComponent(value).replace(/%(3D|2C|3A|2F)/g, decodeURIComponent));
    for (const key of Object.keys(START))
        if (key !== "text" && (["method", "ranks", "microbatches"].includes(key) || String(s[key]) !== String(START[key]))) put(key, s[key]);
    if (!same(s.costs, UNIT)) put("cost", costList(s.costs, "\n"));
    if (s.text !== "") put("text", await pack(s.text));
    return "#" + parts.join("&");
}
async function readLink(hash) {
    const given = new Map(hash.replace(/^#/, "").split("&").filter((p) => p.includes("=")).map((p) => [p.slice(0, p.indexOf("=")), p.slice(p.indexOf("=") + 1)]));
    const read = (key) => { try { return decodeURIComponent(given.get(key)); } catch { return ""; } };
    if (![...given.keys()].some((k) => k in START || k === "cost")) return false;
    for (const key of Object.keys(START)) {
        const value = given.has(key) && key !== "text" ? read(key) : START[key];
        state[key] = typeof START[key] === "number" ? Number(value) : typeof START[key] === "boolean" ? String(value) === "true" : value;
    }
    state.costs = given.has("cost") ? costsOf(read("cost")) : { ...UNIT };
    state.text = given.has("text") ? await unpack(given.get("text")).catch(() => "") : "";
    return true;
}

/* ---- what was computed: spans by rank and lane, who waits for whom, what is held ---- */
const F = 0, B = 1, I = 2, W = 3, R = 6, NAMES = ["F", "B", "I", "W", "", "", "R"], WORDS = 11;

class Model {
    constructor(shown) {
        Object.assign(this, shown);
        this.index = new Map();
        this.messages = new Map();
        this.end = 0;
        this.ranksOf = shown.rows.map((flat, rank) => this.readRank(flat, rank));
        this.laneCount = this.ranksOf.some((lanes) => lanes[1].length) ? 2 : 1;
        this.ran = shown.step !== undefined;
        if (this.ran) this.end = Math.max(this.end, shown.step);
        this.end = this.end || 1;
    }
    readRank(flat, rank) {
        const lanes = [[], []];
        for (let i = 0; i < flat.length; i += WORDS) {
            const [start, length, kind, lane, pass, chunk, stage, microbatch, segment, pair, name] = flat.subarray(i, i + WORDS);
            const span = { rank, lane, start: start / 1e6, end: (start + length) / 1e6, pass, chunk, stage, microbatch, segment, pair, name, at: 0 };
            const key = this.key(span, pass, stage);
            this.end = Math.max(this.end, span.end);
            if (kind === 1) { this.messages.set(key, span); continue; }
            (lanes[lane] ?? lanes[0]).push(span);
            const list = this.index.get(key);
            if (list) list.push(span); else this.index.set(key, [span]);
        }
        for (const lane of lanes) {
            lane.sort((a, b) => a.start - b.start || a.end - b.end);
            lane.forEach((span, at) => { span.at = at; });
        }
        return lanes;
    }
    key(span, pass, stage) {
        const path = this.placement === "bidirectional" ? span.chunk : 0;
        return ((path * this.stages + stage) * this.microbatches + span.microbatch) * 8 + pass;
    }
    of(span, pass, stage) { return this.index.get(this.key(span, pass, stage)) ?? []; }
    /* The spans whose results this one reads. */
    sources(span) {
        const last = (list) => list.reduce((a, b) => (a === null || b.end > a.end ? b : a), null), found = [];
        const own = (passes, segment) => passes.flatMap((p) => this.of(span, p, span.stage)).filter((s) => segment === null || s.segment === segment);
        const inner = this.lanes && span.segment >= 0;
        if (span.pass === F) {
            const before = inner ? last(own([F], span.segment - 1)) : null;
            found.push(before ?? (span.stage > 0 ? last(this.of(span, F, span.stage - 1)) : null));
        } else if (span.pass === B || span.pass === I) {
            const before = inner ? last(own([I, B], span.segment + 1)) : null;
            if (before) found.push(before);
            else if (span.stage < this.stages - 1) found.push(last([...this.of(span, I, span.stage + 1), ...this.of(span, B, span.stage + 1)]));
            else found.push(last(own([F], null)));
        } else if (span.pass === W) found.push(last(own([I], inner ? span.segment : null)));
        return found.filter((s) => s !== null).map((source) => {
            const message = source.rank !== span.rank ? this.messages.get(this.key(source, span.pass === F ? F : B, source.stage)) ?? null : null;
            return { span: source, message, time: message ? message.end : source.end };
        });
    }
    /* An overlapped pair without segments starts as one. */
    together(span) {
        const lane = this.ranksOf[span.rank][span.lane];
        let from = span.at, to = span.at;
        if (this.lanes || span.pair === 0) return [span];
        while (from > 0 && lane[from - 1].pair === span.pair) from--;
        while (to + 1 < lane.length && lane[to + 1].pair === span.pair) to++;
        return lane.slice(from, to + 1);
    }
    /* All that it waits for, what came last first. */
    causes(span) {
        const group = this.together(span), first = group[0], before = this.ranksOf[first.rank][first.lane][first.at - 1];
        const found = group.flatMap((s) => this.sources(s)).filter((c) => !group.includes(c.span));
        if (before) found.push({ span: before, message: null, time: before.end, turn: true });
        const seen = new Set();
        return found.filter((c) => c.time <= first.start + 1e-6 * this.end && !seen.has(c.span) && seen.add(c.span)).sort((a, b) => b.time - a.time);
    }
    chain(span) {
        const chain = [];
        for (let at = span; at && chain.length < 200000; at = this.causes(at)[0]?.span) chain.push(at);
        return chain;
    }
    label(span) { return NAMES[span.pass] + " " + span.microbatch + (this.placement === "bidirectional" && span.chunk === 1 ? "′" : ""); }
    describe(span) {
        const name = this.names?.[span.name] && span.segment >= 0 ? this.names[span.name] + " " : "";
        return name + this.label(span) + (this.chunks > 1 && this.placement !== "bidirectional" ? " of chunk " + span.chunk : "");
    }
    /* Steps of what a rank holds: [time, micro-batches], ... From the start of an F to the end of its B or W. */
    stepsOf(rank) {
        const stays = new Map(), changes = [], steps = [[0, 0]];
        for (const span of this.ranksOf[rank].flat()) {
            const key = span.chunk * this.microbatches + span.microbatch, stay = stays.get(key) ?? { from: Infinity, to: 0 };
            if (span.pass === F) stay.from = Math.min(stay.from, span.start);
            stay.to = Math.max(stay.to, span.end);
            stays.set(key, stay);
        }
        for (const { from, to } of stays.values()) changes.push([from, 1 / this.split], [to, -1 / this.split]);
        changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
        for (const [time, change] of changes) {
            const now = steps[steps.length - 1];
            if (now[0] === time) now[1] += change; else steps.push([time, now[1] + change]);
        }
        return steps;
    }
}

/* Operations that a message names, each with the one that it waits for or comes after. */
function circleOf(problem, model) {
    const named = /rank (\d+) (?:start of )?(FB \(F|[FBIW]) chunk (\d+) mb (\d+)/g, circle = [];
    if (!/deadlock/.test(problem)) return circle;
    for (const [, rank, pass, chunk, microbatch] of problem.matchAll(named)) {
        const span = model.ranksOf[rank]?.[0].find((s) => NAMES[s.pass] === pass.at(-1) && s.chunk === Number(chunk) && s.microbatch === Number(microbatch)) ?? null;
        if (span && !circle.includes(span)) circle.push(span);
    }
    return circle;
}

/* ---- pictures: what is painted goes to a canvas or into SVG ---- */
const SHADES = { [F]: [[252, 204, 138], [227, 128, 31]], [B]: [[120, 196, 115], [41, 128, 59]], [I]: [[214, 240, 194], [168, 217, 133]], [W]: [[171, 207, 247], [64, 117, 199]], [R]: [[222, 200, 240], [160, 120, 200]] };
const inks = new Map();
function inkOf(pass, chunk, chunks) {
    const key = (pass * 64 + chunk) * 65 + chunks;
    let ink = inks.get(key);
    if (!ink) {
        const depth = chunks < 2 ? 0 : Math.min(1, chunk / (chunks - 1)), [light, dark] = SHADES[pass] ?? SHADES[R];
        const rgb = light.map((x, i) => Math.round(x + depth * (dark[i] - x)));
        inks.set(key, ink = { fill: `rgb(${rgb.join(",")})`, pixel: (255 << 24 | rgb[2] << 16 | rgb[1] << 8 | rgb[0]) >>> 0, text: 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2] < 125 ? "#ffffff" : "#101318" });
    }
    return ink;
}

class CanvasPen {
    constructor(context) { this.g = context; this.font(11); }
    font(size, bold) { const font = (bold ? "600 " : "") + size + 'px system-ui, "DejaVu Sans", sans-serif'; if (this.set !== font) this.g.font = this.set = font; }
    box(x, y, w, h, fill) { this.g.fillStyle = fill; this.g.fillRect(x, y, w, h); }
    outline(x, y, w, h, ink, width) { this.g.strokeStyle = ink; this.g.lineWidth = width; this.g.strokeRect(x, y, w, h); }
    text(x, y, text, ink, align = "left", size = 11) { this.font(size); this.g.fillStyle = ink; this.g.textAlign = align; this.g.textBaseline = "middle"; this.g.fillText(text, x, y); }
    within(x, y, w, h, paint) {
        this.g.save();
        this.g.beginPath();
        this.g.rect(x, y, w, h);
        this.g.clip();
        paint();
        this.g.restore();
        this.set = null;
    }
    /* Many narrow boxes: one line of pixels, as high as the lane. */
    strip(x, y, w, h, paint) {
        const ratio = this.g.getTransform().a, pixels = Math.round(w * ratio), image = new ImageData(pixels, 1);
        paint(new Uint32Array(image.data.buffer), ratio);
        if (!CanvasPen.line || CanvasPen.line.width !== pixels) CanvasPen.line = new OffscreenCanvas(pixels, 1);
        CanvasPen.line.getContext("2d").putImageData(image, 0, 0);
        this.g.imageSmoothingEnabled = false;
        this.g.drawImage(CanvasPen.line, x, y, w, h);
    }
    area(points, fill) {
        this.g.fillStyle = fill;
        this.g.beginPath();
        points.forEach(([x, y], i) => (i ? this.g.lineTo(x, y) : this.g.moveTo(x, y)));
        this.g.fill();
    }
    line(points, ink, width) {
        this.g.strokeStyle = ink;
        this.g.lineWidth = width;
        this.g.lineJoin = "round";
        this.g.beginPath();
        points.forEach(([x, y], i) => (i ? this.g.lineTo(x, y) : this.g.moveTo(x, y)));
        this.g.stroke();
    }
}
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
class SvgPen {
    constructor() { this.parts = []; }
    n(x) { return Number(x.toFixed(2)); }
    box(x, y, w, h, fill, title) { this.parts.push(`<rect x="${this.n(x)}" y="${this.n(y)}" width="${this.n(w)}" height="${this.n(h)}" fill="${fill}"${title ? `><title>${escaped(title)}</title></rect>` : "/>"}`); }
    outline(x, y, w, h, ink, width) { this.parts.push(`<rect x="${this.n(x)}" y="${this.n(y)}" width="${this.n(w)}" height="${this.n(h)}" fill="none" stroke="${ink}" stroke-width="${width}"/>`); }
    text(x, y, text, ink, align = "left", size = 11) { this.parts.push(`<text x="${this.n(x)}" y="${this.n(y)}" fill="${ink}" font-size="${size}" dominant-baseline="central"${align === "left" ? "" : ` text-anchor="${align === "center" ? "middle" : "end"}"`}>${escaped(text)}</text>`); }
    within(x, y, w, h, paint) { paint(); }
    area(points, fill) { this.parts.push(`<polygon points="${points.map(([x, y]) => this.n(x) + "," + this.n(y)).join(" ")}" fill="${fill}"/>`); }
    line(points, ink, width) { this.parts.push(`<polyline points="${points.map(([x, y]) => this.n(x) + "," + this.n(y)).join(" ")}" fill="none" stroke="${ink}" stroke-width="${width}"/>`); }
}

const view = { from: 0, to: 1, whole: 1 }; // of both pictures
const GUTTER = 66, MARGIN = 78, AXIS = 24;
let colours = {};
function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "line", "edge", "idle", "held", "accent", "red", "mark", "card"]) colours[name] = style.getPropertyValue("--" + name).trim();
}

class Picture {
    constructor(canvas) {
        this.canvas = canvas;
        this.frame = canvas.parentElement;
        this.spacer = this.frame.appendChild(make("div"));
        this.model = this.selected = null;
        this.chain = [];
        this.circle = [];
        this.waits = false;
        this.frame.addEventListener("scroll", () => this.ask());
        this.listen();
    }
    show(model) {
        this.model = model;
        this.chain = this.circle = [];
        this.steps = [];
        this.selected = null;
        this.ask();
    }
    ask() {
        if (this.waits) return;
        this.waits = true;
        requestAnimationFrame(() => { this.waits = false; this.paint(); });
    }
    rowHeight() {
        const m = this.model, lane = m.laneCount > 1 ? 36 : clamp(Math.floor(460 / m.ranks), 13, 28);
        return lane + this.memoryHeight();
    }
    memoryHeight() { return !state.memory || !this.model.ran ? 0 : this.model.ranks > 12 ? 14 : 20; }
    /* Of a lane of a row that begins at y. */
    place(lane, y) {
        const room = this.rowHeight() - 3 - this.memoryHeight();
        if (this.model.laneCount < 2) return [y, room];
        return lane === 0 ? [y, Math.round(room * 0.62)] : [y + Math.round(room * 0.62) + 1, room - Math.round(room * 0.62) - 1];
    }
    x(time) { return GUTTER + (time - view.from) / (view.to - view.from) * (this.width - GUTTER - MARGIN); }
    time(x) { return view.from + (x - GUTTER) / (this.width - GUTTER - MARGIN) * (view.to - view.from); }

    paint() {
        if (!this.model) return;
        const ratio = window.devicePixelRatio || 1, total = this.model.ranks * this.rowHeight() + AXIS;
        const most = Math.max(220, Math.round(window.innerHeight * 0.7)), height = Math.min(total, most);
        this.width = this.frame.clientWidth;
        this.height = height;
        this.frame.classList.toggle("tall", total > most);
        this.frame.style.maxHeight = height + "px";
        this.canvas.style.position = total > most ? "sticky" : "static";
        this.canvas.style.top = "0";
        this.canvas.style.height = height + "px";
        this.spacer.style.height = total - height + "px";
        this.width = this.frame.clientWidth;
        if (this.canvas.width !== Math.round(this.width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
            this.canvas.width = Math.round(this.width * ratio);
            this.canvas.height = Math.round(height * ratio);
        }
        const g = this.canvas.getContext("2d");
        g.setTransform(ratio, 0, 0, ratio, 0, 0);
        const pen = new CanvasPen(g);
        pen.box(0, 0, this.width, height, colours.card); // of the PNG, too
        this.draw(pen, this.frame.scrollTop, height);
    }
    draw(pen, top, height, titles = false) {
        const m = this.model, row = this.rowHeight(), plot = height - AXIS;
        const from = Math.floor(top / row), to = Math.min(m.ranks, Math.ceil((top + plot) / row));
        this.grid(pen, plot);
        for (let rank = from; rank < to; rank++) this.drawRank(pen, rank, rank * row - top, titles);
        pen.within(GUTTER - 2, 0, this.width - GUTTER - MARGIN + 4, plot, () => this.marks(pen, top));
        pen.box(0, plot, this.width, AXIS, colours.card);
        this.axis(pen, plot);
    }
    ticks() {
        const room = (this.width - GUTTER - MARGIN) / 84, raw = Math.max((view.to - view.from) / Math.max(1, room), this.model.ran ? 0 : 1), power = 10 ** Math.floor(Math.log10(raw));
        const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw) ?? raw, ticks = [];
        for (let t = Math.ceil(view.from / step - 1e-9) * step; t <= view.to + step * 1e-6; t += step) ticks.push(t);
        return ticks;
    }
    grid(pen, plot) { for (const t of this.ticks()) pen.box(this.x(t), 0, 1, plot, colours.line); }
    axis(pen, plot) {
        for (const t of this.ticks()) {
            pen.box(this.x(t), plot, 1, 4, colours.edge);
            pen.text(this.x(t), plot + 13, figure(t), colours.soft, "center");
        }
        pen.text(GUTTER - 8, plot + 13, this.model.ran ? "time" : "place", colours.soft, "right");
    }
    drawRank(pen, rank, y, titles) {
        const m = this.model, left = GUTTER, right = this.width - MARGIN, [, whole] = this.place(0, y), clip = (t) => clamp(this.x(t), left, right);
        pen.text(left - 8, y + whole / 2, "rank " + rank, colours.soft, "right");
        if (m.ran) pen.text(right + 8, y + whole / 2, percent(m.idle[rank] / m.step) + " idle", colours.soft);
        for (let lane = 0; lane < m.laneCount; lane++) {
            const [top, height] = this.place(lane, y), spans = m.ranksOf[rank][lane];
            pen.box(left, top, right - left, height, colours.idle);
            if (pen.strip && this.first(spans, view.to) - this.first(spans, view.from) > (right - left) / 4) { this.drawStrip(pen, spans, left, right, top, height); continue; }
            let reached = -1, frame = null;
            for (let i = this.first(spans, view.from); i < spans.length && spans[i].start < view.to; i++) {
                const span = spans[i], x = clip(span.start), end = clip(span.end), ink = inkOf(span.pass, span.chunk, m.chunks);
                if (end - reached < 0.4) continue;
                reached = end;
                pen.box(x, top, Math.max(end - x - (end - x > 3 ? 0.7 : 0), 0.5), height, ink.fill, titles ? `rank ${rank} ${m.describe(span)}: ${figure(span.start)} to ${figure(span.end)}` : "");
                const label = m.laneCount < 2 || end - x < 46 ? String(span.microbatch) : m.describe(span);
                if (height >= 10 && end - x > 6.3 * label.length + 3) pen.text((x + end) / 2, top + height / 2 + 0.5, label, ink.text, "center", Math.min(11, height - 1));
                else if (height >= 10 && end - x > 6.3 * String(span.microbatch).length + 3) pen.text((x + end) / 2, top + height / 2 + 0.5, String(span.microbatch), ink.text, "center", Math.min(11, height - 1));
                if (frame && frame.pair !== span.pair) { this.putFrame(pen, frame); frame = null; }
                if (span.pair) frame = frame ? { ...frame, end } : { pair: span.pair, x, end, top, height };
            }
            if (frame) this.putFrame(pen, frame);
        }
        if (this.memoryHeight()) this.drawMemory(pen, rank, y + this.rowHeight() - this.memoryHeight() - 1);
    }
    drawStrip(pen, spans, left, right, top, height) {
        pen.strip(left, top, right - left, height, (pixels, ratio) => {
            for (let i = this.first(spans, view.from); i < spans.length && spans[i].start < view.to; i++) {
                const from = Math.max(0, Math.round((this.x(spans[i].start) - left) * ratio)), to = Math.round((this.x(spans[i].end) - left) * ratio);
                pixels.fill(inkOf(spans[i].pass, spans[i].chunk, this.model.chunks).pixel, from, Math.max(to, from + 1));
            }
        });
    }
    putFrame(pen, f) { if (f.end - f.x > 13) pen.outline(f.x + 0.2, f.top + 0.5, f.end - f.x - 1, f.height - 1, colours.ink, 1.1); }
    /* The first span that reaches beyond a time. */
    first(spans, time) {
        let low = 0, high = spans.length;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (spans[middle].end > time) high = middle; else low = middle + 1;
        }
        return low;
    }
    drawMemory(pen, rank, y) {
        const m = this.model, steps = this.steps[rank] ??= m.stepsOf(rank), cap = state.cap === "" ? 0 : Number(state.cap);
        const most = Math.max(...m.peaks, cap, 1e-9), height = this.memoryHeight() - 5, foot = y + height;
        const left = GUTTER, right = this.width - MARGIN, clip = (t) => clamp(this.x(t), left, right), level = (h) => foot - Math.max(0, h) / most * height;
        const outline = (least) => { // of what is held above `least`; within a pixel the most
            const points = [[left, level(least)]];
            let high = level(least), now = level(least), at = left;
            for (const [time, held] of steps) {
                const x = clip(time), h = level(Math.max(held, least));
                if (x - at >= 1) { points.push([at, high], [x, now]); at = x; high = h; }
                high = Math.min(high, h);
                now = h;
            }
            points.push([at, high], [at, now], [right, now], [right, level(least)]);
            return points;
        };
        pen.area(outline(0), colours.held);
        if (cap && m.peaks[rank] > cap + 1e-9) pen.area(outline(cap), colours.red);
        if (cap) pen.box(left, level(cap), right - left, 1, colours.red);
        pen.text(left - 8, y + height / 2, "held", colours.soft, "right", 10);
        pen.text(right + 8, y + height / 2, "most " + figure(m.peaks[rank]), colours.soft, "left", 10);
    }
    rectOf(span, top) {
        const [y, h] = this.place(span.lane, span.rank * this.rowHeight() - top);
        return [this.x(span.start), y, this.x(span.end) - this.x(span.start), h];
    }
    centre(span, top) { const [x, y, w, h] = this.rectOf(span, top); return [x + w / 2, y + h / 2]; }
    marks(pen, top) {
        const outline = (span, ink, width) => { const [x, y, w, h] = this.rectOf(span, top); if (x + w > GUTTER && x < this.width) pen.outline(x, y, Math.max(1.5, w - 0.7), h, ink, clamp(w / 4, 0.8, width)); };
        for (const span of this.chain) outline(span, colours.mark, 2);
        if (this.chain.length > 1) pen.line(this.chain.map((s) => this.centre(s, top)), colours.mark, 1.4);
        for (const span of this.circle) outline(span, colours.red, 2.6);
        if (this.circle.length > 1) {
            pen.line([...this.circle, this.circle[0]].map((s) => this.centre(s, top)), colours.red, 2);
            this.circle.forEach((s, i) => this.arrow(pen, this.centre(s, top), this.centre(this.circle[(i + 1) % this.circle.length], top)));
        }
        if (this.selected) outline(this.selected, colours.ink, 2.4);
    }
    arrow(pen, [x, y], [toX, toY]) {
        const angle = Math.atan2(toY - y, toX - x), middle = [(x + toX) / 2, (y + toY) / 2];
        const wing = (turn) => [middle[0] - 9 * Math.cos(angle + turn), middle[1] - 9 * Math.sin(angle + turn)];
        pen.line([wing(0.45), middle, wing(-0.45)], colours.red, 2);
    }

    /* ---- pointer and keys ---- */
    at(event) {
        const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top + this.frame.scrollTop;
        const row = this.rowHeight(), rank = Math.floor(y / row), time = this.time(x);
        if (event.clientY - box.top > this.height - AXIS || rank < 0 || rank >= this.model.ranks) return null;
        for (let lane = 0; lane < this.model.laneCount; lane++) {
            const [top, height] = this.place(lane, rank * row), spans = this.model.ranksOf[rank][lane], i = this.first(spans, time);
            if (y >= top && y < top + height && i < spans.length && spans[i].start <= time) return spans[i];
        }
        return null;
    }
    select(span, whole = false) {
        if (span === this.selected && !whole) return;
        for (const p of pictures) if (p !== this) { p.selected = null; p.chain = []; p.ask(); }
        if (whole || !span) this.chain = whole && span ? this.model.chain(span) : [];
        this.selected = span;
        describe(this, span);
        this.ask();
    }
    reveal(span) {
        const room = (view.to - view.from) * 0.05, row = this.rowHeight(), top = span.rank * row;
        if (span.start < view.from || span.end > view.to) move(Math.max(0, span.start - room) - view.from);
        if (top < this.frame.scrollTop) this.frame.scrollTop = top;
        if (top + row + AXIS > this.frame.scrollTop + this.height) this.frame.scrollTop = top + row + AXIS - this.height;
    }
    step(key) {
        const m = this.model, now = this.selected;
        if (!now) return m.ranksOf[0][0][0] ?? null;
        const lane = m.ranksOf[now.rank][now.lane], down = key === "ArrowDown" ? 1 : -1;
        if (key === "ArrowRight" || key === "ArrowLeft") return lane[now.at + (key === "ArrowRight" ? 1 : -1)] ?? now;
        if (key === "Home" || key === "End") return lane[key === "Home" ? 0 : lane.length - 1];
        for (let k = now.rank * m.laneCount + now.lane + down; k >= 0 && k < m.ranks * m.laneCount; k += down) {
            const spans = m.ranksOf[Math.floor(k / m.laneCount)][k % m.laneCount];
            if (spans.length) return spans[Math.min(this.first(spans, (now.start + now.end) / 2), spans.length - 1)];
        }
        return now;
    }
    listen() {
        const c = this.canvas, fingers = new Map();
        let dragged = null, moved = false;
        c.addEventListener("pointermove", (e) => {
            if (!this.model) return;
            if (fingers.has(e.pointerId)) {
                const before = [...fingers.values()].map((f) => f.x);
                fingers.set(e.pointerId, { x: e.offsetX });
                const after = [...fingers.values()].map((f) => f.x);
                if (after.length === 2) {
                    const spread = Math.abs(before[0] - before[1]) / Math.max(8, Math.abs(after[0] - after[1]));
                    zoom(spread, this.time((after[0] + after[1]) / 2));
                    moved = true;
                } else if (dragged !== null && (moved || Math.abs(e.offsetX - dragged) > 4)) {
                    moved = true;
                    move((before[0] - after[0]) / (this.width - GUTTER - MARGIN) * (view.to - view.from));
                }
                return;
            }
            if (!this.chain.length) this.select(this.at(e));
        });
        c.addEventListener("pointerdown", (e) => {
            fingers.set(e.pointerId, { x: e.offsetX });
            dragged = e.offsetX;
            moved = false;
            c.setPointerCapture(e.pointerId);
        });
        const end = (e) => {
            if (fingers.delete(e.pointerId) && !moved && e.type === "pointerup" && this.model) this.select(this.at(e), true);
            dragged = null;
        };
        c.addEventListener("pointerup", end);
        c.addEventListener("pointercancel", end);
        c.addEventListener("wheel", (e) => {
            if (!this.model || !(e.ctrlKey || e.metaKey || Math.abs(e.deltaX) > Math.abs(e.deltaY))) return;
            e.preventDefault();
            if (e.ctrlKey || e.metaKey) zoom(Math.exp(clamp(e.deltaY, -100, 100) * 0.004), this.time(e.offsetX));
            else move(e.deltaX / (this.width - GUTTER - MARGIN) * (view.to - view.from));
        }, { passive: false });
        c.addEventListener("keydown", (e) => {
            if (!this.model || e.ctrlKey || e.altKey || e.metaKey) return;
            if (e.key.startsWith("Arrow") || e.key === "Home" || e.key === "End") {
                const span = this.step(e.key);
                if (span) { this.chain = []; this.reveal(span); this.select(span); }
            } else if (e.key === "Enter" || e.key === " ") { if (this.selected) { if (this.chain.length) { this.chain = []; this.ask(); describe(this, this.selected); } else this.select(this.selected, true); } }
            else if (e.key === "Escape") this.select(null);
            else if (e.key === "+" || e.key === "=") zoom(0.7, this.selected ? (this.selected.start + this.selected.end) / 2 : undefined);
            else if (e.key === "-") zoom(1 / 0.7);
            else if (e.key === "0") { view.from = 0; view.to = view.whole; askAll(); }
            else return;
            e.preventDefault();
        });
    }
    svg() {
        const pen = new SvgPen(), kept = [this.width, view.from, view.to];
        this.width = 1400;
        [view.from, view.to] = [0, this.model.end];
        const height = this.model.ranks * this.rowHeight() + AXIS;
        this.draw(pen, 0, height, true);
        [this.width, view.from, view.to] = kept;
        const title = escaped(titleOf(this.model));
        return `<svg xmlns="http://www.w3.org/2000/svg" width="1400" height="${height}" viewBox="0 0 1400 ${height}" font-family="system-ui, DejaVu Sans, sans-serif"><title>${title}</title><rect width="1400" height="${height}" fill="${colours.card}"/>${pen.parts.join("\n")}</svg>\n`;
    }
}
function zoom(factor, around = (view.from + view.to) / 2) {
    const length = clamp((view.to - view.from) * factor, view.whole / 2000, view.whole), part = clamp((around - view.from) / (view.to - view.from), 0, 1);
    view.from = clamp(around - part * length, 0, view.whole - length);
    view.to = view.from + length;
    askAll();
}
function move(by) {
    const length = view.to - view.from;
    view.from = clamp(view.from + by, 0, view.whole - length);
    view.to = view.from + length;
    askAll();
}
const picture = new Picture($("view")), beside = new Picture($("view-b")), pictures = [picture, beside];
const askAll = () => pictures.forEach((p) => p.ask());

/* What an operation waits for, in words. */
function describe(p, span) {
    const detail = $("detail"), m = p.model;
    detail.replaceChildren();
    if (!span) return;
    const head = make("p");
    head.append(make("b", m.describe(span)), ` on rank ${span.rank}, stage ${span.stage}` + (m.ran ? `: ${figure(span.start)} to ${figure(span.end)}` : `, place ${Math.floor(span.start)} of its list`));
    detail.append(head);
    if (!m.ran) return;
    const causes = m.causes(span), start = m.together(span)[0].start;
    if (!causes.length) detail.append(make("p", start > 0 ? "It waits for no operation." : "It waits for nothing: the step begins with it."));
    causes.slice(0, 3).forEach((c, i) => {
        const what = c.turn ? `${m.describe(c.span)} before it on this ${m.laneCount > 1 ? "lane" : "rank"} (until ${figure(c.time)})`
            : c.message ? `${m.describe(c.span)} of rank ${c.span.rank}, whose message left at ${figure(c.message.start)} and came at ${figure(c.message.end)}`
            : `${m.describe(c.span)} of rank ${c.span.rank} (until ${figure(c.time)})`;
        detail.append(make("p", (i === 0 ? "It waits for " : "and needs ") + what + (i === 0 && start - c.time > 1e-6 * m.end ? `, and ${figure(start - c.time)} for a free slot, memory or its turn on a link` : "") + "."));
    });
    if (p.chain.length > 1) {
        const list = make("ol");
        list.append(...p.chain.slice(0, 30).map((s) => make("li", `${m.describe(s)}, rank ${s.rank}, from ${figure(s.start)}`)));
        detail.append(make("p", `Chain of causes: ${plural(p.chain.length, "operation")}${p.chain.length > 30 ? ", of which the last 30 are listed" : ""}.`), list);
    }
}

/* ---- the page ---- */
const titleOf = (m) => `${m.method}, ${plural(m.ranks, "rank")}, ${plural(m.microbatches, "micro-batch", "micro-batches")}`;
let table = null, drawn = 0, found = { text: "", says: "" };

function legend(m) {
    const entry = (ink, text) => { const e = make("span"), i = make("i"); i.style.background = ink; e.append(i, text); return e; };
    const seen = new Set(m.ranksOf.flat(2).map((s) => s.pass)), words = { [F]: "forward", [B]: "backward", [I]: "for the input", [W]: "for the weights", [R]: "recomputed" };
    $("legend").replaceChildren(...[F, B, I, W, R].filter((p) => seen.has(p)).map((p) => entry(inkOf(p, 0, 1).fill, words[p])),
        ...(m.chunks > 1 ? [entry(inkOf(F, m.chunks - 1, m.chunks).fill, m.placement === "bidirectional" ? "dark: the other direction" : "dark: later chunks")] : []),
        ...(m.laneCount > 1 ? [make("span", "above: computing; below: dispatch and combine")] : []));
}
function figures(m) {
    const cards = [], cap = state.cap === "" ? Infinity : Number(state.cap);
    const card = (id, what, value, raw, note, over) => {
        const e = make("div", undefined, "figure"), v = make("div", value, "value" + (over ? " over" : ""));
        v.id = id;
        v.dataset.value = raw;
        e.append(make("div", what, "what"), v, make("div", note, "note"));
        cards.push(e);
    };
    if (!m || !m.ran) { $("figures").replaceChildren(); return; }
    const idle = m.idle.reduce((a, b) => a + b, 0) / m.ranks, most = Math.max(...m.peaks), base = table?.schedules.find((s) => s.method === "1f1b" && s.fits);
    card("step", "step", figure(m.step), m.step, "in the unit of the costs");
    card("idle", "idle", percent(idle / m.step), idle, Math.max(...m.idle) - Math.min(...m.idle) < 1e-9 * m.step ? figure(idle) + " on each rank" : `${figure(Math.min(...m.idle))} to ${figure(Math.max(...m.idle))} on a rank`);
    card("held", "most held", figure(most), most, most > cap + 1e-9 ? "above the cap of " + cap : "micro-batches on a rank", most > cap + 1e-9);
    card("gain", "beside 1F1B", base ? (base.step_time >= m.step ? "+" : "−") + percent(Math.abs(base.step_time / m.step - 1)) : "–", base ? base.step_time / m.step - 1 : "", base ? "its step: " + figure(base.step_time) : "");
    card("copies", "weights", m.copies + "×", m.copies, plural(m.slots, "slot") + " a channel");
    $("figures").replaceChildren(...cards);
}
function problem(text) {
    $("problem").hidden = text === "";
    $("problem").textContent = text.replace(/^dualpipe \w+: /, "").replace(/\n?Try .*--help.*/s, "");
}

async function draw() {
    const { words, files } = wordsOf(state.text === "" ? state.method : null), edited = state.text !== "", planned = state.overlap === "planned";
    $("command").textContent = ["dualpipe", "simulate", ...words].map(shellWord).join(" ");
    const watch = planned ? progress("planning", state.seconds) : null;
    const result = await drawing.run(["show", ...words], files);
    watch?.end();
    if (!result) return;
    const { code, shown, problem: text } = result;
    problem(code === 0 || edited ? "" : text);
    if (edited) {
        $("verdict").className = code === 0 ? "good" : "bad";
        $("verdict").textContent = code === 0 ? `accepted: ${titleOf(shown)}; it completes, with ${plural(shown.slots, "slot")} a channel${found.text === state.text ? "\n" + found.says : ""}` : text.replace(/^dualpipe \w+: /, "");
    } else $("verdict").textContent = "";
    picture.canvas.classList.toggle("stale", code !== 0 && !shown);
    if (shown) {
        const m = new Model(shown);
        picture.show(m);
        picture.circle = code === 0 ? [] : circleOf(text, m);
        $("view").dataset.circle = picture.circle.length;
        $("name-a").replaceChildren(titleOf(m), ...(m.ran ? [] : [make("span", ": its lists, as they stand" + (picture.circle.length ? "; red: ranks wait in a circle" : ""))]));
        legend(m);
        figures(m);
    }
    fit();
    tourCheck();
    if (drawn++ === 0) document.body.dataset.first = Math.round(performance.now());
    compare();
}
async function drawBeside() {
    const other = state.versus;
    $("other").hidden = other === "";
    if (other === "") { beside.model = null; return fit(); }
    const sizes = state.text !== "" && picture.model ? { ...state, text: "", ranks: picture.model.ranks, microbatches: picture.model.microbatches } : { ...state, text: "" };
    const { words, files } = wordsOf(other, sizes), result = await besides.run(["show", ...words], files);
    if (!result) return;
    beside.frame.hidden = result.code !== 0;
    if (result.code !== 0) {
        beside.model = null;
        $("name-b").replaceChildren(other + ": ", make("span", result.problem.replace(/^dualpipe \w+: /, "")));
        return fit();
    }
    const m = new Model(result.shown), idle = m.idle.reduce((a, b) => a + b, 0) / m.ranks;
    beside.show(m);
    $("name-b").replaceChildren(titleOf(m), make("span", `: step ${figure(m.step)}, idle ${percent(idle / m.step)}, holds ${figure(Math.max(...m.peaks))}`));
    fit();
}
/* Both pictures have one scale. */
function fit() {
    const whole = Math.max(...pictures.map((p) => p.model?.end ?? 0)) || 1;
    if (whole !== view.whole) Object.assign(view, { from: 0, to: whole, whole });
    askAll();
}
function progress(what, seconds) {
    const began = performance.now(), bar = $("progress");
    const timer = setInterval(() => {
        const passed = (performance.now() - began) / 1000;
        $("working").hidden = passed < 0.3;
        bar.max = seconds;
        bar.value = Math.min(passed, seconds);
        if (!watch.told) $("progress-text").textContent = `${what}: ${passed.toFixed(1)} of ${seconds} s`;
    }, 100);
    const watch = { told: false, say(text) { watch.told = true; $("progress-text").textContent = text; }, end() { clearInterval(timer); $("working").hidden = true; } };
    return watch;
}

/* ---- all methods ---- */
let compared = "";
async function compare() {
    const files = {}, m = state.text !== "" && picture.model ? picture.model : state, chunks = [...new Set([2, 4, ...(state.chunks ? [Number(state.chunks)] : [])])].sort((a, b) => a - b);
    const wordsWith = (more) => ["compare", "--ranks", String(m.ranks), "--microbatches", String(m.microbatches), "--chunks", chunks.join(","), "--format", "json", ...runWords(files, { ...state, more }),
        ...(state.overlap === "none" ? ["--overlap", "none"] : []), ...(state.cap !== "" ? ["--memory-cap", String(state.cap)] : [])];
    const words = wordsWith(state.more);
    if (words.join(" ") === compared) return tabulate();
    let result = await comparing.run(words, files), without = "";
    if (result?.code === 2 && state.more !== "") { // options of one schedule alone
        without = ", without “more options”";
        result = await comparing.run(wordsWith(""), files);
    }
    if (!result) return;
    compared = words.join(" ");
    table = result.out !== "" ? JSON.parse(result.out) : null;
    $("table-note").textContent = table ? `on ${plural(m.ranks, "rank")} with ${plural(m.microbatches, "micro-batch", "micro-batches")}${without}` : result.problem.replace(/^dualpipe \w+: /, "");
    tabulate();
    figures(picture.model);
}
function tabulate() {
    const fitting = (table?.schedules ?? []).filter((s) => s.fits), most = Math.max(1e-12, ...fitting.map((s) => s.step_time)), bytes = fitting.some((s) => s.bytes != null);
    const head = make("tr"), body = make("tbody"), top = make("thead");
    for (const [text, cls] of [["method"], ["step", "left"], [""], ["over 1F1B"], ["idle"], ["held"], ["weights"], ["slots"], ...(bytes ? [["GiB"]] : [])]) {
        const th = make("th", text || "length", cls);
        th.scope = "col";
        head.append(th);
    }
    for (const s of fitting) {
        const tr = make("tr"), choose = make("button", s.chunks ? `${s.method}, ${s.chunks} chunks` : s.method), first = make("td"), meter = make("meter"), length = make("td");
        tr.className = s.method === state.method && state.text === "" && (!s.chunks || !state.chunks || Number(state.chunks) === s.chunks) ? "chosen" : "";
        if (tr.className) choose.setAttribute("aria-current", "true");
        choose.type = "button";
        choose.addEventListener("click", () => set({ method: s.method, chunks: s.chunks || "", text: "" }));
        meter.max = most;
        meter.value = s.step_time;
        meter.setAttribute("aria-label", "step of " + choose.textContent);
        first.append(choose);
        length.append(meter);
        const cell = (text, raw, cls) => { const td = make("td", text, cls); td.dataset.value = raw ?? ""; return td; };
        tr.dataset.method = s.method;
        tr.dataset.chunks = s.chunks;
        tr.append(first, cell(figure(s.step_time), s.step_time, "left"), length, cell(s.gain == null ? "–" : (s.gain < 0 ? "−" : "+") + percent(Math.abs(s.gain)), s.gain),
            cell(percent(s.bubble / s.step_time), s.bubble), cell(figure(s.peak_activations), s.peak_activations), cell(s.weight_copies + "×", s.weight_copies), cell(String(s.slots), s.slots),
            ...(bytes ? [cell(figure(s.bytes / 2 ** 30), s.bytes)] : []));
        body.append(tr);
    }
    top.append(head);
    $("table").replaceChildren(make("caption", "", "soft"), top, body);
    $("table").caption.textContent = fitting.length ? "the shortest step first; choose one to see it" : "no method fits";
    $("reasons").replaceChildren(...(table?.schedules ?? []).filter((s) => !s.fits).map((s) => make("li", `${s.method}${s.chunks ? ", " + s.chunks + " chunks" : ""}: ${s.reason}`)));
}

/* ---- controls ---- */
const SIMPLE = { ranks: "number", microbatches: "number", chunks: "text", overlap: "text", cap: "text", slow: "text", more: "text", versus: "text", seconds: "number", method: "text" };
function fill() {
    const put = (id, value) => { if ($(id) !== document.activeElement || $(id).value === "") $(id).value = value; };
    for (const key of Object.keys(SIMPLE)) put(key, key === "method" && state.text !== "" ? "" : state[key]);
    put("ranks-slide", state.ranks);
    put("microbatches-slide", state.microbatches);
    for (const f of FIELDS) put("cost-" + f, state.costs[f] ?? "");
    put("costs", costList(Object.fromEntries(Object.entries(state.costs).filter(([k]) => !FIELDS.includes(k))), "\n"));
    $("preset").value = same(state.costs, UNIT) ? "unit" : same(state.costs, DEEPSEEK) ? "deepseek" : "own";
    $("operations").hidden = isSegments(state.costs);
    $("chunks-row").hidden = placementOf(state.method) !== "loop";
    $("memory").checked = state.memory;
    if (document.activeElement !== $("text") || state.text === "") $("text").value = state.text;
    $("leave").disabled = state.text === "";
    const m = state.text === "" ? methods.find((x) => x.name === state.method) : null;
    $("method").options[0].hidden = state.text === "";
    $("summary").textContent = m ? `${m.summary}. ${m.source}${m.limits ? "; limits: " + m.limits : ""}.` : "";
}
let saving = 0, address = location.hash;
function update() {
    fill();
    draw();
    drawBeside();
    clearTimeout(saving);
    saving = setTimeout(async () => {
        const link = await linkOf(state);
        if (location.hash !== address) return; // the reader has just gone elsewhere
        history.replaceState(null, "", link);
        address = location.hash;
    }, 250);
}
function set(changes) { Object.assign(state, changes); update(); }

function listen() {
    for (const [key, kind] of Object.entries(SIMPLE))
        $(key).addEventListener("input", () => {
            const value = $(key).value;
            if (kind === "number" && !(Number(value) >= 1)) return;
            if (key === "method" && value === "") return;
            const changes = { [key]: kind === "number" ? Math.floor(Number(value)) : value };
            if (["method", "ranks", "microbatches", "chunks"].includes(key) && state.text !== "") changes.text = "";
            set(changes);
        });
    for (const key of ["ranks", "microbatches"]) $(key + "-slide").addEventListener("input", (e) => set({ [key]: Number(e.target.value), text: "" }));
    const readCosts = () => {
        const costs = {};
        for (const f of FIELDS) if ($("cost-" + f).value !== "" && !$("operations").hidden) costs[f] = $("cost-" + f).value;
        set({ costs: { ...costs, ...costsOf($("costs").value) } });
    };
    for (const f of FIELDS) $("cost-" + f).addEventListener("input", readCosts);
    $("costs").addEventListener("input", readCosts);
    $("preset").addEventListener("change", () => {
        if ($("preset").value === "own") $("costs").focus();
        else set({ costs: { ...($("preset").value === "unit" ? UNIT : DEEPSEEK) }, overlap: $("preset").value === "unit" && state.overlap === "planned" ? "canonical" : state.overlap });
    });
    $("memory").addEventListener("change", () => { state.memory = $("memory").checked; update(); });
    $("controls").addEventListener("submit", (e) => e.preventDefault());
    $("in").addEventListener("click", () => zoom(0.6));
    $("out").addEventListener("click", () => zoom(1 / 0.6));
    $("all").addEventListener("click", () => zoom(Infinity));
    $("text").addEventListener("input", () => set({ text: $("text").value }));
    for (const [id, format] of [["edit", "tsv"], ["edit-csv", "csv"]]) $(id).addEventListener("click", async () => { const text = await written(format); if (text !== null) { set({ text }); $("text").focus(); } });
    $("leave").addEventListener("click", () => { $("text").value = ""; set({ text: "" }); $("text").focus(); });
    $("copy-link").addEventListener("click", async () => copy($("copy-link"), location.href.split("#")[0] + await linkOf(state)));
    $("copy-command").addEventListener("click", () => copy($("copy-command"), $("command").textContent));
    for (const b of document.querySelectorAll("[data-export]")) b.addEventListener("click", () => { $("export").open = false; save(b.dataset.export); });
    $("export").addEventListener("keydown", (e) => { if (e.key === "Escape") { $("export").open = false; $("export").querySelector("summary").focus(); } });
    $("search").addEventListener("click", search);
    $("stop").addEventListener("click", () => searching.stop());
    $("file").addEventListener("change", () => { if ($("file").files[0]) take($("file").files[0]); $("file").value = ""; });
    for (const type of ["dragover", "dragleave", "drop"])
        document.addEventListener(type, (e) => {
            e.preventDefault();
            document.body.classList.toggle("dropping", type === "dragover");
            if (type === "drop" && e.dataTransfer.files[0]) take(e.dataTransfer.files[0]);
        });
    window.addEventListener("hashchange", async () => { if (await readLink(address = location.hash)) update(); });
    window.addEventListener("resize", askAll);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); askAll(); });
    $("tour-open").addEventListener("click", () => tourGo(0));
    $("tour-back").addEventListener("click", () => tourGo(tourAt - 1));
    $("tour-next").addEventListener("click", () => (tourAt + 1 < TOUR.length ? tourGo(tourAt + 1) : tourEnd()));
    $("tour-close").addEventListener("click", tourEnd);
}
async function copy(button, text) {
    const before = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed here"; }
    setTimeout(() => { button.textContent = before; }, 1500);
}

/* ---- files in and out ---- */
/* A schedule, costs, or a trace whose costs are taken. */
async function take(file) {
    let bytes = new Uint8Array(await file.arrayBuffer());
    if (bytes[0] === 0x1f && bytes[1] === 0x8b) bytes = new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
    const text = new TextDecoder().decode(bytes.subarray(0, 4000)), all = () => new TextDecoder().decode(bytes);
    if (/^\s*[[{]/.test(text)) {
        const result = await asking.run(["costs", "trace.json"], { "trace.json": bytes });
        if (result.code !== 0) return problem(file.name + ": " + result.problem);
        return set({ costs: costsOf(result.out) });
    }
    if (/^\s*(#[^\n]*\n\s*)*(STAGE_SCALE|[A-Za-z]+(\.[FIWR])?)\s*=/.test(text)) return set({ costs: costsOf(all()) });
    return set({ text: all() });
}
/* The schedule that is shown, in a format; null where that says no. */
async function written(format) {
    const planned = state.overlap === "planned" ? picture.model?.tsv : undefined; // another plan may be another schedule
    const { words, files } = wordsOf(state.text === "" && !planned ? state.method : null, planned ? { ...state, overlap: "canonical", text: planned } : state), simulates = format === "trace";
    const kept = simulates ? words : withoutOptions(words, ["--rank-scale"]);
    const result = await asking.run([simulates ? "simulate" : "schedule", ...kept, "--format", format], files);
    if (result.code === 0) return result.out;
    problem(result.problem);
    return null;
}
const withoutOptions = (words, names) => words.filter((w, i) => !names.includes(w) && !names.includes(words[i - 1]));
async function save(kind) {
    const m = picture.model, stem = m ? `${m.method}-${m.ranks}x${m.microbatches}` : "schedule";
    let blob;
    if (kind === "svg") blob = new Blob([picture.svg()], { type: "image/svg+xml" });
    else if (kind === "png") blob = await new Promise((done) => picture.canvas.toBlob(done));
    else {
        const text = await written(kind);
        if (text === null) return;
        blob = new Blob([text], { type: kind === "trace" ? "application/json" : "text/plain" });
    }
    const link = make("a");
    link.href = URL.createObjectURL(blob);
    link.download = stem + (kind === "trace" ? ".json" : "." + kind);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
async function search() {
    const files = {}, watch = progress("searching", state.seconds);
    const m = state.text !== "" && picture.model ? picture.model : state;
    const words = ["search", "--ranks", String(m.ranks), "--microbatches", String(m.microbatches), "--seconds", String(state.seconds), "--output", "found.tsv", ...runWords(files), ...(state.cap !== "" ? ["--memory-cap", String(state.cap)] : [])];
    $("search").disabled = true;
    $("stop").disabled = false;
    const result = await searching.run(words, files, (line) => watch.say(line));
    watch.end();
    $("search").disabled = false;
    $("stop").disabled = true;
    if (!result) return;
    if (result.code !== 0) return problem(result.problem);
    found = { text: new TextDecoder().decode(result.files["found.tsv"]), says: result.out };
    set({ text: found.text });
}

/* ---- the tour ---- */
const idleShare = () => (picture.model?.ran ? picture.model.idle.reduce((a, b) => a + b, 0) / picture.model.ranks / picture.model.step : 1);
const TOUR = [
    { title: "1F1B and its bubble", to: { method: "1f1b", ranks: 4, microbatches: 8 },
      text: "Four ranks hold a quarter of the layers each. A forward (orange) goes down the ranks, its backward (green) comes back up. At the start the last rank has nothing to compute yet, at the end the first one waits for gradients: that is the bubble. It is the same however many micro-batches there are, so more of them make it a smaller share.",
      task: "Give it more micro-batches until less than 15 % are idle.", done: () => state.method === "1f1b" && idleShare() < 0.15 },
    { title: "ZB1P: weight gradients fill the bubble", to: { method: "zb1p", ranks: 4, microbatches: 8, versus: "1f1b" },
      text: "A backward is two things: the gradient for the input (light green), which the rank above waits for, and that for the weights (blue), which nobody waits for. Zero-bubble schedules put the second where a rank would be idle. Below it is 1F1B on the same scale.",
      task: "Set W to 0.5. With less to fill in, is more of the step idle?", done: () => Number(state.costs.W) > 0 && Number(state.costs.W) < 1 },
    { title: "DualPipe: both directions at once", to: { method: "dualpipe", ranks: 8, microbatches: 20 },
      text: "Micro-batches enter at both ends; dark boxes go the other way. So a rank always has a forward of one direction and a backward of the other, which run as one operation (a frame): while one computes, the other's tokens are on their way. Every rank holds two copies of its weights for it.",
      task: "Set F&B to 2.4: a pair that hides its transfers takes less than F and B in turn.", done: () => Number(state.costs.FB) > 0 && Number(state.costs.FB) < 3 },
    { title: "DualPipeV: the same with one copy", to: { method: "dualpipev", ranks: 4, microbatches: 20, costs: { ...UNIT, FB: "2.4" } },
      text: "Fold DualPipe in the middle. A micro-batch goes down the ranks and back up, so each rank holds an early and a late part of the model, and a forward of one leg meets a backward of the other. There is one copy of the weights.",
      task: "Choose dualpipe under “beside it” and compare step, idle time and what is held.", done: () => state.method === "dualpipev" && state.versus === "dualpipe" },
    { title: "Overlapped interleaving, with DeepSeek-V3's costs", to: { method: "interleaved_overlap", ranks: 8, microbatches: 64, chunks: "4", costs: { ...DEEPSEEK } },
      text: "Here a layer is cut into attention, dispatch, experts and combine, with times of DeepSeek-V3's published profile. A rank has two lanes: above it computes, below it moves tokens meanwhile. Point at a box to see what it waited for, click it for the whole chain. A forward takes longer to reach the next rank than to make way for the next one, which leaves gaps while the pipeline fills.",
      task: "Write --microbatch-group 10 into “more options”: larger groups close these gaps.", done: () => /--microbatch-group\s+(9|1\d)\b/.test(state.more) },
];
let tourAt = -1;
function tourGo(at) {
    const stop = TOUR[tourAt = clamp(at, 0, TOUR.length - 1)];
    $("tour").hidden = false;
    $("tour-title").textContent = `${tourAt + 1} of ${TOUR.length}: ${stop.title}`;
    $("tour-text").replaceChildren(make("p", stop.text));
    $("tour-back").disabled = tourAt === 0;
    $("tour-next").textContent = tourAt + 1 < TOUR.length ? "next" : "end";
    Object.assign(state, START, { costs: { ...UNIT } }, structuredClone(stop.to));
    update();
    $("tour-title").focus();
}
function tourEnd() { $("tour").hidden = true; tourAt = -1; $("tour-open").focus(); }
function tourCheck() {
    if (tourAt < 0) return;
    const stop = TOUR[tourAt], done = stop.done();
    $("tour-task").textContent = (done ? "✓ Done. " : "Try: ") + stop.task;
    $("tour-task").className = done ? "done" : "";
}

/* ---- begin ---- */
(async () => {
    const first = asking.run(["methods"]);
    drawing.begin(); // meanwhile
    readColours();
    const [list] = await Promise.all([first, readLink(location.hash)]);
    methods = JSON.parse(list.out);
    for (const m of methods) {
        $("method").append(new Option(m.name));
        $("versus").append(new Option(m.name));
    }
    $("method").prepend(new Option("the text below", ""));
    $("versus").prepend(new Option("nothing", ""));
    listen();
    update();
})().catch((e) => problem("This browser cannot run the library: " + e.message));
