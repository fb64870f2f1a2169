"""The parts of the comparison of stored states that need neither model nor GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from demo import report, state_error  # noqa: E402


def write_logits(path: Path, logits: np.ndarray, dtype: str = "F32") -> None:
    begin, end = 8, 8 + logits.nbytes
    header = json.dumps({"logits": {"dtype": dtype, "shape": logits.shape, "data_offsets": [begin, end]}})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(begin) + logits.tobytes())


def test_rows_are_read_from_the_middle_of_a_file(tmp_path: Path) -> None:
    logits = np.arange(60, dtype=np.float32).reshape(12, 5)
    write_logits(tmp_path / "l.safetensors", logits)
    rows = np.array([0, 3, 11])
    assert np.array_equal(state_error.read_logits(tmp_path / "l.safetensors", rows), logits[rows])


def test_logits_of_another_type_are_refused(tmp_path: Path) -> None:
    write_logits(tmp_path / "l.safetensors", np.zeros((2, 2), np.float32), "F16")
    with pytest.raises(SystemExit, match="F16"):
        state_error.read_logits(tmp_path / "l.safetensors", np.array([0]))


def test_kept_rows_hold_the_last_one_and_what_predicts_values() -> None:
    rows = state_error.places(100, 40, np.array([7, 41, 90]))
    assert rows.tolist() == [0, 6, 40, 80, 89, 99]


def test_stretches_cover_a_text_without_gap() -> None:
    assert list(state_error.stretches(100_000))[-2:] == [(16384, 65536), (65536, 100_000)]
    assert list(state_error.stretches(500)) == [(0, 500)]


def test_errors_are_relative_and_by_stretch() -> None:
    rows = np.array([0, 10, 2000, 3000])
    exact = np.tile(np.array([3.0, 4.0], np.float32), (4, 1))
    logits = exact.copy()
    logits[2] = [3.5, 4.0]
    logits[3] = [4.0, 3.0]
    found = state_error.errors(logits, exact, rows, 4000)
    assert [part["until"] for part in found["stretches"]] == [1024, 4000]
    assert found["stretches"][0]["error"] == 0
    assert found["stretches"][1]["error"] == pytest.approx((2.25 / 50) ** 0.5)
    assert found["worst"] == pytest.approx(2**0.5 / 5)
    assert found["differ"] == 0.25


def test_values_are_right_where_the_token_before_them_predicts_them() -> None:
    ids = np.array([1, 2, 0, 2])
    rows = np.array([0, 1, 2])
    logits = np.eye(3, dtype=np.float32)[[2, 1, 2]]  # row 0 says 2, row 1 says 1, row 2 says 2
    counts = state_error.values_right(logits, rows, ids, np.array([1, 2, 3]))
    assert (counts["right"], counts["questions"]) == (2, 3)


def test_table_of_states_has_a_line_for_each_run() -> None:
    right = {"questions": 10, "right": 9, "accuracy": 0.9, "low": 0.6, "high": 0.98}
    run = {"name": "cuda:f16", "error": 1e-3, "worst": 2e-3, "values": right}
    run["stretches"] = [{"until": 1024, "error": 5e-4, "differ": 0.0}]
    text = report.states_table({"runs": [run], "reference": right})
    assert "| cuda:f16 | 5.0e-04 | 1.0e-03 | 2.0e-03 | 90.0 (60 to 98) |" in text.splitlines()
