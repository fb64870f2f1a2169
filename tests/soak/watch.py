"""Memory, files and threads of a process, and what may be said of them after a while."""

import asyncio
import os
import time
from pathlib import Path


class Watch:
    """Samples of /proc once a second."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.times: list[float] = []
        self.resident: list[int] = []  # bytes

    async def run(self) -> None:
        start = time.monotonic()
        while True:
            self.times.append(time.monotonic() - start)
            self.resident.append(self.status("VmRSS") * 1024)
            await asyncio.sleep(1)

    def status(self, key: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
        raise KeyError(key)

    def files(self) -> int:
        return len(os.listdir(self._folder / "fd"))

    def threads(self) -> int:
        return self.status("Threads")

    def growth_per_minute(self) -> float:
        """Bytes, by least squares over the second half."""
        half = len(self.times) // 2
        times, resident = self.times[half:], self.resident[half:]
        if len(times) < 2:
            return 0.0
        mean_time, mean = sum(times) / len(times), sum(resident) / len(resident)
        slope = sum((t - mean_time) * (r - mean) for t, r in zip(times, resident)) / sum(
            (t - mean_time) ** 2 for t in times
        )
        return slope * 60
