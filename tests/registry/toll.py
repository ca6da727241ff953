"""A toll on the way to a server: every request is counted, and at one of them something happens.

A true proxy on loopback that passes bytes on as they are, so that signatures over the host's name still hold.
"""

import http.client
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Toll:
    """`before` and `after` are called with each request's number, from 1, its verb and path; what they return that is
    true ends the connection without an answer."""

    def __init__(self, endpoint, *, before=None, after=None):
        self.before, self.after = before or (lambda *_: False), after or (lambda *_: False)
        self.seen, self._lock = [], threading.Lock()
        target = endpoint.removeprefix("http://")

        class Passing(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            toll = self

            def handle_any(self):
                with self.toll._lock:
                    self.toll.seen.append((self.command, self.path))
                    number = len(self.toll.seen)
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                self.close_connection = True
                if self.toll.before(number, self.command, self.path):
                    return
                if len(body) < size:
                    return  # who asked was killed; the server would wait for the rest
                upstream = http.client.HTTPConnection(target, timeout=20)
                try:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() not in ("expect", "connection"):
                            upstream.putheader(name, value)
                    upstream.endheaders(body)
                    answer = upstream.getresponse()
                    content = answer.read()
                finally:
                    upstream.close()
                if self.toll.after(number, self.command, self.path):
                    return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(content)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_):
                return None

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_):
                return None  # the one who asked was killed

        self._server = Quiet(("127.0.0.1", 0), Passing)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"


@contextmanager
def toll(endpoint, **what):
    """The toll, open while the block lasts."""
    made = Toll(endpoint, **what)
    thread = threading.Thread(target=made._server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made
    finally:
        made._server.shutdown()
        thread.join()
        made._server.server_close()
