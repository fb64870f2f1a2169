"""Traffic that makes every metric move: sessions, forks, choices, retries, mistakes, departures."""

import contextlib
import random
import threading
import time

import mneme


class Load:
    """Runs from construction to `stop()`. The server must have room for more than 8 sessions."""

    def __init__(self, target: str, credentials=None, seed: int = 0) -> None:
        self._target = target
        self._credentials = credentials
        self._done = threading.Event()
        self._errors: list[BaseException] = []
        self.completed = 0
        work = [self._converse, self._converse, self._fan_out, self._be_wrong, self._leave]
        work += [self._come_back]
        self._threads = [
            threading.Thread(target=self._run, args=(each, random.Random(seed + i), i))
            for i, each in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, work, rng: random.Random, number: int) -> None:
        try:
            with mneme.Client(
                self._target, credentials=self._credentials, retry=None, timeout=30.0
            ) as client:
                turn = 0
                while not self._done.is_set():
                    work(client, rng, f"load-{number}-{turn}")
                    turn += 1
        except BaseException as error:  # told by stop()
            self._errors.append(error)

    def _prompt(self, rng: random.Random) -> list[int]:
        return [rng.randrange(3, 250) for _ in range(rng.choice([4, 30, 200]))]

    def _converse(self, client, rng, name) -> None:
        """A session of a few turns, a fork of it, and an end."""
        for _ in range(4):
            client.generate(
                self._prompt(rng), session=name, max_tokens=rng.randrange(4, 60), ignore_eos=True
            )
            self.completed += 1
        fork = client.sessions.fork(name, f"{name}-fork")
        client.generate([5, 6], session=fork.name, max_tokens=8)
        client.sessions.delete(fork.name)
        client.sessions.delete(name)

    def _come_back(self, client, rng, name) -> None:
        """More sessions than there are places: they are parked, and stored, and come back."""
        client.generate([9], session=f"resting-{rng.randrange(100)}", max_tokens=2)
        self.completed += 1

    def _fan_out(self, client, rng, name) -> None:
        """Several answers to one prompt; an answer that a token ends; a repeated request."""
        client.generate(self._prompt(rng), n=3, max_tokens=20, ignore_eos=True)
        client.generate(
            self._prompt(rng), max_tokens=50, stop_token_ids=list(range(3, 60)), temperature=1.0
        )
        for _ in range(2):
            client.generate([7, 8, 9], max_tokens=3, idempotency_key=name)
        self.completed += 3

    def _be_wrong(self, client, rng, name) -> None:
        """Requests that are refused, each for another reason."""
        for options in (
            {"top_p": 7.0},
            {"session": "nobody", "create_if_missing": False},
            {"session": "wrong-place", "expected_position": 99},
        ):
            with contextlib.suppress(mneme.MnemeError):
                client.generate([1, 2, 3], max_tokens=1, **options)
        client.sessions.create(f"{name}-short", ttl=0.2)  # expires
        time.sleep(0.3)

    def _leave(self, client, rng, name) -> None:
        """Clients that go away, and deadlines that pass."""
        with client.stream(self._prompt(rng), max_tokens=2000, ignore_eos=True) as stream:
            next(stream)
        with contextlib.suppress(mneme.MnemeError):
            client.generate(self._prompt(rng), max_tokens=4000, ignore_eos=True, timeout=0.05)
        time.sleep(0.1)
