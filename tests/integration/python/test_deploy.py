"""The contents of deploy/ and the Dockerfile agree with the server, and with each other.

tools/check_deploy.sh checks their form against schemas, which needs a network.
"""

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes/base"
COMPONENTS = DEPLOY / "kubernetes/components"
OVERLAYS = DEPLOY / "kubernetes/overlays"
DASHBOARD = DEPLOY / "grafana/dashboards/mneme.json"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
CONFIG_TEXT = (BASE / "mneme.textproto").read_text()
# The server adds this to --shutdown-timeout for last messages.
LAST_MESSAGES_S = 2


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def help_of(*command: object) -> str:
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def server_help(bin_dir: Path) -> str:
    return help_of(bin_dir / "mneme-server")


@pytest.fixture(scope="module")
def health_help(bin_dir: Path) -> str:
    return help_of(bin_dir / "mneme", "health")


@pytest.fixture(scope="module")
def compose() -> dict:
    return load(DEPLOY / "compose.yaml")


@pytest.fixture(scope="module")
def pod() -> dict:
    return load(BASE / "statefulset.yaml")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str
    parser.read(DEPLOY / "systemd/mneme-server.service")
    return parser


def seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def in_config(field: str) -> int:
    return int(re.search(rf"^\s*{field}: (\d+)$", CONFIG_TEXT, re.M).group(1))


def default_of(flag: str, server_help: str) -> str:
    return re.search(rf"^  {flag} .*?\[default (\w+)", server_help, re.M | re.DOTALL).group(1)


def yaml_files() -> list[Path]:
    return [path for ending in ("yaml", "yml") for path in sorted(DEPLOY.glob(f"**/*.{ending}"))]


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_file_is_yaml(path):
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(path.read_text()))


def test_every_variable_is_one_that_a_program_reads(server_help, health_help):
    known = set(re.findall(r"MNEME_\w+", server_help + health_help))
    # Variables of the build, and of compose.yaml itself.
    known |= {"MNEME_CUDA", "MNEME_TESTS", "MNEME_IMAGE"}
    paths = [ROOT / "Dockerfile", DEPLOY / "systemd/mneme.env", *DEPLOY.glob("compose*.yaml")]
    paths += (DEPLOY / "kubernetes").glob("**/*.yaml")
    for path in paths:
        used = set(re.findall(r"\bMNEME_[A-Z_]*[A-Z]", path.read_text()))
        assert used <= known, path


def test_probes_and_health_checks_are_calls_that_mneme_knows(health_help):
    words = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])", DOCKERFILE, re.DOTALL).group(1)
    commands = [yaml.safe_load(words)]
    patch = load(COMPONENTS / "tls/statefulset.yaml")
    container = patch["spec"]["template"]["spec"]["containers"][0]
    commands += [container[f"{probe}Probe"]["exec"]["command"] for probe in
                 ("startup", "readiness", "liveness")]  # fmt: skip
    for command in commands:
        assert command[:2] == ["mneme", "health"]
        for flag in command[2:]:
            if flag.startswith("--"):
                assert f"  {flag.partition('=')[0]} " in health_help


def test_flags_of_pods_are_the_servers(pod, server_help):
    for flag in pod["containers"][0]["args"]:
        assert f"  {flag.partition('=')[0]} " in server_help


def test_the_config_map_is_a_configuration(bin_dir):
    subprocess.run(
        [bin_dir / "mneme-server", "--config", BASE / "mneme.textproto", "--print-config"],
        check=True,
        capture_output=True,
    )


def test_the_environment_file_is_a_configuration(bin_dir):
    """With what it has in comments, too."""
    lines = re.findall(r"^#?(MNEME_\w+)=(.*)$", (DEPLOY / "systemd/mneme.env").read_text(), re.M)
    assert len(lines) > 5
    subprocess.run(
        [bin_dir / "mneme-server", "--print-config"],
        env=dict(lines),
        check=True,
        capture_output=True,
    )


def test_the_secret_is_a_file_of_keys(bin_dir, golden_model, tmp_path):
    keys = tmp_path / "api_keys"
    keys.write_text(load(DEPLOY / "kubernetes/secret.example.yaml")["stringData"]["api_keys"])
    command = [bin_dir / "mneme-server", "--model", golden_model, "--host", "0.0.0.0"]
    command += ["--api-key-file", keys, "--grpc-port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout.readline().startswith(b"listening on")
        server.terminate()
        assert server.wait(60) == 0


def test_ports_agree(compose, pod, server_help):
    ports = {
        "grpc": int(default_of("--grpc-port", server_help)),
        "http": int(default_of("--http-port, --port", server_help)),
    }
    exposed = re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.M).group(1)
    assert set(map(int, exposed.split())) == set(ports.values())

    published = [port.split(":")[-1] for port in compose["services"]["mneme"]["ports"]]
    assert set(map(int, published)) == set(ports.values())
    metrics = compose["services"]["mneme"]["environment"]["MNEME_METRICS_PORT"]
    assert f'targets: ["mneme:{metrics}"]' in (DEPLOY / "prometheus/prometheus.yml").read_text()

    container = pod["containers"][0]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert named == {
        "grpc": in_config("grpc_port"),
        "http": in_config("http_port"),
        "metrics": in_config("port"),
    }
    assert named.items() >= ports.items()
    for probe in ("startup", "readiness", "liveness"):
        assert container[f"{probe}Probe"]["grpc"]["port"] == named["grpc"]
    for service in yaml.safe_load_all((BASE / "services.yaml").read_text()):
        offered = {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}
        assert offered == ports
    monitor = load(COMPONENTS / "monitoring/pod_monitor.yaml")
    assert [end["port"] for end in monitor["spec"]["podMetricsEndpoints"]] == ["metrics"]


def test_nothing_is_killed_while_it_drains(compose, pod, unit, server_help):
    server = compose["services"]["mneme"]
    drain = seconds(server["environment"]["MNEME_SHUTDOWN_TIMEOUT"]) + LAST_MESSAGES_S
    assert seconds(server["stop_grace_period"]) > drain

    drain = in_config("shutdown_timeout_ms") / 1000 + LAST_MESSAGES_S
    program, pause = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(pause) + drain

    drain = seconds(default_of("--shutdown-timeout", server_help)) + LAST_MESSAGES_S
    assert seconds(unit["Service"]["TimeoutStopSec"]) > drain


def test_every_selector_finds_the_pods(pod):
    labels = load(BASE / "statefulset.yaml")["spec"]["template"]["metadata"]["labels"]
    selectors = [load(BASE / "statefulset.yaml")["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in
                  yaml.safe_load_all((BASE / "services.yaml").read_text())]  # fmt: skip
    selectors += [
        load(BASE / "pod_disruption_budget.yaml")["spec"]["selector"]["matchLabels"],
        load(BASE / "network_policy.yaml")["spec"]["podSelector"]["matchLabels"],
        load(COMPONENTS / "monitoring/pod_monitor.yaml")["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()


def test_alerts_find_the_job_that_the_pod_monitor_makes():
    labels = load(BASE / "statefulset.yaml")["spec"]["template"]["metadata"]["labels"]
    job = labels[load(COMPONENTS / "monitoring/pod_monitor.yaml")["spec"]["jobLabel"]]
    jobs = set(re.findall(r'job="(\w+)"', (DEPLOY / "prometheus/alerts.yml").read_text()))
    assert jobs == {job}


def test_the_operators_rules_are_those_of_prometheus():
    made = COMPONENTS / "monitoring/prometheus_rule.yaml"
    groups = [group for name in ("recording_rules.yml", "alerts.yml")
              for group in load(DEPLOY / "prometheus" / name)["groups"]]  # fmt: skip
    assert load(made)["spec"]["groups"] == groups


def test_kubernetes_has_the_dashboard_for_grafanas_sidecar():
    made = load(COMPONENTS / "grafana/dashboard.yaml")
    assert made["kind"] == "ConfigMap"
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["mneme.json"]) == json.loads(DASHBOARD.read_text())
    # kubectl apply keeps a copy of the whole in an annotation, which may have 256 KiB.
    assert len(json.dumps(made)) < 200_000
    assert "../../components/grafana" in load(OVERLAYS / "everything/kustomization.yaml")["components"]


def test_what_is_made_of_rules_and_dashboard_is_up_to_date():
    script = ROOT / "tools/make_monitoring_manifests.py"
    subprocess.run([sys.executable, script, "--check"], check=True)


# Limits do not move, and lie far above what they limit.
LIMITS = re.compile(r"\b(?:mneme_max_\w+|mneme_\w+_capacity\w*|mneme_step_max_rows|process_max_fds)\b")


def dashboard_panels(kind: str) -> list[dict]:
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] == kind]


def test_a_panel_shows_a_share_and_no_line_far_below_a_limit():
    plotted = {
        (panel["title"], panel["fieldConfig"]["defaults"]["unit"])
        for panel in dashboard_panels("timeseries")
        for target in panel["targets"]
        if LIMITS.search(target["expr"])
    }
    assert {unit for _, unit in plotted} == {"percentunit"}, plotted
    assert {title for title, _ in plotted} >= {
        "Queue and rows in use",
        "State slots in use",
        "File descriptors in use",
        "Connections in use",
    }


def test_the_first_rows_of_the_dashboard_have_the_time_per_output_token():
    for kind in ("stat", "timeseries"):
        panels = dashboard_panels(kind)
        first = min(panel["gridPos"]["y"] for panel in panels)
        assert [
            panel["title"]
            for panel in panels
            if panel["gridPos"]["y"] == first
            and "mneme_request_time_per_output_token_seconds" in panel["targets"][0]["expr"]
        ], kind


def test_no_panel_lies_upon_another():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in (panel["gridPos"],)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_deadlines_that_clients_choose_page_nobody():
    """promtool tests what fires; here, that no rule of a page counts them."""
    rules = {rule["record"]: rule["expr"]
             for group in load(DEPLOY / "prometheus/recording_rules.yml")["groups"]
             for rule in group["rules"]}  # fmt: skip
    counting = {name for name, expr in rules.items() if re.search(r'outcome=~?"[^"]*deadline', expr)}
    for group in load(DEPLOY / "prometheus/alerts.yml")["groups"]:
        for rule in group["rules"]:
            if rule["labels"]["severity"] != "info":
                assert not any(name in rule["expr"] for name in counting), rule["alert"]
                assert "DEADLINE_EXCEEDED" not in rule["expr"], rule["alert"]


def test_the_user_is_the_same_everywhere(pod):
    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.M)
    security = pod["securityContext"]
    assert security["runAsUser"] == int(user.group(1)) != 0
    assert security["runAsGroup"] == security["fsGroup"] == int(user.group(2)) != 0
    assert f"--gid {user.group(2)} mneme" in DOCKERFILE
    assert f"--uid {user.group(1)} " in DOCKERFILE


def test_images_have_this_version(compose):
    version = re.search(
        r"project\(mneme VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()
    ).group(1)
    assert f"\nARG VERSION={version}\n" in DOCKERFILE
    cuda = load(DEPLOY / "compose.cuda.yaml")
    assert compose["services"]["mneme"]["image"] == f"${{MNEME_IMAGE:-mneme:{version}}}"
    assert cuda["services"]["mneme"]["image"] == f"${{MNEME_IMAGE:-mneme:{version}-cuda}}"
    assert load(BASE / "kustomization.yaml")["images"][0]["newTag"] == version
    component = load(COMPONENTS / "cuda/kustomization.yaml")
    assert component["images"][0]["newTag"] == f"{version}-cuda"


def test_build_arguments_are_the_dockerfiles():
    known = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.M))
    arguments = load(DEPLOY / "compose.cuda.yaml")["services"]["mneme"]["build"]["args"]
    assert set(arguments) <= known
    for image in (arguments["BUILD_IMAGE"], arguments["RUNTIME_IMAGE"]):
        assert f"={image}" in DOCKERFILE
