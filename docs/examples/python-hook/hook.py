#!/usr/bin/env python3
"""An admission hook in Python, with the standard library only.

It runs each tenant on its own nodes, holds during a freeze and refuses pods
with more than 8 CPUs. Change `decide` and keep the rest.

    python3 hook.py --unix-socket /run/hook/hook.sock
    python3 hook.py --port 8080        # on 127.0.0.1
"""

import argparse
import json
import os
import re
import socketserver
import stat
import sys
from datetime import datetime, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/v1/admit"
MAX_BYTES = 1 << 20

POOLS = {"team-a": "pool-a", "team-b": "pool-b"}
FREEZE = (datetime(2026, 12, 20, tzinfo=timezone.utc), datetime(2027, 1, 4, tzinfo=timezone.utc))
MAX_CPUS = 8

SUFFIXES = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15", "E": "1e18"}


def decide(request, now):
    """Returns the decision about a request, both as in the JSON on the wire.

    It may be called twice about one attempt and by many threads at once. An
    exception means that the hook is broken; to make work wait return Hold.
    """
    resources = request.get("resources") or {}
    requests = resources.get("requests") or {}
    cpus = quantity(requests.get("cpu") or "0")  # empty, null and absent mean not set
    if cpus is None or cpus > MAX_CPUS:
        return {"decision": "Refuse", "reason": f"a pod may use at most {MAX_CPUS} CPUs"}
    start, end = FREEZE
    if start <= now < end:
        return {"decision": "Hold", "reason": "the year-end freeze is on", "until": end.isoformat()}
    pool = POOLS.get(request.get("tenantID"))
    if pool is None:
        return {"decision": "Admit"}
    return {
        "decision": "AdmitWith",
        "changes": {
            "nodeSelector": {"example.com/pool": pool},
            "tolerations": [{"key": "example.com/pool", "value": pool, "effect": "NoSchedule"}],
        },
    }


def quantity(text):
    """Reads a Kubernetes quantity of CPUs; None when it is not one."""
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:([numkMGTPE]?)|[eE]([+-]?[0-9]{1,3}))", text)
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * Decimal(SUFFIXES[suffix])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    wbufsize = -1  # sends an answer at once, not line by line
    timeout = 120  # closes idle connections

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]+", length):
            return self.fail(411, "the request has no length")
        if len(length) > 20 or int(length) > MAX_BYTES:
            return self.fail(413, f"the request has more than {MAX_BYTES} bytes")
        body = self.rfile.read(int(length))
        if self.path != PATH:
            return self.answer(404, {"error": f"{self.path} is not {PATH}"})
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            return self.answer(400, {"error": str(error)})
        if not isinstance(request, dict):
            return self.answer(400, {"error": "not a JSON object"})
        try:
            decision = decide(request, datetime.now(timezone.utc))
        except Exception as error:  # one bad request costs one answer
            self.log_error("the hook failed: %r", error)
            return self.answer(500, {"error": "the hook failed"})
        self.answer(200, decision)

    def fail(self, status, error):
        """Answers without having read the body, which costs the connection."""
        self.close_connection = True
        self.answer(status, {"error": error})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return self.client_address[0] if self.client_address else "unix"  # has no address

    def log_request(self, code="-", size="-"):
        if code != 200:
            super().log_request(code, size)


class TCPServer(ThreadingHTTPServer):
    request_queue_size = 128


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 128
    daemon_threads = True

    def server_bind(self):
        try:
            if stat.S_ISSOCK(os.lstat(self.server_address).st_mode):  # left behind by a crash
                os.unlink(self.server_address)
        except FileNotFoundError:
            pass
        super().server_bind()  # fails when anything else is there
        os.chmod(self.server_address, 0o660)  # the caller shares the group


def main():
    parser = argparse.ArgumentParser(description="an admission hook")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--unix-socket", metavar="PATH")
    where.add_argument("--port", type=int, help="on 127.0.0.1; 0 takes a free one")
    args = parser.parse_args()
    if args.unix_socket:
        server, address = UnixServer(args.unix_socket, Handler), args.unix_socket
    else:
        server = TCPServer(("127.0.0.1", args.port), Handler)
        address = "http://127.0.0.1:%d" % server.server_address[1]
    print("serving on", address, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
