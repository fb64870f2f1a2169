"""The queries of the Grafana dashboard, and a Prometheus to put them to."""

import json
import math
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/dashboards/mneme.json"


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    title: str
    kind: str
    unit: str
    stacked: bool
    queries: tuple[Query, ...]


def fill_in(expr: str, interval: str) -> str:
    """The query that Grafana makes when all instances and models are chosen."""
    expr = expr.replace("$__rate_interval", interval).replace("$__interval", interval)
    filled = re.sub(r'"\$(instance|model_name)"', '".*"', expr)
    if "$" in filled:
        raise ValueError(f"a variable that this script does not know: {expr}")
    return filled


def panels(interval: str, path: Path = DASHBOARD) -> list[Panel]:
    found = []
    for panel in json.loads(path.read_text())["panels"]:
        if panel["type"] == "row":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
        queries = tuple(
            Query(fill_in(target["expr"], interval), target.get("legendFormat", ""))
            for target in panel["targets"]
        )
        found.append(
            Panel(panel["title"], panel["type"], defaults["unit"], stacking != "none", queries)
        )
    return found


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def get(self, path: str, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query_range(self, expr: str, start: float, end: float, step: float):
        """Series as (labels, times, values); values that are no numbers are left out."""
        data = self.get("query_range", query=expr, start=start, end=end, step=step)
        series = []
        for result in data["result"]:
            points = [(float(t), float(v)) for t, v in result["values"]]
            points = [(t, v) for t, v in points if math.isfinite(v)]
            if points:
                times, values = zip(*points)
                series.append((result["metric"], list(times), list(values)))
        return series
