"""The commands of the guides in docs/ do what is written there, one after the other.

Models are small; what needs a package index or a GPU is left out. Files that a reader brings along
(a checkpoint of titans-pytorch) are made first.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import ServerProcess, device_environment

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "tools"))

import titans_pytorch_checkpoint as titans_pytorch  # noqa: E402

torch = titans_pytorch.torch
GUIDES = ["serve_classifiers.md", "serve_mamba_rwkv.md", "serve_memoria.md", "serve_titans.md"]
# Flags of CMake, and of programs of those who trained a model.
OTHERS_FLAGS = {"--help", "--preset", "--build", "--segment-size", "--max-length"}
# Commands, and what the guide shows of their output.
BLOCKS = re.compile(r"```sh\n(.*?)```\n(?:\n[^`\n]*:\n)?(?:\n```text\n(.*?)```)?", re.DOTALL)


def commands(block):
    """The commands of a block: lines that end with a backslash go on."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


class Reader:
    """Somebody who runs the commands of one guide in a folder that looks like the repository."""

    def __init__(self, folder: Path, bin_dir: Path):
        self.folder, self.bin_dir = folder, bin_dir
        self.server = None
        (folder / "build" / "release").mkdir(parents=True)
        (folder / "build" / "release" / "bin").symlink_to(bin_dir)
        for name in ("tools", "tests", "README.md"):
            (folder / name).symlink_to(ROOT / name)

    def run(self, command: str) -> subprocess.CompletedProcess:
        words = shlex.split(command, comments=True)
        if Path(words[0]).name == "mneme-server" and "--plan" not in words:
            self.serve(*[word for word in words[1:] if word != "&"])
            return subprocess.CompletedProcess(command, 0, "", "")
        if self.server is not None:
            command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.server.http_port}")
        environment = {
            k: v for k, v in titans_pytorch.environment().items() if not k.startswith("MNEME_")
        }
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        if self.server is not None:
            environment["MNEME_SERVER"] = self.server.target
        return subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{command}"],
            cwd=self.folder,
            env={**environment, **device_environment()},
            input="",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def serve(self, flag: str, model: str, *flags: str) -> None:
        assert flag == "--model"
        self.stop()
        log = self.folder / "server.log"
        self.server = ServerProcess(self.bin_dir / "mneme-server", self.folder / model, log, *flags)

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
        self.server = None


@pytest.fixture
def reader(tmp_path, bin_dir):
    one = Reader(tmp_path / "mneme", bin_dir)
    yield one
    one.stop()


def bring_checkpoint(reader: Reader) -> None:
    """model.pt, as today's versions of titans-pytorch and hyper-connections write it."""
    made = titans_pytorch.make_model(reader.bin_dir, reader.folder / "made")
    tensors = titans_pytorch.read_tensors(made / "model.safetensors")
    for name, (shape, data) in tensors.items():
        if name.endswith("dynamic_alpha_fn"):
            tensors[name] = ((1, *shape), data)
    torch.save(titans_pytorch.state_dict(tensors), reader.folder / "model.pt")


def expect_shown(shown: str, run: subprocess.CompletedProcess) -> None:
    lines = [line for line in shown.splitlines() if line.strip() not in ("", "...")]
    if ": error: " in lines[0]:
        assert run.returncode == 2, run.stderr
        for line in lines:
            assert line in run.stderr, run.stderr
        return
    assert run.returncode == 0, run.stderr
    # Numbers are those of another machine.
    printed = [line.split()[0] for line in run.stdout.splitlines() if line.strip()]
    for line in lines:
        assert line.split()[0] in printed, f"{line!r} begins no line of\n{run.stdout}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_of_a_guide_run(guide, reader):
    bring_checkpoint(reader)
    blocks = BLOCKS.findall((ROOT / "docs" / guide).read_text())
    assert blocks
    for block, shown in blocks:
        # The output shown is that of the block's first command that says anything.
        waits_for_output = bool(shown)
        for command in commands(block):
            if command.startswith("pip install"):
                continue
            run = reader.run(command)
            if waits_for_output and (run.stdout or run.stderr):
                expect_shown(shown, run)
                waits_for_output = False
            else:
                assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
            if "mneme-inspect diff" in command:
                assert "same bits" in run.stdout
        assert not waits_for_output, block
    assert reader.server is not None or guide == "serve_classifiers.md"


@pytest.fixture(scope="session")
def all_help(bin_dir) -> str:
    """All flags that the programs' help names."""
    commands_of_mneme = "generate chat classify session memory info admin tokenize bench".split()
    programs = [[bin_dir / "mneme", command] for command in commands_of_mneme]
    for name in ("mneme-server", "mneme-make-model", "mneme-inspect", "mneme-logits"):
        programs.append([bin_dir / name])
    text = titans_pytorch.convert("--help").stdout
    for program in programs:
        run = subprocess.run(
            [*program, "--help"], capture_output=True, text=True, timeout=60, check=False
        )
        assert run.returncode == 0, program
        text += run.stdout
    return text


@pytest.mark.parametrize("guide", GUIDES)
def test_the_flags_and_shapes_that_a_guide_names_exist(guide, all_help):
    text = (ROOT / "docs" / guide).read_text()
    known = set(re.findall(r"--[a-z][a-z0-9-]*", all_help))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) - OTHERS_FLAGS
    assert named
    assert named <= known, f"no program has {sorted(named - known)}"
    for list_of_shapes in re.findall(r"# or ([a-z0-9., -]+), \.\.\.: --help", text):
        for shape in list_of_shapes.split(", "):
            whole_word = rf"(?<![\w-]){re.escape(shape)}(?![\w-])"
            assert re.search(whole_word, all_help), f"no shape {shape}"
