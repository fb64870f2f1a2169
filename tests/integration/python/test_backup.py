"""The folder of sessions is copied while a server writes to it, and another server goes on from the copy."""

import random
import subprocess
import threading
from pathlib import Path

import pytest

from waiting import wait_for

BACKUP = Path(__file__).parents[3] / "tools" / "backup_sessions.sh"
WORKERS = 4
SESSIONS = 6  # of each worker, at a time


def prompt_of(name, turn):
    return [random.Random(f"{name} {turn}").randrange(3, 250) for _ in range(4)]


class Worker:
    """Feeds its sessions turn by turn, and deletes some; `answers` has what was said in each turn."""

    def __init__(self, server, number):
        self.client = server.client()
        self.random = random.Random(number)
        self.names = [f"{number}-{i}" for i in range(SESSIONS)]
        self.made = SESSIONS
        self.number = number
        self.answers = {}  # name -> [(tokens, position after the turn)]
        self.deleted = set()
        self.failure = None

    def take_turn(self, name):
        said = self.answers.setdefault(name, [])
        answer = self.client.generate(
            prompt_of(name, len(said)), session=name, max_tokens=3, temperature=0, ignore_eos=True
        )
        said.append((answer.token_ids, answer.session.position))

    def work(self, ended):
        try:
            while not ended.is_set():
                place = self.random.randrange(SESSIONS)
                name = self.names[place]
                if self.random.random() < 0.05 and len(self.answers.get(name, [])) > 2:
                    self.names[place] = f"{self.number}-{self.made}"
                    self.made += 1
                    self.client.sessions.delete(name)
                    self.deleted.add(name)
                else:
                    self.take_turn(name)
            for name in self.names:  # one that no backup has
                self.take_turn(name)
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize("rounds", [3])
def test_a_backup_of_a_running_server_is_a_moment_of_it(start, tmp_path, rounds):
    server = start("--session-dir", str(tmp_path / "sessions"), "--snapshot-tokens", "8")
    workers = [Worker(server, number) for number in range(WORKERS)]
    ended = threading.Event()
    threads = [threading.Thread(target=worker.work, args=(ended,)) for worker in workers]
    for thread in threads:
        thread.start()
    backups = []
    try:
        for number in range(rounds):
            before = sum(len(said) for worker in workers for said in list(worker.answers.values()))
            wait_for(
                lambda: any(worker.failure for worker in workers)
                or sum(len(s) for w in workers for s in list(w.answers.values())) > before + 60,
                "turns",
            )
            deleted = {name for worker in workers for name in list(worker.deleted)}
            turns = {n: len(said) for w in workers for n, said in list(w.answers.items())}
            folder = tmp_path / f"backup{number}"
            subprocess.run([BACKUP, tmp_path / "sessions", folder], check=True, timeout=60)
            backups.append((folder, deleted, turns))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [worker.failure for worker in workers] == [None] * WORKERS
    gone = {name for worker in workers for name in worker.deleted}
    answers = {name: said for worker in workers for name, said in worker.answers.items()}

    for folder, deleted, turns in backups:
        restored = start("--session-dir", str(folder))
        assert "names_in_doubt=0" in restored.log_path.read_text()
        client = restored.client()
        found = {info.name: info.position for info in client.sessions.list()}
        assert not deleted & set(found), "were deleted before it began"
        assert set(turns) - gone <= set(found), "were there all the time"
        compared = 0
        for name, position in found.items():
            said = answers[name]
            after = [number for number, (_, there) in enumerate(said) if there == position]
            assert len(after) == 1, f"{name} is at {position}, which is no turn's end"
            assert after[0] + 1 >= turns.get(name, 0), f"{name} lacks turns that had ended"
            if after[0] + 1 == len(said):
                continue  # it was deleted then
            next_tokens, next_position = said[after[0] + 1]
            answer = client.generate(
                prompt_of(name, after[0] + 1),
                session=name,
                max_tokens=3,
                temperature=0,
                ignore_eos=True,
            )
            assert (answer.token_ids, answer.session.position) == (next_tokens, next_position), name
            compared += 1
        assert compared >= WORKERS * SESSIONS // 2
        log = restored.log_path.read_text()
        assert "Z E " not in log, f"nothing is set aside, and no snapshot missing: {log}"
        restored.stop()
