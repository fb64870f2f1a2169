"""The evaluation, against servers of which one knows how well they remember."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mneme")

from ideal_server import IdealServer

from demo import evaluate, report

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Evaluates a server with these properties."""
    servers: list[IdealServer] = []

    def evaluated(*arguments: str, **properties: Any) -> dict[str, Any]:
        server = IdealServer(**properties)
        servers.append(server)
        out = tmp_path / f"{len(servers)}.json"
        evaluate.main(["--server", server.address, "--name", "ideal", "--out", str(out), *arguments])
        assert not server.sessions, "sessions were left behind"
        assert server.most_sessions <= 64, "more sessions than the server has room for"
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return result

    yield evaluated
    for server in servers:
        server.stop()


def cell(result: dict[str, Any], kind: str, distance: int, suite: str = "recall") -> dict[str, Any]:
    found = report.find(result[suite], kind=kind, distance=distance)
    assert found is not None
    return found


def test_perfect_memory_is_right_about_everything_it_was_told(run: Run) -> None:
    result = run("--quick")
    for distance in (256, 1024):
        assert cell(result, "told", distance)["right"] == 24
        assert cell(result, "told", distance)["questions"] == 24
        assert cell(result, "control", distance)["questions"] == 24
    assert cell(result, "updated", 256, "updates")["right"] == 24
    sessions = result["sessions"]
    assert sessions["come_back"]["right"] == sessions["come_back"]["questions"] == 16
    assert sessions["come_back"]["acknowledged_right"] == sessions["come_back"]["resumed"] == 16
    assert sessions["diverge"]["all_six_right"] == sessions["diverge"]["parent_unmoved"] == 2
    assert sessions["interleaved"]["mixed"] == 0
    assert sessions["interleaved"]["right"] == sessions["interleaved"]["questions"]
    assert sessions["interleaved"]["same_answers_alone"] == 24


def test_control_without_the_fact_stays_at_chance_even_with_perfect_memory(run: Run) -> None:
    result = run("--suites", "recall", "--distances", "256", "--facts", "16", "--questions", "300")
    control = cell(result, "control", 256)
    # Guesses arrive in another order every time: four standard deviations of their number.
    expected = control["questions"] * control["chance"]
    assert abs(control["right"] - expected) < 4 * math.sqrt(expected)


def test_distance_is_that_between_the_fact_and_its_question(run: Run) -> None:
    result = run("--suites", "recall", "--quick", "--distances", "256,1024", span=512)
    assert cell(result, "told", 256)["right"] == 24
    assert cell(result, "told", 1024)["high"] < 0.5
    assert abs(cell(result, "told", 1024)["distance_mean"] - 1024) < 32


def test_facts_are_asked_only_once_all_are_told(run: Run) -> None:
    result = run("--suites", "recall", "--distances", "64", "--facts", "16", "--questions", "24")
    told = cell(result, "told", 64)
    assert told["questions"] == told["right"] == 24
    # A turn has 10 words at least: of 16 facts, the first lie too far back by the time the last is told.
    assert told["distance_max"] < 64 + 32


def test_old_values_of_changed_facts_are_told_from_other_errors(run: Run) -> None:
    result = run("--suites", "updates", "--quick", stubborn=True)
    updated = cell(result, "updated", 256, "updates")
    assert updated["right"] == 0
    assert updated["outcomes"]["old value"] == 24


def test_sessions_that_mix_are_noticed(run: Run) -> None:
    result = run("--suites", "sessions", "--quick", leaks=True)
    assert result["sessions"]["interleaved"]["mixed"] == 23  # all but the one that was told last
    assert result["sessions"]["diverge"]["all_six_right"] == 0


def test_conversations_are_the_same_for_the_same_seed(run: Run, tmp_path: Path) -> None:
    asked = []
    for name in ("a", "b"):
        answers = tmp_path / name
        run("--suites", "recall", "--quick", "--answers", str(answers))
        lines = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
        asked.append(sorted((line["question"], line["expected"], line["distance"]) for line in lines))
    assert asked[0] == asked[1]


def test_tables_and_plot_are_made_from_results(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    paths = []
    for suites in ("recall", "updates,sessions"):
        result = run("--quick", "--suites", suites)
        paths.append(str(tmp_path / f"{suites}.json"))
        Path(paths[-1]).write_text(json.dumps(result), encoding="utf-8")
    capsys.readouterr()
    report.main(["table", *paths])
    text = capsys.readouterr().out
    assert "| ideal | 100.0 (86 to 100) | 100.0 (86 to 100) |" in text
    assert "| ideal | 100.0 (86 to 100) | 0.0 |" in text
    assert "| 0 of 24 | 24 of 24 |" in text
    pytest.importorskip("matplotlib")
    picture = tmp_path / "recall.png"
    report.main(["plot", *paths, "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_cells_that_were_measured_twice_are_not_merged_silently() -> None:
    result = {
        "name": "a",
        "model": {"fingerprint": "1"},
        "recall": [{"kind": "told", "facts": 4, "distance": 8}],
    }
    assert len(report.merged([result])[0]["recall"]) == 1
    with pytest.raises(SystemExit, match="twice"):
        report.merged([result, result])
    with pytest.raises(SystemExit, match="different models"):
        report.merged([result, {**result, "model": {"fingerprint": "2"}}])
