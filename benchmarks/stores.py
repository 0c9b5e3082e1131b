"""The same tables from a folder, from tar archives, from an S3 server, and from one that fails one request in twenty.

    pip install 'moto[server]' s3fs
    python benchmarks/stores.py WORK [--images 500] [--size 128] [--backbone tiny]

A demo line is made and put into a bucket of moto's server on this machine's loopback. `discover` is called with its maps,
from each place, each in a process of its own; a proxy before the server counts requests, and in the last run answers every
twentieth with 503. Prints what each run took, and ends with 1 unless all tables are equal, byte by byte.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from common import machine, positive, print_table

from anomalyncd.demo import DEFECT_KINDS, make_line

TABLES = ("images.csv", "regions.csv", "groups.csv", "classes.json", "tree.json")
EVERY = 20
BUCKET = "line"


class Proxy(ThreadingHTTPServer):
    """Hands requests on to a server; every n-th is answered with 503 where `every` says so."""

    daemon_threads = True

    def __init__(self, port: int, every: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.every = port, every
        self.n_requests = self.n_failed = self.n_bytes = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            self.server.n_requests += 1
            fails = self.server.every and self.server.n_requests % self.server.every == 0
            self.server.n_failed += bool(fails)
        if fails:
            self.send_response(503, "Slow Down")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = HTTPConnection("127.0.0.1", self.server.target)
        connection.request(self.command, self.path, body, dict(self.headers))
        found = connection.getresponse()
        content = found.read()
        with self.server.lock:
            self.server.n_bytes += len(content)
        self.send_response(found.status, found.reason)
        for name, value in found.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        length = found.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, format: str, *values: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK", type=Path)
    parser.add_argument("--images", type=positive, default=500)
    parser.add_argument("--size", type=positive, default=128)
    parser.add_argument("--backbone", default="tiny")
    options = parser.parse_args()
    if missing := [name for name in ("moto", "s3fs") if find_spec(name) is None]:
        sys.exit(f"not run: {' and '.join(missing)} not installed: pip install 'moto[server]' s3fs")
    print(machine(), flush=True)
    each = -(-options.images // (len(DEFECT_KINDS) + 1))
    line = make_line(options.work / "line", n_per_class=each, n_normal=each, n_combined=0, size=options.size)
    print(f"{sum(1 for _ in (line / 'images').rglob('*.png'))} images of {options.size} pixels, with maps; seed 0")
    for kind in ("images", "maps"):
        with tarfile.open(options.work / f"{kind}.tar", "w") as tar:
            tar.add(line / kind, arcname=".")

    port = free_port()
    # Any name and secret will do for this server; real ones come from the environment in the same way.
    secrets = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= secrets
    server = subprocess.Popen(
        [sys.executable, "-c", "import sys; from moto.server import main; main(sys.argv[1:])", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        fill(line, port)
        whole, failing = Proxy(port), Proxy(port, EVERY)
        tars = ("images.tar", "maps.tar")
        places = {
            "folder": (str(line / "images"), str(line / "maps"), None),
            "tar": (*(str(options.work / name) for name in tars), None),
            "S3": (f"s3://{BUCKET}/images", f"s3://{BUCKET}/maps", whole),
            "S3, one request in 20 fails": (f"s3://{BUCKET}/images", f"s3://{BUCKET}/maps", failing),
        }
        rows, same = [], True
        for name, (images, maps, proxy) in places.items():
            out = options.work / f"run-{len(rows)}"
            shutil.rmtree(out, ignore_errors=True)
            seconds, cpu = discover(images, maps, out, options.backbone, proxy)
            equal = all((out / table).read_bytes() == (options.work / "run-0" / table).read_bytes() for table in TABLES)
            same &= equal
            asked = (proxy.n_requests, proxy.n_failed, proxy.n_bytes / 1e6) if proxy else (0, 0, 0.0)
            told = [name, f"{seconds:.0f}", f"{cpu:.0f}", *map(str, asked[:2]), f"{asked[2]:.0f}"]
            rows.append([*told, "equal" if equal else "DIFFERENT"])
            print(" · ".join(rows[-1]), flush=True)
    finally:
        server.terminate()
        server.wait()
    print_table(["place", "seconds", "of the processor", "requests", "failed", "MB", "tables"], rows)
    sys.exit(0 if same else 1)


def discover(images: str, maps: str, out: Path, backbone: str, proxy: Proxy | None) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of a run in a process of its own."""
    command = ["discover", images, "--maps", maps, "--out", str(out), "--backbone", backbone, "--quiet"]
    command += ["--classes", str(len(DEFECT_KINDS) + 1), "--set", "features.views=1"]
    address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"} if proxy else {}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "anomalyncd", *command], check=True, stdout=subprocess.DEVNULL, env=os.environ | address
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def fill(line: Path, port: int) -> None:
    """Put the line into a bucket of the server, once that answers."""
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
    for left in range(100, -1, -1):
        try:
            files.mkdir(BUCKET)
            break
        except Exception:
            if not left:
                raise
            time.sleep(0.2)
    for kind in ("images", "maps"):
        files.put(str(line / kind), f"{BUCKET}/{kind}", recursive=True)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    main()
