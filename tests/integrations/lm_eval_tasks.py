"""lm-eval with tasks of our own, on a server's /v1/completions."""

import json
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager


def write_task(folder: Path, name: str, description: str, rows: list[dict]) -> None:
    """Puts a task there, with `rows` for samples: FILE in its description (YAML) is where they are."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(f"task: {name}\n" + description.replace("FILE", str(data)))


def evaluate(folder: Path, tasks: list[str], url: str, **model_args) -> dict:
    """Results and samples of tasks in that folder. `model_args` are those of local-completions."""
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"base_url": f"{url}/v1/completions", **model_args},
        tasks=tasks,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
