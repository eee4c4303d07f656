"""A headless Chromium, driven by its DevTools protocol over two pipes: no port, and no other package.

Everything that a page reports is kept: `errors` has exceptions, messages of console.error, blocked loads and failed
requests. `hosts` has the hosts that it asked.
"""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Failed, Skipped  # noqa: E402

LIMIT = 60  # in seconds, for one answer of Chromium on a busy machine
NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


class Browser:
    """`with Browser() as page:`; one tab."""

    def __init__(self, width=1280, height=900, dark=False):
        program = next((found for found in map(shutil.which, NAMES) if found), None)
        if not program:
            raise Skipped("Chromium is not installed: tools/setup-browser")
        self.folder = tempfile.mkdtemp(prefix="nsa-browser-")
        down_read, self.down = os.pipe()
        self.up, up_write = os.pipe()

        def place():  # Chromium reads commands from 3 and writes answers to 4
            read, write = os.dup(down_read), os.dup(up_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self.folder}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=place, pass_fds=(3, 4), close_fds=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder})
        os.close(down_read)
        os.close(up_write)
        self.number, self.left, self.session = 0, b"", None
        self.errors, self.hosts, self.bytes = [], set(), 0
        self.expected = ()  # texts of errors that a test causes on purpose
        self.accepts, self.questions = True, []  # the answer to confirm(), and the questions that were asked
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.width, self.height = width, height
        self.size(width, height)
        self.prefer("dark" if dark else "light")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.down)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.up)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the protocol ----------------------------------------------------------------------------
    def call(self, method, **parameters):
        return self._answer(self._send(method, parameters), method)

    def _send(self, method, parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.down, data):]
        return self.number

    def _answer(self, number, method):
        deadline = time.monotonic() + LIMIT
        while True:
            while b"\0" in self.left:
                text, self.left = self.left.split(b"\0", 1)
                message = json.loads(text)
                if message.get("id") == number:
                    if "error" in message:
                        raise Failed(f"{method}: {message['error']}")
                    return message["result"]
                self._note(message.get("method"), message.get("params", {}))
            if not select.select([self.up], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Failed(f"Chromium did not answer {method} within {LIMIT} s")
            got = os.read(self.up, 1 << 20)
            if not got:
                raise Failed(f"Chromium ended at {method}")
            self.left += got

    def _note(self, method, event):
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            address = urllib.parse.urlsplit(event["request"]["url"])
            if address.scheme in ("http", "https", "ws", "wss"):
                self.hosts.add(address.hostname)
        elif method == "Network.loadingFinished":
            self.bytes += event["encodedDataLength"]
        elif method == "Page.javascriptDialogOpening":  # the script waits; its answer comes later among the others
            self.questions.append(event["message"])
            self._send("Page.handleJavaScriptDialog", {"accept": self.accepts})

    # ---- what tests do ---------------------------------------------------------------------------
    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                          {"name": "prefers-reduced-motion", "value": "reduce"}])

    def open(self, url):
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise Failed(f"{url}: {failed}")
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise Failed(f"{expression}: {details.get('exception', {}).get('description') or details['text']}")
        return result["result"].get("value")

    def wait(self, expression, what=None, timeout=LIMIT):
        """Waits until the expression is true. Returns its value."""
        deadline = time.monotonic() + timeout
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                text = self.evaluate("document.body ? document.body.innerText.slice(0, 1500) : ''")
                raise Failed(f"waited {timeout} s for {what or expression}; the page says:\n{text}\nerrors: {self.errors}")
            time.sleep(0.05)
        return value

    def key(self, name, text=None):
        code = {"Tab": 9, "Enter": 13, " ": 32}.get(name, ord(name[0]))
        text = text or {"Enter": "\r", " ": " "}.get(name)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def drag(self, x1, y1, x2, y2):
        for kind, x, y in (("mousePressed", x1, y1), ("mouseMoved", (x1 + x2) / 2, y2), ("mouseMoved", x2, y2), ("mouseReleased", x2, y2)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def picture(self, path, whole=False):
        """The file's ending selects the format: .png, or .webp, which has a tenth of the bytes."""
        height = self.evaluate("document.documentElement.scrollHeight") if whole else self.height
        self.size(self.width, max(self.height, height))
        kind = pathlib.Path(path).suffix[1:]
        options = {"quality": 85} if kind == "webp" else {}
        data = self.call("Page.captureScreenshot", format=kind, **options)["data"]
        self.size(self.width, self.height)
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def unexpected(self):
        return [error for error in self.errors if not any(text in error for text in self.expected)]
