"""A TCP proxy that misbehaves as networks do: drops replies, cuts, dribbles. Import it as `from chaos import …`.

Faults are drawn from a seed for each connection; `healed()` lets everything through. `Chaos.faults` counts what was
done, so that a test can say how much it survived.
"""

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

FAULTS = ("none", "refuse", "cut_request", "drop_reply", "cut_reply", "dribble", "stall")


class Chaos:
    """One listening socket, one thread for each connection."""

    def __init__(self, target: tuple[str, int], *, seed: int, faults: tuple[str, ...] = FAULTS) -> None:
        self._target, self._rng, self._kinds = target, random.Random(seed), faults
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.1)
        self._lock, self._open = threading.Lock(), True
        self._healthy = False
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self.faults: Counter[str] = Counter()
        self._acceptor = threading.Thread(target=self._accept, name="chaos")
        self._acceptor.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def healed(self) -> None:
        """From now on every connection is carried whole."""
        self._healthy = True
        self.cut()

    def cut(self) -> None:
        """Reset every open connection."""
        with self._lock:
            for one in tuple(self._sockets):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._open = False
        self._acceptor.join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _accept(self) -> None:
        while self._open:
            try:
                game, _ = self._server.accept()
            except TimeoutError:
                continue
            fault = "none" if self._healthy else self._rng.choice(self._kinds)
            self.faults[fault] += 1
            after = self._rng.randrange(1, 4000)
            thread = threading.Thread(target=self._carry, args=(game, fault, after), name="chaos-connection")
            self._threads.append(thread)
            thread.start()

    def _carry(self, game: socket.socket, fault: str, after: int) -> None:
        with game, contextlib.ExitStack() as stack:
            if fault == "refuse":
                return
            try:
                gateway = stack.enter_context(socket.create_connection(self._target))
            except OSError:
                return
            with self._kept(game), self._kept(gateway):
                back = threading.Thread(target=self._back, args=(gateway, game, fault, after), name="chaos-back")
                back.start()
                self._forth(game, gateway, fault, after)
                back.join()

    def _forth(self, game: socket.socket, gateway: socket.socket, fault: str, after: int) -> None:
        sent = 0
        for data in _received(game):
            part = data
            if fault == "cut_request" and sent + len(data) > after:
                part = data[: max(0, after - sent)]
            try:
                if fault == "dribble":
                    for at in range(0, min(len(part), 400)):
                        gateway.sendall(part[at : at + 1])
                    part = part[400:]
                gateway.sendall(part)
            except OSError:
                break
            sent += len(data)
            if fault == "cut_request" and sent > after:
                break
            if fault == "stall":
                time.sleep(0.05)
        _shut(gateway)

    def _back(self, gateway: socket.socket, game: socket.socket, fault: str, after: int) -> None:
        for data in _received(gateway):
            if fault == "drop_reply":
                break  # the request arrived and was answered; the game never learns it
            try:
                game.sendall(data[: after % 100] if fault == "cut_reply" else data)
            except OSError:
                break
            if fault == "cut_reply":
                break
        _shut(game)
        _shut(gateway)

    @contextlib.contextmanager
    def _kept(self, one: socket.socket) -> Iterator[None]:
        with self._lock:
            self._sockets.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(one)


def _received(one: socket.socket) -> Iterator[bytes]:
    try:
        while data := one.recv(65536):
            yield data
    except OSError:
        return


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
