"""Runs `nsactl ui` as a process of a test, and opens its views."""
import json
import subprocess

from harness import expect

ALWAYS = ("favicon.ico",)  # Chromium asks for it where an answer is no page, such as a refusal without a token


class Page:
    """`with Page(node) as page:` runs nsactl ui, and has its URL."""

    def __init__(self, node, *options):
        self.process = subprocess.Popen([str(node.binaries / "nsactl"), "ui", "-o", "json", *options], env=node.environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        expect(line, f"nsactl ui said nothing: {self.process.stderr.read() if not line else ''}")
        told = json.loads(line)
        self.url, self.port = told["url"], told["port"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)


# True if every chart of a run is drawn and no more records are expected.
CURVES_DRAWN = """(charts => charts && charts.getAttribute('aria-busy') === 'false' && charts.querySelectorAll('.plot').length > 6 &&
  [...charts.querySelectorAll('.plot')].every(plot => plot.querySelectorAll('canvas').length === 2))(document.querySelector('.charts'))"""


def show(browser, view, ready):
    browser.evaluate(f"location.hash = '#/{view}'")
    return browser.wait(ready, f"view {view}")
