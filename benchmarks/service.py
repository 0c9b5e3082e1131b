"""The service under a crowd of good and bad clients.

    python benchmarks/service.py RUN IMAGES [--maps DIR | --masks DIR] [--requests 1000] [--clients 16]
        [--good 0.5] [--limit N]

Starts `anomalyncd serve RUN` as a process of its own and sends it requests of every kind in random order. A good answer must
have the class, and to 1e-3 the probabilities, that `predict` gives here; a bad request must get its documented status. At
the end the process is told to stop, and every file that it opened while it served is looked at: there must be none outside
the run and Python itself, whatever names the clients sent.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import evenly, machine, positive, print_table
from service_cases import MAX_MB, MOST_IMAGES, TOKEN, Case, Requests

from anomalyncd.data.gather import gather
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.progress import Terminal

# Every file that Python opens from now on is written down, one a line.
SERVER = """
import os, sys
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(lambda event, given: event == "open" and os.write(log, f"{given[0]}\\n".encode("utf-8", "replace")))
from anomalyncd.cli import main
main()
"""
READ_SECONDS = 3
TOLERANCE = 1e-3


@dataclass
class Tally:
    """What was seen of one kind of request."""

    status: int
    sent: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)


class Crowd:
    """Clients that work through a list of requests."""

    def __init__(self, port: int, cases: Sequence[Case], check: Callable[[Case, Any], str]) -> None:
        self.port, self.check = port, check
        self.todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in cases:
            self.todo.put(case)
        self.tallies: dict[str, Tally] = {}
        self.seconds: list[float] = []  # of requests with one good image
        self.retries = 0
        self._lock = threading.Lock()

    def run(self, clients: int) -> float:
        """Seconds that it took."""
        started = time.perf_counter()
        threads = [threading.Thread(target=self._client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started

    def _client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while True:
            try:
                case = self.todo.get_nowait()
            except queue.Empty:
                return
            started = time.perf_counter()
            try:
                status, content = self.send(connection, case)
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, content = 0, repr(error)
                connection.close()
            wrong = f"status {status}: {str(content)[:200]}" if status != case.status else self.check(case, content)
            with self._lock:
                tally = self.tallies.setdefault(case.kind, Tally(case.status))
                tally.sent += 1
                tally.right += not wrong
                if wrong:
                    tally.wrong.append(wrong)
                elif len(case.images) == 1:
                    self.seconds.append(time.perf_counter() - started)

    def send(self, connection: http.client.HTTPConnection, case: Case) -> tuple[int, Any]:
        headers = {**case.headers, **({"Authorization": f"Bearer {case.token}"} if case.token else {})}
        while True:
            if case.stall:
                connection.putrequest(case.method, case.path)
                for name, value in {**headers, "Content-Length": str(len(bytes(case.body)) + 1)}.items():  # type: ignore[arg-type]
                    connection.putheader(name, value)
                connection.endheaders(bytes(case.body))  # type: ignore[arg-type]
            else:
                with suppress(BrokenPipeError, ConnectionResetError):  # refused while it was sent: the answer is there
                    connection.request(case.method, case.path, case.body, headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
            if case.stall or answer.status == 413:
                connection.close()
            if answer.status != 503:
                return answer.status, content
            with self._lock:
                self.retries += 1
            time.sleep(float(answer.headers["Retry-After"]))


def checker(ids: Sequence[str], labels: Sequence[int], probabilities: Any) -> Callable[[Case, Any], str]:
    """What is wrong with an answer, in words; empty where nothing is."""
    expected = {name: (int(label), row) for name, label, row in zip(ids, labels, probabilities, strict=True)}

    def check(case: Case, content: Any) -> str:
        if case.status != 200:
            return "" if isinstance(content.get("detail"), str) else f"no words: {content}"
        for name, found in zip(case.images, content["images"], strict=True):
            if name is None:
                if "error" not in found:
                    return "an unreadable image has a class"
                continue
            label, row = expected[name]
            off = float(np.abs(np.array(list(found["probabilities"].values())) - row).max())
            if found["label"] != label or off > TOLERANCE:
                return f"{name}: class {found['label']} instead of {label}, probabilities off by {off:.4f}"
        return ""

    return check


def start(run: Path, opened: Path) -> tuple[subprocess.Popen[str], int]:
    """The process and its port, once it serves."""
    options = [
        "--port",
        "0",
        "--max-mb",
        str(MAX_MB),
        "--max-images",
        str(MOST_IMAGES),
        "--read-timeout",
        str(READ_SECONDS),
    ]
    command = [sys.executable, "-c", SERVER, str(opened), "serve", str(run), *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ANOMALYNCD_TOKEN": TOKEN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    if "http://" not in line:
        raise SystemExit(process.communicate()[1])
    return process, int(line.split("127.0.0.1:")[1].split()[0])


def strangers(opened: Sequence[str], run: Path) -> list[str]:
    """Files that a service has no business with."""
    own = (str(run.resolve()), sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parent.parent / "src"))
    return [name for name in opened if not name.isdecimal() and not os.path.abspath(name).startswith(own)]


def metric(port: int, start_of_line: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start_of_line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--maps", type=Path)
    parser.add_argument("--masks", type=Path)
    parser.add_argument("--requests", type=positive, default=1000)
    parser.add_argument("--clients", type=positive, default=16)
    parser.add_argument("--good", type=float, default=0.5, help="share of requests that are good")
    parser.add_argument("--limit", type=positive, help="images to send, evenly spread; all by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    needs = "map" if options.maps else "mask" if options.masks else "image"
    inputs = gather(options.images, maps=options.maps, masks=options.masks, bare=needs == "image")
    inputs = replace(inputs, samples=evenly(inputs.samples, options.limit))
    local = AnomalyNCD.load(options.run, progress=Terminal(bars=False)).predict(inputs)
    print(machine(), f"\n{options.run.name}: {len(inputs)} images, needs {needs}, seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        outside, opened = Path(temporary) / "outside.png", Path(temporary) / "opened.txt"
        outside.write_bytes(Path(inputs.samples[0].image).read_bytes())  # type: ignore[arg-type]
        requests = Requests(inputs.samples, needs, outside)
        cases = [
            requests.good(rng) if rng.random() < options.good else requests.bad(rng) for _ in range(options.requests)
        ]
        process, port = start(options.run, opened)
        try:
            n_before = len(opened.read_text(encoding="utf-8").splitlines())
            crowd = Crowd(
                port, cases, checker(local.images["image"].tolist(), local.labels.tolist(), local.probabilities)
            )
            seconds = crowd.run(options.clients)
            errors_500 = metric(port, 'anomalyncd_requests_total{path="/v1/predict",status="500"}')
            batches = metric(port, "anomalyncd_batch_images_count")
            images = metric(port, "anomalyncd_batch_images_sum")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        odd = strangers(opened.read_text(encoding="utf-8").splitlines()[n_before:], options.run)

    tallies = crowd.tallies
    rows = [[kind, str(t.status), str(t.sent), str(t.right)] for kind, t in sorted(tallies.items())]
    rows.append(["all", "", str(sum(t.sent for t in tallies.values())), str(sum(t.right for t in tallies.values()))])
    print_table(["request", "status", "sent", "right"], rows)
    for kind, tally in tallies.items():
        for words in tally.wrong[:3]:
            print(f"wrong: {kind}: {words}")
    p50, p95, p99 = np.percentile(crowd.seconds, [50, 95, 99]) if crowd.seconds else (np.nan,) * 3
    print(
        f"\n{options.requests} requests of {options.clients} clients in {seconds:.1f} s: "
        f"{options.requests / seconds:.1f} a second, {images / seconds:.1f} images a second\n"
        f"one good image: p50 {p50:.3f} s, p95 {p95:.3f} s, p99 {p99:.3f} s\n"
        f"{images / max(1, batches):.1f} images in a batch, {crowd.retries} times told to come back later, "
        f"{errors_500:.0f} errors 500, {len(odd)} files opened outside the run {odd[:3] or ''}\n"
        f"stopped with exit code {process.returncode}, {len(errors.splitlines())} lines in its log"
    )
    all_right = all(t.right == t.sent for t in tallies.values())
    raise SystemExit(0 if all_right and not errors_500 and not odd and process.returncode == 0 else 1)


if __name__ == "__main__":
    main()
