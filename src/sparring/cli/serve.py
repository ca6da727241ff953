"""Serve the gateway, the dashboard and inference until SIGTERM or Ctrl-C.

With --json the first line of standard output is {"url", "trust", "mode", "fingerprint", "stream", "pid"} as soon as
connections are accepted, so that a program can use --port 0; the last line comes at the end.
Without keys it serves this machine alone, and no caller is an administrator; `spar keys create` ends that.
Example: spar serve --host 0.0.0.0 --tls self-signed
"""

import argparse
import logging
import os
from dataclasses import replace
from typing import Any

import msgspec

from sparring.cli.output import Output


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to bind; anything but loopback needs keys and TLS")
    parser.add_argument("--port", type=int, help="0 picks a free one")
    parser.add_argument("--tls", choices=["self-signed"], help="make a certificate in the data folder")
    parser.add_argument("--tls-cert", metavar="FILE", help="PEM file")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file of the certificate's private key")
    parser.add_argument("--log", choices=["info", "warning"], default="info", help="info: one JSON line per request")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.gateway.server import GatewayServer, serve

    given = {"host": args.host, "port": args.port, "tls_cert": args.tls or args.tls_cert, "tls_key": args.tls_key}
    gateway = replace(args.config.gateway, **{key: value for key, value in given.items() if value is not None})
    logging.basicConfig(level=args.log.upper(), format="%(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def ready(serving: GatewayServer) -> None:
        if output.json:
            said = {key: getattr(serving, key) for key in ("url", "trust", "mode", "fingerprint", "stream")}
            print(msgspec.json.encode({**said, "pid": os.getpid()}).decode(), flush=True)
        output.say(f"serving {serving.url}")
        output.say(f"trust   {serving.trust}")
        if serving.fingerprint:
            output.say(f"tls     SHA-256 {serving.fingerprint}")
        if serving.stream:
            output.say(f"stream  {serving.stream} takes what is uploaded (`spar sink` brings it into the store)")
        if serving.mode == "anonymous":
            output.say(
                "keys    none yet: every user of this machine may record, act and read (`spar keys create NAME`)"
            )
        else:
            output.say("keys    needed")

    serve(replace(args.config, gateway=gateway), ready)
    output.say("stopped")
    return {"stopped": True}
