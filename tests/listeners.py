"""Remembers what a run of studies told, and reads what its page says; for the tests of the gallery."""

import json
import re
from collections import Counter

from bulkedge.lab.gallery.page import summary


class Listener:
    """Remembers what it was told."""

    def __init__(self):
        self.complaints, self.begun, self.finished, self.failed = [], [], [], []

    def complain(self, sentence):
        self.complaints.append(sentence)

    def begin(self, step):
        self.begun.append(step)

    def finish(self, step, result):
        self.finished.append((step, result))

    def fail(self, step, error):
        self.failed.append((step, error))


def on_the_page(folder):
    """Studies and verdicts of the page, and those of ``claims.json``, in their order."""
    page = (folder / "index.html").read_text()
    sections = re.findall(r"<h3><a .*?>(.*?)</a></h3>", page)
    verdicts = re.findall(r'<td class="(holds|fails|undecided)"', page)
    claims = json.loads((folder / "claims.json").read_text())
    listed = list(dict.fromkeys(claim["study"] for claim in claims))
    assert sections == listed
    assert verdicts == [claim["verdict"] for claim in claims]
    assert summary(Counter(verdicts)) in page
    figures = re.findall(r'<img src="([^"]+)"', page)
    assert figures == [f"{name}/figure.png" for name in sections]
    assert all((folder / each).is_file() for each in figures)
    return sections, verdicts
