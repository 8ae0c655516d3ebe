# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""The documentation as a site: what `make site` runs.

gather.py SOURCE BUILD VERSION OUTPUT: pages of Markdown and all that they link to keep their places, manual pages become Markdown,
and mkdocs makes a site of them in OUTPUT, which is replaced.
"""
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

FONTS = {"B": "b", "I": "i", "R": None}
ENDS = {"p": "</p>", "pre": "</pre>", "ul": "</li></ul>", "dl": "</dd></dl>"}
BEGINS = {"p": "<p>", "pre": "<pre>", "ul": "<ul><li>", "dl": "<dl><dt>"}


def plain(text):
    """A line of roff as HTML."""
    text = re.sub(r"\\\(..", lambda sign: {"\\(bu": "•", "\\(em": "—"}.get(sign[0], "?"), text)
    text = html.escape(text.replace("\\-", "-").replace("\\&", "").replace("\\~", " ").replace("\\ ", " ").replace("\\c", ""), quote=False)
    return re.sub(r"\\fB(.*?)\\fR", r"<b>\1</b>", text).replace("\\e", "\\")


class Manual:
    """A manual page as Markdown: headings, and between them HTML."""

    def __init__(self):
        self.out, self.now, self.term, self.offers = [], None, False, []

    def turn(self, kind):
        if kind == self.now == "ul":
            self.out.append("</li>\n<li>")
        elif kind == self.now == "dl":
            self.out.append("</dd>\n<dt>")
        else:
            self.out.append(ENDS.get(self.now, "") + "\n" + BEGINS.get(kind, "\n"))
        self.now, self.term = kind, kind == "dl"

    def text(self, line, joined):
        if self.now is None:
            self.turn("p")
        self.out.append(line + ("" if joined else "\n"))
        if self.term and not joined:
            self.out.append("</dt><dd>")
            self.term = False

    def heading(self, level, title):
        self.turn(None)
        self.out.append(f"\n{'#' * level} {title}\n\n")

    def line(self, line):
        joined = line.endswith("\\c")
        name, _, rest = line.partition(" ")
        if line.startswith('.\\" offers '):
            self.offers.append(line.split()[-1])
        elif name in (".SH", ".SS"):
            self.heading(2 if name == ".SH" else 3, plain(rest).capitalize() if name == ".SH" else plain(rest))
        elif name == ".nf":
            if self.offers:
                self.heading(3, ", ".join(dict.fromkeys(self.offers)))
                self.offers = []
            self.turn("pre")
        elif name == ".PP" and self.now == "pre":
            self.out.append("\n")
        elif name in (".PP", ".fi"):
            self.turn(None)
        elif name in (".TP", ".IP"):
            self.turn("dl" if name == ".TP" else "ul")
        elif name in (".RS", ".RE"):
            self.turn(None)
            self.out.append('<div class="in">\n' if name == ".RS" else "</div>\n")
        elif re.match(r"\.[BIR]{1,2}$", name):
            parts = [plain(part) for part in shlex.split(rest.replace("\\", "\\\\").replace("'", "\\'"))]
            fonts = [FONTS[letter] for letter in name[1:]]
            if len(fonts) == 1:
                parts = [" ".join(parts)]
            marked = [f"<{font}>{part}</{font}>" if font else part
                      for part, font in zip(parts, fonts * len(parts))]
            self.text("".join(marked), joined)
        elif not line.startswith("."):
            self.text(plain(line), joined)
        elif name not in (".TH", ".ad", ".nh") and not line.startswith('.\\"'):
            raise ValueError(f"{line}: no such request is known to docs/site/gather.py")


def manual(path, title):
    page = Manual()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            page.line(line.rstrip("\n"))
    page.turn(None)
    return f"# {title}\n" + "".join(page.out)


def spaced(text):
    """Lists begin after an empty line, which GitHub does not ask for."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        item = re.match(r"([-*]|\d+\.) ", line)
        if item and not fenced and lines and re.match(r"[^\s>#|]", lines[-1]) and not re.match(r"([-*]|\d+\.) ", lines[-1]):
            if not any(re.match(r"([-*]|\d+\.) ", before) for before in paragraph(lines)):
                lines.append("")
        lines.append(line)
    return "\n".join(lines)


def paragraph(lines):
    for line in reversed(lines):
        if not line:
            return
        yield line


def gather(source, pages, into):
    """Pages, and whatever files they lead to, under the same names."""
    wanted, held = list(pages), set()
    while wanted:
        name = wanted.pop()
        if name in held or not os.path.isfile(os.path.join(source, name)):
            continue
        held.add(name)
        place = os.path.join(into, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not name.endswith(".md"):
            shutil.copyfile(os.path.join(source, name), place)
            continue
        with open(os.path.join(source, name), encoding="utf-8") as file:
            text = file.read()
        with open(place, "w", encoding="utf-8") as file:
            file.write(spaced(text))
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in link:
                wanted.append(os.path.normpath(os.path.join(os.path.dirname(name), link)))
    return held


def main(source, build, version, output):
    with tempfile.TemporaryDirectory() as work:
        pages = os.path.join(work, "pages")
        guides = sorted(f"docs/{name}" for name in os.listdir(f"{source}/docs") if name.endswith(".md"))
        about = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
        held = gather(source, ["README.md", *guides, *about], pages)

        os.makedirs(f"{pages}/reference")
        with open(f"{pages}/reference/dualpipe.md", "w", encoding="utf-8") as file:
            file.write(manual(f"{source}/docs/dualpipe.1", "The command dualpipe"))
        headers = sorted(name[len("dualpipe_"):-2] for name in os.listdir(f"{build}/docs/man3"))
        for header in headers:
            with open(f"{pages}/reference/{header}.h.md", "w", encoding="utf-8") as file:
                file.write(manual(f"{build}/docs/man3/dualpipe_{header}.3", f"{header}.h"))

        # Pages that run in a browser: whole files.
        live = []
        explorer = next((f"{place}/explore.html" for place in (build, source) if os.path.isfile(f"{place}/explore.html")), None)
        if explorer:
            shutil.copyfile(explorer, f"{pages}/explore.html")
            live.append({"title": "Explorer of schedules", "url": "explore.html"})
        command = os.path.abspath(f"{build}/dualpipe")
        os.makedirs(f"{pages}/live")
        subprocess.run([command, "trace", "view", f"{source}/tests/data/trace/deepseek_v3_train_1f1b.json.gz",
                        "--output", f"{pages}/live/deepseek-v3.html"], check=True)
        subprocess.run([command, "demo", "--methods", "dualpipe", "--seconds", "2", "--output", f"{work}/demo"],
                       check=True, stdout=subprocess.DEVNULL)
        shutil.copyfile(f"{work}/demo/trace.html", f"{pages}/live/demo.html")
        live.append({"title": "Trace of DeepSeek-V3", "url": "live/deepseek-v3.html"})
        live.append({"title": "Trace of the demo", "url": "live/demo.html"})

        inner = sorted(name for name in held if name.endswith("/README.md"))
        config = {
            "site_name": "libdualpipe", "site_url": "", "docs_dir": pages, "site_dir": os.path.abspath(output), "strict": True,
            "theme": {"name": None, "custom_dir": os.path.abspath(f"{source}/docs/site")},
            "plugins": ["search"], "markdown_extensions": ["sane_lists"],
            "extra": {"live": live, "version": version},
            "nav": [{"Start": "README.md"}, {"Guides": guides}, *([{"Parts": inner}] if inner else []),
                    {"Reference": ["reference/dualpipe.md"] + [f"reference/{header}.h.md" for header in headers]},
                    {"Project": about}],
        }
        with open(f"{work}/mkdocs.yml", "w", encoding="utf-8") as file:
            json.dump(config, file)
        subprocess.run(["mkdocs", "build", "--quiet", "--clean", "--config-file", f"{work}/mkdocs.yml"], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
