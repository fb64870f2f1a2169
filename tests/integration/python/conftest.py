"""Servers and models for the tests.

MNEME_BIN_DIR names the folder of the binaries.
"""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from certificates import Certificates
from golden import GOLDEN
from server_process import ServerProcess

BIN_DIR = Path(os.environ.get("MNEME_BIN_DIR", "")).resolve()


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    if not (BIN_DIR / "mneme-server").is_file():
        pytest.exit(f"MNEME_BIN_DIR={BIN_DIR} has no mneme-server", returncode=2)
    return BIN_DIR


@pytest.fixture(scope="session")
def golden_model() -> Path:
    """A MoM model of 256 tokens, whose results with the reference implementation are known."""
    return GOLDEN / "mom"


@pytest.fixture(scope="session")
def text_model(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights under a SentencePiece vocabulary."""
    folder = tmp_path_factory.mktemp("models") / "text"
    subprocess.run(
        [
            bin_dir / "mneme-make-model",
            "--shape",
            "tiny",
            "--vocab",
            "560",
            "--seed",
            "1",
            "--out",
            folder,
        ],
        check=True,
        capture_output=True,
    )
    shutil.copyfile(GOLDEN / "tokenizer_sp" / "bpe.model", folder / "tokenizer.model")
    return folder


# In the manner of checkpoints' own: control tokens around turns.
CHAT_TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role not in ['system', 'user', 'assistant'] %}
{{ raise_exception('no role ' ~ message.role) }}
{% endif %}
{{ '[' + message.role | upper + '] ' }}{% if message.role != 'assistant' %}
{{ message.content | trim + '\n' }}{% else %}
{{ message.content + eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '[ASSISTANT] ' }}
{%- endif %}"""


@pytest.fixture(scope="session")
def chat_model(text_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text model with a chat template."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    shutil.copytree(text_model, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return folder


@pytest.fixture(scope="session")
def chat_server(start_any, chat_model):
    return start_any(chat_model)


@pytest.fixture(scope="session")
def start_any(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory):
    """Starts servers for the whole session: model folder, then flags."""
    servers = []
    logs = tmp_path_factory.mktemp("logs")

    def start(model: Path, *flags: str) -> ServerProcess:
        log = logs / f"{len(servers)}.log"
        servers.append(ServerProcess(bin_dir / "mneme-server", model, log, *flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def golden_server(start_any, golden_model) -> ServerProcess:
    return start_any(golden_model)


@pytest.fixture(scope="session")
def text_server(start_any, text_model) -> ServerProcess:
    return start_any(text_model)


@pytest.fixture(scope="session")
def demo_server(start_any) -> ServerProcess:
    return start_any(Path(__file__).parents[3] / "demo" / "model")


@pytest.fixture
def client(golden_server):
    """Talks to the model of 256 byte tokens."""
    return golden_server.client()


@pytest.fixture
def text_client(text_server):
    """Talks to the model with SentencePiece."""
    return text_server.client()


@pytest.fixture
def start(bin_dir, golden_model, tmp_path):
    """Starts a server for this test alone, with the golden model: flags."""
    servers = []

    def start_server(*flags: str, model: Path = golden_model, **options) -> ServerProcess:
        log = tmp_path / f"server{len(servers)}.log"
        servers.append(ServerProcess(bin_dir / "mneme-server", model, log, *flags, **options))
        return servers[-1]

    yield start_server
    for server in servers:
        if server.alive():
            server.stop()
        server.kill()


@pytest.fixture
def name() -> str:
    """A session name of this test's own."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(bin_dir):
    """Runs a program of ours to its end: exit code, standard output and standard error."""

    def run_program(program, *words, stdin="", **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MNEME_")}
        done = subprocess.run(
            [bin_dir / program, *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**clean, **environment},
        )
        return done.returncode, done.stdout, done.stderr

    return run_program


@pytest.fixture
def new_key(run):
    """Makes a key: the key itself, and its line for the file."""

    def make(name, options=""):
        code, out, err = run("mneme-server", "--new-api-key", name)
        assert code == 0, err
        key, line = out.splitlines()
        return key, line + options

    return make


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    files = Certificates(tmp_path_factory.mktemp("tls"))
    files.authority("ca")
    files.authority("stranger")
    for name in ("server", "server2"):
        files.make(name, "ca", "DNS:localhost,IP:127.0.0.1")
    files.make("alice", "ca")
    files.make("foreign", "stranger")
    return files
