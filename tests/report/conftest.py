"""Pages as a reader meets them."""

from html.parser import HTMLParser

import pytest


class Page(HTMLParser):
    """A page's links, ids, words and those for its figures; complains of tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.figures, self.said, self.heads, self.code = [], [], [], [], [], 0, False
        self.feed(text)
        assert self.open == []
        self.text = " ".join(" ".join(self.said).split())

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.heads += tag == "h1"
        self.links += [value for name, value in attributes if name in ("href", "src")]
        self.ids += [named["id"]] if "id" in named else []
        self.figures += [named["aria-label"]] if tag == "figure" else []
        assert tag not in ("img", "link", "iframe") and (tag != "script" or not attributes)
        self.code = tag == "script"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += [] if self.code else [data]


@pytest.fixture(scope="session")
def read_pages():
    """Reads all pages in a folder, by name."""
    return lambda folder: {path.name: Page(path.read_text(encoding="utf-8")) for path in folder.glob("*.html")}
