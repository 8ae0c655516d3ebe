# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""site.py SITE: every link within the site leads to a file and an anchor of it, and no page loads anything from elsewhere."""
import html.parser
import os
import re
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        if attrs.get("href"):
            (self.links if tag == "a" else self.loads).append(attrs["href"])
        if attrs.get("src"):
            self.loads.append(attrs["src"])


def main(site):
    pages, failures, links = {}, [], 0
    for folder, _, names in os.walk(site):
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith((".html", ".css")):
                continue
            with open(path, encoding="utf-8") as file:
                text = file.read()
            if name.endswith(".html"):
                pages[path] = Page(text)
            for sheet in re.findall(r"<style[^>]*>(.*?)</style>", text, re.S) if name.endswith(".html") else [text]:
                failures += [f"{path}: {load}" for load in re.findall(r"""(?:url\(\s*["']?|@import\s*["'])(?:https?:)?//[^)"']*""", sheet)]
    for path, page in pages.items():
        failures += [f"{path}: loads {load}" for load in page.loads if re.match(r"(https?:)?//", load)]
        for link in page.links + page.loads:
            at = urllib.parse.urlsplit(link)
            if at.scheme or at.netloc:
                continue
            links += 1
            to = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(at.path))) if at.path else path
            to = os.path.join(to, "index.html") if os.path.isdir(to) else to
            if not os.path.isfile(to):
                failures.append(f"{path}: {link} leads nowhere")
            # A fragment with "=" is a state, for a page's script.
            elif at.fragment and "=" not in at.fragment and to in pages and urllib.parse.unquote(at.fragment) not in pages[to].ids:
                failures.append(f"{path}: {link} has no such anchor")
    print("\n".join(failures), f"{len(pages)} pages, {links} links, {len(failures)} failures", sep="\n" if failures else "")
    return bool(failures) or len(pages) < 40 or links < 1000


sys.exit(main(sys.argv[1]))
