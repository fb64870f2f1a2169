"""A server that cannot start says why in one line: which flag or file, what is wrong, what it takes."""

import re
import socket
import subprocess

import pytest

from golden import GOLDEN

# Wrong values for each kind that --help names, and the words that the message has for them.
WRONG_VALUES = {
    "N": [
        (text, r"expected (a (whole )?number from|0 \(the device's own\))")
        for text in ("abc", "", "-7", "99999999999999999999")
    ],
    "SIZE": [(text, r"expected a size \(8GiB, 512MiB") for text in ("abc", "-1", "5XB")],
    "TIME": [(text, r"expected a time \(250ms, 30s") for text in ("abc", "-1s", "5x")],
    "": [("maybe", "expected true or false|takes no value")],
}
# Flags whose value is a name or a path are in the tests below.
TEXTS = {
    "--model",
    "--served-model-name",  # any text will do
    "--session-dir",
    "--host",
    "--metrics-host",
    "--http-allowed-origins",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--ssl-ca-certs",
    "--api-key",
    "--api-key-file",
    "--config",
    "--set",
    "--new-api-key",
    "--hash-api-key",
}
# No label of a name is as long as this one, so no name server is asked, which could take its time.
NO_HOST = "x" * 64
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z [IWEF] ")


def flags_of(help_text):
    """(flag, kind of value) of each entry."""
    for line in help_text.splitlines():
        if re.match(r"  -", line):
            spellings = re.findall(r"--[a-z-]+", line)
            value = line.split()[-1]
            yield spellings[0], "" if value.startswith("-") else value


@pytest.fixture
def complaint(bin_dir, golden_model):
    """Starts a server that must not come up: its exit code and its one line."""

    def start(*flags, model=golden_model):
        done = subprocess.run(
            [bin_dir / "mneme-server", "--model", model, "--grpc-port=0", "--http-port=0", *flags],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={},
        )
        lines = [line for line in done.stderr.splitlines() if not LOG_LINE.match(line)]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("mneme-server: ")
        assert done.stderr.endswith(lines[0] + "\n"), "it is the last word"
        assert "ready" not in done.stdout
        return done.returncode, lines[0]

    return start


def test_every_flag_refuses_wrong_values(run, complaint):
    flags = list(flags_of(run("mneme-server", "--help")[1]))
    assert len(flags) > 60
    for flag, kind in flags:
        if flag in TEXTS:
            continue
        cases = WRONG_VALUES.get(kind) or [
            (text, f'expected "{kind.split("|")[0]}".* or "{kind.split("|")[-1]}"')
            for text in ("nonsense", "")
        ]
        for text, expected in cases:
            code, line = complaint(f"{flag}={text}")
            assert code == 2, line
            assert flag in line
            assert text in line or "takes no value" in line or "1e+20" in line
            assert re.search(expected, line), line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--modle", "x"], ["--modle", "did you mean --model"]),
        (["--model"], ["--model", "value"]),
        (["serve"], ['"serve"']),
        (["--model="], ["--model is missing", "config.json|Hugging Face"]),
        (["--host="], ["--host", '""', "--insecure"]),
        (["--host=0.0.0.0"], ["--host", "0.0.0.0", "--api-key-file", "--insecure"]),
        ([f"--host={NO_HOST}"], ["--host", NO_HOST]),
        (["--metrics-port=1", f"--metrics-host={NO_HOST}"], ["--metrics-host", NO_HOST]),
        (["--grpc-port=65536"], ["--grpc-port", "65536", "from 0 to 65535"]),
        (["--http-port=-2"], ["--http-port", "-2", "from -1 to 65535"]),
        (["--http-allowed-origins=a.example"], ["--http-allowed-origins", '"a.example"', "scheme"]),
        (["--config=/no/such/file"], ["--config", "/no/such/file", "cannot read"]),
        (["--config="], ["--config", "expected the name of a file"]),
        (["--set=server { port: 1 }"], ["--set:1:", '"port"']),
        (["--api-key=two words"], ["--api-key", "space"]),
        (["--api-key-file=/no/such/file"], ["--api-key-file", "/no/such/file", "No such file"]),
        (["--ssl-certfile=cert.pem"], ["--ssl-certfile", "--ssl-keyfile", "without the other"]),
        (["--ssl-ca-certs=ca.pem"], ["--ssl-ca-certs", "add --ssl-certfile and --ssl-keyfile"]),
        (["--new-api-key=two words"], ["two words", "A-Z a-z 0-9"]),
    ],
)
def test_arguments_that_are_wrong_end_with_2(complaint, flags, words):
    code, line = complaint(*flags)
    assert code == 2, line
    for word in words:
        assert re.search(word, line), line
    assert "two words" not in line or "--api-key" not in line, "keys are secrets"


@pytest.mark.parametrize("flag", ["--host-state-memory", "--prefix-cache-memory"])
@pytest.mark.parametrize("more", [[], ["--plan"]])
def test_memory_that_holds_no_state_is_a_wrong_argument(complaint, flag, more):
    code, line = complaint("--insecure", f"{flag}=1", *more)
    assert code == 2, line
    assert f"{flag} is 1, expected 0 or at least " in line


def test_files_that_are_wrong_are_named(complaint, tmp_path, certificates):
    file = tmp_path / "file"
    for text, words in (
        ("nonsense", [f"{file}:1:"]),
        ("engine { max_rows: -1 }", [f"{file}:1:10: engine.max_rows: -1", "from 1 to 4096"]),
        ("engine { no_such_field: 1 }", [f"{file}:1:", "no_such_field"]),
    ):
        file.write_text(text)
        code, line = complaint(f"--config={file}")
        assert code == 2, line
        assert all(word in line for word in words), line
    for text, words in (
        ("alice\n", ["1", "file"]),
        ("alice:sha256-12\n", ["1"]),
        ("# nobody\n", ["no key"]),
    ):
        file.write_text(text)
        code, line = complaint(f"--api-key-file={file}")
        assert code == 2, line
        assert all(word in line for word in [str(file), *words]), line

    good = {
        "--ssl-certfile": "server.pem",
        "--ssl-keyfile": "server.key",
        "--ssl-ca-certs": "ca.pem",
    }
    file.write_text("nonsense")
    for flag in good:
        for wrong in (file, "/no/such/file"):
            files = {k: certificates.path(v) for k, v in good.items()} | {flag: wrong}
            code, line = complaint(*(f"{k}={v}" for k, v in files.items()))
            assert code == 5, line
            assert flag in line
            assert str(wrong) in line
    code, line = complaint(
        f"--ssl-certfile={certificates.path('server.pem')}",
        f"--ssl-keyfile={certificates.path('server2.key')}",
    )
    assert code == 5, line
    assert "--ssl-keyfile" in line, line


def test_models_that_do_not_load_end_with_3(complaint, tmp_path):
    folder = tmp_path / "model"
    code, line = complaint(model=folder)
    assert (code, str(folder) in line) == (3, True), line
    folder.mkdir()
    code, line = complaint(model=folder)
    assert (code, "config.json" in line) == (3, True), line
    config = folder / "config.json"
    for text, word in (("{", "config.json"), ('{"model_type": "unheard_of"}', "unheard_of")):
        config.write_text(text)
        code, line = complaint(model=folder)
        assert (code, word in line) == (3, True), line
    config.write_bytes((GOLDEN / "mom/config.json").read_bytes())
    for content in (None, b"", b"x" * 100, (GOLDEN / "mom/model.safetensors").read_bytes()[:10000]):
        if content is not None:
            (folder / "model.safetensors").write_bytes(content)
        code, line = complaint(model=folder)
        assert (code, "model.safetensors" in line) == (3, True), line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--state-memory=1KiB"], ["1.0 KiB", "no session fits"]),
        (["--device=cuda"], ["cuda|CUDA|GPU"]),
        (["--state-dtype=f16"], ["f16", "CPU"]),
    ],
)
def test_what_the_machine_lacks_ends_with_4(complaint, flags, words):
    code, line = complaint(*flags, *([] if "cuda" in flags[0] else ["--device=cpu"]))
    assert code == 4, line
    for word in words:
        assert re.search(word, line), line


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port", "--metrics-port"])
def test_a_port_in_use_ends_with_5(complaint, flag):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code, line = complaint(f"{flag}={port}")
    assert code == 5, line
    assert flag in line
    assert f":{port}" in line
    assert "in use" in line


def test_an_address_of_another_machine_ends_with_5(complaint):
    code, line = complaint("--host=192.0.2.1", "--insecure")
    assert code == 5, line
    assert "192.0.2.1" in line
