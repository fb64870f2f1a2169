"""The clients' books, and whether the server's log and counters say the same."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Optional

LINE = re.compile(r" request id=(\S+) .*?api=(\w+) .*?outcome=(\w+)(.*)$")
TOKENS = re.compile(r" generated_tokens=(\d+)")


@dataclass(frozen=True)
class Entry:
    outcomes: frozenset[str]  # one of these is right
    tokens: Optional[int]  # generated, where the client knows
    is_logged: bool  # false: it may never have reached the server


class Ledger:
    """Every request has an id, which the server's line about it carries."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.http: Counter = Counter()  # (route, status) -> answers that were read
        self.http_abandoned: Counter = Counter()  # route -> requests whose answer nobody read
        self.seen: Counter = Counter()  # what happened, for the summary
        self.wrong: list[str] = []  # answers that are not what they should be
        self._next = 0

    def new_id(self) -> str:
        self._next += 1
        return f"soak-{self._next}"

    def expect(
        self, request: str, *outcomes: str, tokens: Optional[int] = None, is_logged: bool = True
    ) -> None:
        self.entries[request] = Entry(frozenset(outcomes), tokens, is_logged)
        self.seen["/".join(outcomes)] += 1

    def check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.wrong.append(what)


def read_metrics(text: str) -> Counter:
    """'name{labels}' -> value."""
    values: Counter = Counter()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    return values


def label(name: str, key: str) -> str:
    found = re.search(rf'{key}="([^"]*)"', name)
    return found.group(1) if found else ""


def sum_by(values: Counter, metric: str, *keys: str) -> Counter:
    sums: Counter = Counter()
    for name, value in values.items():
        if name.startswith(metric + "{"):
            sums[tuple(label(name, key) for key in keys)] += value
    return sums


def compare_log(ledger: Ledger, log: str, values: Counter) -> list[str]:
    """Each request has one line with the right outcome, and the lines add up to the counters."""
    problems = []
    lines: dict[str, list[tuple[str, str]]] = {}
    outcomes: Counter = Counter()
    calls: Counter = Counter()
    tokens = 0
    for line in log.splitlines():
        found = LINE.search(line)
        if not found:
            continue
        request, api, outcome, rest = found.groups()
        lines.setdefault(request, []).append((outcome, rest))
        outcomes[(outcome,)] += 1
        calls[api] += 1
        generated = TOKENS.search(rest)
        tokens += int(generated.group(1)) if generated else 0
    for request, entry in ledger.entries.items():
        own = lines.get(request, [])
        if len(own) != 1:
            if own or entry.is_logged:
                problems.append(f"{request} ({'/'.join(entry.outcomes)}) has {len(own)} lines")
            continue
        outcome, rest = own[0]
        if outcome not in entry.outcomes:
            problems.append(f"{request}: {'/'.join(entry.outcomes)} to us, logged as {outcome}")
        elif entry.tokens is not None and f" generated_tokens={entry.tokens} " not in rest:
            problems.append(f"{request}: {entry.tokens} tokens to us, logged as {rest}")
    strangers = [r for r in lines if r.startswith("soak-") and r not in ledger.entries]
    if strangers:
        problems.append(f"{len(strangers)} logged requests are not ours: {strangers[:3]}")

    counted = sum_by(values, "mneme_requests_total", "outcome")
    for outcome in set(outcomes) | set(counted):
        if counted[outcome] != outcomes[outcome]:
            problems.append(
                f"{outcome[0]}: counted {counted[outcome]:.0f}, logged {outcomes[outcome]}"
            )
    rpcs = sum_by(values, "mneme_rpcs_total", "method")[("Generate",)]
    if rpcs != calls["grpc"]:
        problems.append(f"Generate: counted {rpcs:.0f} calls, logged {calls['grpc']}")
    generated = sum(v for n, v in values.items() if n.startswith("mneme_generation_tokens_total"))
    if generated != tokens:
        problems.append(f"generated tokens: counted {generated:.0f}, logged {tokens}")
    return problems


def compare_http(ledger: Ledger, values: Counter) -> list[str]:
    """The server counted each answer that a client read, and no more than there were requests."""
    problems = []
    counted = sum_by(values, "mneme_http_requests_total", "route", "status")
    for key, seen in ledger.http.items():
        if counted[key] < seen:
            problems.append(f"HTTP {key}: counted {counted[key]:.0f}, read {seen}")
    for route in {route for route, _ in counted} - {"none"}:
        total = sum(count for (r, _), count in counted.items() if r == route)
        seen = sum(count for (r, _), count in ledger.http.items() if r == route)
        if not seen <= total <= seen + ledger.http_abandoned[route]:
            problems.append(
                f"HTTP {route}: counted {total:.0f}, read {seen}, left {ledger.http_abandoned[route]}"
            )
    return problems
