"""A web server on loopback for tests. It misbehaves as it is told, and records every request."""
import contextlib
import email.utils
import http.server
import json
import threading
import time
import urllib.parse

COMMIT = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"


class Server:
    """Serves `files` ({path: bytes}). `behave[path]` is a function of (handler, request number). It may answer itself
    and return True, or change the handler's behaviour and return False."""

    def __init__(self):
        self.files, self.behave, self.requests, self.counts = {}, {}, [], {}
        self.lock = threading.Lock()
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # tests kill clients
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_port}"

    def count(self, path):
        return self.counts.get(path, 0)

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def handler(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = urllib.parse.unquote(self.path.partition("?")[0])
                with server.lock:
                    number = server.counts[path] = server.counts.get(path, 0) + 1
                    server.requests.append((path, self.path, dict(self.headers.items())))
                self.etag, self.ranges, self.send_bytes, self.announce, self.pause = '"one"', True, None, None, 0
                with contextlib.suppress(ConnectionError):
                    act = server.behave.get(path)
                    if act and act(self, number):
                        return
                    self.give_file(path)

            def answer(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return True

            def give_file(self, path):
                content = server.files.get(path)
                if content is None:
                    self.answer(404)
                    return
                first, last, wanted = 0, len(content) - 1, self.headers.get("Range")
                if wanted and self.ranges:
                    begin, _, end = wanted.removeprefix("bytes=").partition("-")
                    first, last = int(begin), min(int(end), last)
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                else:
                    self.send_response(200)
                body = content[first:last + 1]
                sent = body if self.send_bytes is None else body[:self.send_bytes]
                self.send_header("ETag", self.etag)
                self.send_header("Content-Length", str(len(body) if self.announce is None else min(self.announce, len(body))))
                self.end_headers()
                if not self.pause:
                    self.wfile.write(sent)
                for at in range(0, len(sent) if self.pause else 0, 16384):
                    self.wfile.write(sent[at:at + 16384])
                    time.sleep(self.pause)  # the test needs a slow server
                if len(sent) < len(body):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        return Handler


def cut(after):
    """Every answer is cut after so many bytes."""
    def act(handler, _):
        handler.send_bytes = after
        return False
    return act


def short(after):
    """Every answer announces more bytes than it sends."""
    def act(handler, _):
        handler.send_bytes = handler.announce = after
        return False
    return act


def without_ranges(handler, _):
    handler.ranges = False
    return False


def slow(pause):
    def act(handler, _):
        handler.pause = pause
        return False
    return act


def changed_after(number):
    def act(handler, n):
        handler.etag = '"one"' if n <= number else '"two"'
        return False
    return act


def first(number, status, **headers):
    """The first answers have this status."""
    def act(handler, n):
        return n <= number and handler.answer(status, **headers)
    return act


def always(status, **headers):
    return first(10**9, status, **headers)


def in_seconds(seconds):
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


def add_hub(hub, cdn, name, files, token=None, uses=3):
    """Makes `hub` answer the paths of a hub for data set `name`. Contents come from `cdn`, whose signed addresses are
    valid for so many requests. With `token`, the hub requires it."""
    signed = {}

    def guarded(act):
        def guard(handler, number):
            if token and handler.headers.get("Authorization") != f"Bearer {token}":
                return handler.answer(401, X_Error_Message="Invalid username or password.")
            return act(handler, number)
        return guard

    def give(value, **headers):
        return lambda handler, _: handler.answer(200, json.dumps(value).encode(), **headers)

    api = f"/api/datasets/{name}"
    for revision in ("main", "refs/convert/parquet"):
        hub.behave[f"{api}/revision/{revision}"] = guarded(give({"sha": COMMIT}))
    entries = [{"type": "file", "path": path, "size": 130, "oid": "0" * 40,
                "lfs": {"oid": f"{i:064x}", "size": len(body)}} for i, (path, body) in enumerate(files.items())]
    entries.append({"type": "directory", "path": "sample", "oid": "1" * 40, "size": 0})
    half = len(entries) // 2

    def tree(handler, _):
        if "cursor=2" in handler.path:
            return handler.answer(200, json.dumps(entries[half:]).encode())
        return handler.answer(200, json.dumps(entries[:half]).encode(),
                              Link=f'<{hub.url}{handler.path}&cursor=2>; rel="next"')
    hub.behave[f"{api}/tree/{COMMIT}"] = hub.behave[f"{api}/tree/{COMMIT}/sample/10BT"] = guarded(tree)
    for path, body in files.items():
        where = f"/blobs/{path}"
        cdn.files[where] = body

        def resolve(handler, number, where=where):
            signed[where, f"Signature={number}"] = 0
            return handler.answer(302, Location=f"{cdn.url}{where}?Signature={number}")

        def blob(handler, _, where=where):
            key = where, handler.path.partition("?")[2]
            signed[key] = signed.get(key, uses) + 1
            return signed[key] > uses and handler.answer(403)
        hub.behave[f"/datasets/{name}/resolve/{COMMIT}/{path}"] = guarded(resolve)
        cdn.behave[where] = blob
