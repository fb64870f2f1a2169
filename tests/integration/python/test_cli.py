"""The command line client against a real server: what lands on standard output."""

import json
import os
import shutil
import subprocess

import pytest
from waiting import wait_for_value


@pytest.fixture
def cli(bin_dir, golden_server):
    """Runs `mneme WORDS...`: exit code, standard output and standard error."""

    def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith("MNEME_")
        }
        done = subprocess.run(
            [bin_dir / "mneme", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**environment, "MNEME_SERVER": golden_server.target},
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("more", [[], ["--choices", "2"], ["--json"]])
def test_a_refused_request_writes_nothing_to_standard_output(cli, more):
    code, out, err = cli("generate", "Hello", "--temperature", "-1", *more)
    assert code == 4
    assert out == ""
    assert "temperature" in err


def test_an_answer_ends_with_a_line_feed(cli):
    code, out, err = cli("generate", "Hello", "--max-tokens", "4", "--temperature", "0")
    assert code == 0, err
    assert out.endswith("\n")


def test_a_turn_that_is_refused_writes_nothing_to_standard_output(cli, name):
    code, out, err = cli(
        "chat", "--session", name, "--temperature", "-1", stdin="Hello\n"
    )
    assert code == 4
    assert out == ""
    assert "temperature" in err


def test_chat_refuses_a_bad_name_before_the_first_line(cli):
    code, out, err = cli(
        "chat", "--session", "no good\x01name"
    )  # nobody types anything
    assert code == 4
    assert out == ""
    assert "name" in err


def test_chat_begins_a_session_that_is_not_there_yet(cli, client, name):
    code, _, err = cli("chat", "--session", name, "--max-tokens", "2", stdin="Hello\n")
    assert code == 0, err
    assert client.sessions.get(name).position > 0
    client.sessions.delete(name)


def test_chat_says_where_it_goes_on_and_never_invents_a_past(bin_dir, golden_server, client, name):
    command = [bin_dir / "mneme", "--server", golden_server.target, "chat", "--session", name]
    command += ["--max-tokens", "2", "--ignore-eos"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as chat:
        chat.stdin.write("Hello\n")
        chat.stdin.flush()
        assert chat.stderr.readline().startswith("[new session ")
        wait_for_value(lambda: [s.name for s in client.sessions.list(name) if not s.busy], [name])
        position = client.sessions.get(name).position
        client.sessions.delete(name)
        _, err = chat.communicate("What is my code?\n")
    assert chat.returncode == 4
    assert "NOT_FOUND" in err
    assert "/reset begins a new one" in err
    assert list(client.sessions.list(name)) == []
    assert position > 0


def test_chat_has_nothing_to_show_or_fork_before_the_first_turn(cli, client, name):
    said = "/session\n/fork\nHello\n/fork two names\n/reset\n/session\n"
    code, out, err = cli("chat", "--session", name, "--max-tokens", "2", stdin=said)
    assert code == 0
    assert err.startswith(f"[new session {name}]\n")
    assert out.count(f"[{name} begins with the next turn]") == 3
    assert "unknown command /fork two names" in out
    assert list(client.sessions.list(name)) == []


def test_a_list_as_json_has_a_line_per_session(cli, client, name):
    assert cli("session", "list", name, "--json") == (0, "", "")
    for suffix in "ab":
        client.sessions.create(name + suffix)
    code, out, _ = cli("session", "list", name, "--json")
    assert code == 0
    assert [json.loads(line)["name"] for line in out.splitlines()] == [
        name + "a",
        name + "b",
    ]
    for suffix in "ab":
        client.sessions.delete(name + suffix)


@pytest.mark.parametrize("words", [["session", "list"], ["session", "get", "a"], ["info"]])
def test_without_a_server_nothing_is_on_standard_output(cli, words):
    code, out, err = cli("--server", "127.0.0.1:1", *words)
    assert code == 3
    assert out == ""
    assert "127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["info", "more"], "more"),
        (["health", "mneme.v1.Inference", "more"], "more"),
        (["session", "list", "--ttl", "5s"], "--ttl"),
        (["generate", "one", "two"], "two"),
    ],
)
def test_what_would_have_no_effect_is_refused(cli, words, culprit):
    code, out, err = cli(*words)
    assert code == 2
    assert out == ""
    assert culprit in err


def test_help_names_the_words_that_work(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert "create, get, list, fork and delete" in out
    code, out, _ = cli("generate", "--help")
    assert code == 0
    assert '--session anna " What is my name?"' in out


def test_info_tells_sampling_defaults_as_they_were_written(run, start, golden_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(golden_model, model)
    (model / "generation_config.json").write_text('{"temperature": 0.7, "top_p": 0.95, "top_k": 40}')
    server = start(model=model)
    code, out, err = run("mneme", "info", MNEME_SERVER=server.target)
    assert code == 0, err
    assert "\nsampling   temperature 0.7, top_k 40, top_p 0.95, unless a request says otherwise\n" in out
    code, out, err = run("mneme", "info", "--json", MNEME_SERVER=server.target)
    assert code == 0, err
    assert '"temperature":0.7,' in out.replace(" ", "")
    assert server.client().info().model.sampling_defaults == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.95,
    }
