#!/usr/bin/env python3
"""Tests dashboard, rules and alerts with a real server and a real Prometheus.

Starts both, with servers of three families, loads them, and fails unless
  - promtool accepts the configuration, the rules, the rules' tests and the metrics' text,
  - Prometheus scrapes the server and evaluates every rule without an error,
  - every query of every panel, and every recording rule, returns data,
  - every alert has a test in deploy/prometheus/tests that sees it fire, and names metrics that exist.

usage: check_monitoring.py --bin-dir DIR [--seconds N] [--png DIR]
  --bin-dir DIR   with mneme-server and mneme-make-model
  --seconds N     of load; default 30, and no fewer than 20, as rules look back
  --png DIR       also draws the main panels there (needs matplotlib)

The server speaks TLS, so that there is a certificate to watch. Needs prometheus and promtool (Debian
package prometheus), openssl, and the Python client.
"""

import argparse
import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import mneme

sys.path.insert(0, str(Path(__file__).parent))

from dashboard import ROOT, Prometheus, panels
from load import Load

DEPLOY = ROOT / "deploy/prometheus"
RATE_INTERVAL = "10s"  # of the panels: ten scrapes
# Servers of these have every metric together: of memories that are routed to, make engrams, and are
# trained.
SHAPES = ("tiny", "gpt2-with-memoria-tiny", "titans-mac-tiny")
# Metrics that alerts may name although this server has none of them: of Prometheus itself.
FOREIGN = {"up"}

failures: list[str] = []


def check(ok: bool, what: str) -> None:
    if not ok:
        failures.append(what)
        print(f"FAILED  {what}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def promtool(*arguments: str, stdin: str = "") -> None:
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, text=True, cwd=DEPLOY
    )
    name = " ".join(arguments)
    check(done.returncode == 0, f"promtool {name}:\n{done.stdout}{done.stderr}")
    if done.returncode == 0:
        print(f"ok      promtool {name}")


@contextlib.contextmanager
def running(command: list, log: Path):
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait_for(url: str, process, log: Path, timeout: float = 60) -> str:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(url, timeout=5).read().decode()
        time.sleep(0.1)
    raise SystemExit(f"{url} does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """One that is its own authority, and its key."""
    certificate, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "30", "-subj", "/CN=server"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def prometheus_files(folder: Path, metrics_ports: list[int]) -> Path:
    """The deployed configuration, for this server, and quicker."""
    for name in ("recording_rules.yml", "alerts.yml"):
        text = (DEPLOY / name).read_text()
        (folder / name).write_text(text.replace("interval: 15s", "interval: 1s"))
    text = (DEPLOY / "prometheus.yml").read_text()
    text = text.replace("interval: 15s", "interval: 1s")
    targets = '", "'.join(f"127.0.0.1:{port}" for port in metrics_ports)
    text = re.sub(r"mneme:\d+", targets, text)
    (folder / "prometheus.yml").write_text(text)
    return folder / "prometheus.yml"


def check_queries(prometheus: Prometheus, start: float) -> None:
    def has_data(expr: str) -> bool:
        return bool(prometheus.query_range(expr, start, time.time(), 1))

    count = 0
    for panel in panels(RATE_INTERVAL):
        for query in panel.queries:
            count += 1
            check(has_data(query.expr), f'panel "{panel.title}" has no data: {query.expr}')
    print(f"        {count} queries of panels")

    names = set(prometheus.get("label/__name__/values")) | FOREIGN
    tested = "".join(path.read_text() for path in (DEPLOY / "tests").glob("*.yml"))
    fires = set(re.findall(r"- labels: 'ALERTS\{alertname=\"(\w+)\", alertstate=\"firing\"", tested))
    fires |= set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", tested))
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    for rule in rules:
        name = rule["name"]
        check(rule["health"] == "ok", f"rule {name}: {rule.get('lastError', rule['health'])}")
        if rule["type"] == "recording":
            check(has_data(name), f"recording rule {name} has no data")
        else:
            check(name in fires, f"alert {name} has no test in which it fires")
            used = set(re.findall(r"\b(?:instance:|process_|mneme_|up\b)[\w:]*", rule["query"]))
            check(used <= names, f"alert {name} asks for what is not there: {used - names}")
    print(f"        {len(rules)} rules")


def check_targets(prometheus: Prometheus) -> None:
    for target in prometheus.get("targets")["activeTargets"]:
        if target["labels"]["job"] == "mneme":
            check(target["health"] == "up", f"scrape: {target['lastError']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            print(f"skipped: {program} is not installed (Debian package prometheus)")
            return 77

    promtool("check", "config", "--syntax-only", "prometheus.yml")
    promtool("check", "rules", "recording_rules.yml", "alerts.yml")
    promtool("test", "rules", *(f"tests/{path.name}" for path in sorted((DEPLOY / "tests").glob("*.yml"))))

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        prometheus_log = folder / "prometheus.log"
        certificate, key = make_certificate(folder)
        own_port, servers = free_port(), []
        for shape in SHAPES:
            model, server_log = folder / shape, folder / f"{shape}.log"
            subprocess.run(
                [arguments.bin_dir / "mneme-make-model", "--shape", shape, "--out", model],
                check=True,
                capture_output=True,
            )
            grpc_port, metrics_port = free_port(), free_port()
            server = stack.enter_context(
                running(
                    [
                        arguments.bin_dir / "mneme-server",
                        *("--model", model, "--max-sessions", "24", "--metrics-compat", "vllm"),
                        *("--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port)),
                        *("--ssl-certfile", certificate, "--ssl-keyfile", key),
                        *("--http-port", "0", "--session-dir", folder / f"{shape}-sessions"),
                        *("--host-state-memory", "4MiB", "--prefix-cache-memory", "4MiB"),
                    ],
                    server_log,
                )
            )
            servers.append((grpc_port, metrics_port))
            wait_for(f"http://127.0.0.1:{metrics_port}/metrics", server, server_log)
        own = stack.enter_context(
            running(
                [
                    "prometheus",
                    f"--config.file={prometheus_files(folder, [port for _, port in servers])}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{own_port}",
                ],
                prometheus_log,
            )
        )
        url = f"http://127.0.0.1:{own_port}"
        wait_for(f"{url}/-/ready", own, prometheus_log)
        start = time.time()
        credentials = mneme.tls_credentials(certificate)
        loads = [Load(f"127.0.0.1:{port}", credentials) for port, _ in servers]
        time.sleep(arguments.seconds)
        for load in loads:
            load.stop()
        print(f"        {sum(load.completed for load in loads)} requests of the load were answered")
        time.sleep(2)  # for the last scrape and the rules over it

        prometheus = Prometheus(url)
        check_targets(prometheus)
        check_queries(prometheus, start)
        text = wait_for(f"http://127.0.0.1:{servers[0][1]}/metrics", server, server_log)
        # promtool does not like the names of vLLM.
        own_text = "".join(
            line for line in text.splitlines(keepends=True) if not re.search(r"\bvllm:", line)
        )
        promtool("check", "metrics", stdin=own_text)
        if arguments.png is not None:
            from render_dashboard import render

            for path in render(prometheus, arguments.png, start, time.time()):
                print(f"        {path}")
    print(f"{len(failures)} failures" if failures else "All checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
