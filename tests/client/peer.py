"""A gateway that a test directs: a real HTTP server on loopback that answers what it is told to.

For what the true gateway never says: a forged manifest, a clock that is wrong, a 429 at will.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sparring.wire.chunk import decode, unpack


class Peer:
    """Keeps every chunk once, like a store; `answers` overrule it, one for each upload, then `always`."""

    def __init__(self):
        self.kept, self.uploads, self.seen = {}, [], []
        self.answers, self.always = [], None
        self.files = {}  # path → bytes, or what is called with the request's headers for status, headers and bytes
        self.gets = []  # path with query, headers
        self.sample_rate, self.ahead_ms = 1.0, 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body):
        chunks = [decode(part) for part in unpack(body)]
        self.uploads.append((time.monotonic(), [chunk.key for chunk in chunks]))
        told = self.answers.pop(0) if self.answers else self.always
        if told is not None:
            told = told(chunks) if callable(told) else told
            if told is not None:
                return told
        return 200, {}, self.verdicts(chunks)

    def verdicts(self, chunks):
        results = []
        for chunk in chunks:
            had = self.kept.get(chunk.key)
            assert had is None or had.content_hash() == chunk.content_hash(), "a retry changed its bytes"
            results.append({"verdict": "new" if had is None else "had"})
            self.kept[chunk.key] = chunk
        return {"results": results, "sample_rate": self.sample_rate, "time_ms": self._now_ms()}

    def _now_ms(self):
        return int(time.time() * 1000) + self.ahead_ms


def _handler(peer):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            peer.seen.append(self.headers.get("Authorization"))
            self._say(*peer.take(body))

        def do_GET(self):
            content = peer.files.get(self.path.partition("?")[0])
            peer.gets.append((self.path, dict(self.headers)))
            if callable(content):
                self._say(*content(self.headers))
            elif content is None:
                self._say(404, {}, {"error": {"code": "missing", "message": "none"}})
            else:
                self._say(200, {}, content)

        def _say(self, status, headers, body):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            return

    return Handler
