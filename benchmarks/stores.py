"""The same tables from a folder, from tar archives, from an object store, and from one that fails one request in twenty.

    pip install 'moto[server]' s3fs                         # s3, the default
    pip install gcp-storage-emulator gcsfs                  # gs
    npm install azurite; pip install adlfs                  # az; azurite-blob on the PATH
    python benchmarks/stores.py WORK [--store s3|gs|az] [--images 500] [--size 128] [--backbone tiny]

A demo line is made and put into a bucket of the store's emulator on this machine's loopback. `discover` is called with its
maps, from each place, each in a process of its own; a proxy before the server counts requests, and in the last run answers
every twentieth with 503. Prints what each run took, and ends with 1 unless all tables are equal, byte by byte.
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
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from common import machine, positive, print_table

from anomalyncd.demo import DEFECT_KINDS, make_line

TABLES = ("images.csv", "regions.csv", "groups.csv", "classes.json", "tree.json")
EVERY = 20
BUCKET = "line"
# Any name and secret will do for these servers, but for Azure's, which has those that its manual tells everybody. Real ones
# come from the environment in the same way.
AZURITE = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Emulator:
    """A server and its clients.

    packages : that must be there; command : of the server; environment : of a client; {port} stands in both
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]

    def start(self, port: int) -> subprocess.Popen[bytes]:
        words = [word.format(port=port) for word in self.command]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def address(self, port: int) -> dict[str, str]:
        return {name: value.format(port=port) for name, value in self.environment.items()}


EMULATORS = {
    "s3": Emulator(
        ("moto", "s3fs"),
        (sys.executable, "-c", "import sys; from moto.server import main; main(sys.argv[1:])", "-p", "{port}"),
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
        },
    ),
    "gs": Emulator(
        ("gcp_storage_emulator", "gcsfs"),
        (sys.executable, "-m", "gcp_storage_emulator", "start", "--port", "{port}", "--in-memory"),
        {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:{port}", "FSSPEC_GS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"},
    ),
    "az": Emulator(
        ("adlfs",),
        ("azurite-blob", "--blobPort", "{port}", "--inMemoryPersistence", "--skipApiVersionCheck"),
        {
            "AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;AccountName={AZURITE};"
            f"AccountKey={AZURITE_KEY};BlobEndpoint=http://127.0.0.1:{{port}}/{AZURITE};",
        },
    ),
}  # fmt: skip


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
    parser.add_argument("--store", choices=EMULATORS, default="s3")
    parser.add_argument("--images", type=positive, default=500)
    parser.add_argument("--size", type=positive, default=128)
    parser.add_argument("--backbone", default="tiny")
    options = parser.parse_args()
    scheme, emulator = options.store, EMULATORS[options.store]
    if missing := [name for name in emulator.packages if find_spec(name) is None]:
        sys.exit(f"not run: {' and '.join(missing)} not installed, see the head of this file")
    print(machine(), flush=True)
    each = -(-options.images // (len(DEFECT_KINDS) + 1))
    line = make_line(options.work / "line", n_per_class=each, n_normal=each, n_combined=0, size=options.size)
    print(f"{sum(1 for _ in (line / 'images').rglob('*.png'))} images of {options.size} pixels, with maps; seed 0")
    for kind in ("images", "maps"):
        with tarfile.open(options.work / f"{kind}.tar", "w") as tar:
            tar.add(line / kind, arcname=".")

    port = free_port()
    server = emulator.start(port)
    try:
        os.environ |= emulator.address(port)
        fill(line, scheme)
        whole, failing = Proxy(port), Proxy(port, EVERY)
        tars = ("images.tar", "maps.tar")
        places = {
            "folder": (str(line / "images"), str(line / "maps"), None),
            "tar": (*(str(options.work / name) for name in tars), None),
            f"{scheme}://": (f"{scheme}://{BUCKET}/images", f"{scheme}://{BUCKET}/maps", whole),
            f"{scheme}://, one request in 20 fails": (
                f"{scheme}://{BUCKET}/images",
                f"{scheme}://{BUCKET}/maps",
                failing,
            ),
        }
        rows, same = [], True
        for name, (images, maps, proxy) in places.items():
            out = options.work / f"run-{len(rows)}"
            shutil.rmtree(out, ignore_errors=True)
            seconds, cpu = discover(
                images, maps, out, options.backbone, emulator.address(proxy.server_address[1]) if proxy else {}
            )
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


def discover(images: str, maps: str, out: Path, backbone: str, address: dict[str, str]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of a run in a process of its own."""
    command = ["discover", images, "--maps", maps, "--out", str(out), "--backbone", backbone, "--quiet"]
    command += ["--classes", str(len(DEFECT_KINDS) + 1), "--set", "features.views=1"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "anomalyncd", *command], check=True, stdout=subprocess.DEVNULL, env=os.environ | address
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def fill(line: Path, scheme: str) -> None:
    """Put the line into a bucket of the server, once that answers."""
    import fsspec

    files = fsspec.filesystem(scheme, skip_instance_cache=True)
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
