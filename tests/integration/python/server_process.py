"""A real server process on a free port."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Optional

from mneme import Client

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


def device_environment() -> dict[str, str]:
    """Of servers that compute where MNEME_TEST_DEVICE says, and share that device with others."""
    device = os.environ.get("MNEME_TEST_DEVICE")
    return {"MNEME_DEVICE": device, "MNEME_STATE_MEMORY": "1GiB"} if device else {}


class ServerProcess:
    """Starts on construction; `client()` talks to it, `stop()` asserts a clean end.

    `environment` is added to the server's; `client_options` are for every client.
    """

    def __init__(
        self,
        binary: Path,
        model: Path,
        log: Path,
        *flags: str,
        environment: Optional[dict[str, str]] = None,
        client_options: Optional[dict[str, Any]] = None,
    ) -> None:
        self.log_path = log
        self._client_options = client_options or {}
        self._clients: list[Client] = []
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [binary, "--model", model, "--grpc-port", "0", "--http-port", "0", *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("MNEME_")},
                    **device_environment(),
                    **(environment or {}),
                },
            )
        self.port = self._wait_for_port("listening")
        self.http_port = self._wait_for_port("http")
        self.target = f"127.0.0.1:{self.port}"
        try:
            self.client().wait_until_ready(START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def _wait_for_port(self, what: str) -> int:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            found = re.search(rf"^{what} on [^\n]*?:(\d+)$", self.log, re.MULTILINE)
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the server exited with {self.process.returncode}:\n{self.log}"
                )
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"the server does not say where it listens:\n{self.log}")

    def client(self, **options) -> Client:
        """A client that does not repeat requests, unless told to."""
        client = Client(
            self.target,
            **{"retry": None, "timeout": 60.0, "api_key": "", **self._client_options, **options},
        )
        self._clients.append(client)
        return client

    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_TIMEOUT_S) -> int:
        return self.process.wait(timeout)

    def stop(self) -> None:
        """Ends the server as an operator would."""
        if self.alive():
            self.signal()
        try:
            status = self.wait()
        finally:
            self.kill()
        assert status == 0, f"exit status {status}:\n{self.log[-4000:]}"

    def kill(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self.alive():
            self.process.kill()
            self.process.wait()
