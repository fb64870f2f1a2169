"""The tokens of a conversation, which are the same whether it came from `mneme chat` or over HTTP.

A turn reads "User: ...", a line break, "Assistant:", the answer and the end token; turns are lines. Random weights say
nothing sensible, so words and the end token are forced where a test wants them. What a session holds is proved by what it would say
next: with all digits, that is only equal for equal tokens.
"""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from http_requests import ask
from waiting import wait_for_value

import mneme

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ 'User: ' + m['content'] | trim }}"
    "{% elif m['role'] == 'assistant' %}{{ '\\nAssistant: ' + m['content'] | trim + eos_token }}"
    "{% else %}{{ raise_exception('only users and assistants speak') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}"
)
BOS, EOS, LINE_BREAK, THE = 1, 2, 15, 284
# "User: One", a line break, "Assistant:"; and the second turn, behind a line break.
FIRST = (489, 90, 365, 63, 489, 84, 495, 490, 15, 70, 493, 303, 270, 265, 492, 63)
SECOND = (15, 90, 365, 63, 489, 89, 513, 496, 15, 70, 493, 303, 270, 265, 492, 63)
# As the template has it: behind a control token text has the tokenizer's prefix again.
SECOND_BEHIND_EOS = (489, *SECOND)
THREE_TOKENS_AND_EOS = {"min_tokens": 3, "max_tokens": 8, "logit_bias": {EOS: 100.0, THE: 50.0}}
THREE_TOKENS = {"max_tokens": 3, "logit_bias": {EOS: -100.0, THE: 50.0}}


DEMO_CONFIG = Path(__file__).resolve().parents[3] / "demo" / "model" / "tokenizer_config.json"


@pytest.fixture(scope="module", params=["plain", "demo"])
def server(request, start_any, text_model, tmp_path_factory):
    """A model whose chat template is the one above, or that of the demo model."""
    template = TEMPLATE
    if request.param == "demo":
        if not DEMO_CONFIG.is_file():
            pytest.skip("demo/model is not there")
        template = json.loads(DEMO_CONFIG.read_text())["chat_template"]
    folder: Path = tmp_path_factory.mktemp("models") / "turns"
    shutil.copytree(text_model, folder)
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return start_any(folder)


@pytest.fixture
def chat(run, server):
    """Runs `mneme chat` in a session: what the user types, then flags."""

    def run_chat(name: str, typed: str, *flags: str, **options) -> str:
        words = ["chat", "--session", name, "--temperature", "0", *flags]
        for option, value in options.items():
            if option == "logit_bias":
                value = ",".join(f"{token}:{bias:g}" for token, bias in value.items())
            words += ["--" + option.replace("_", "-"), str(value)]
        code, out, err = run("mneme", *words, stdin=typed, MNEME_SERVER=server.target)
        assert code == 0, err
        return out

    return run_chat


def answer_to(server, ids, **options):
    """The tokens of a greedy answer to these tokens."""
    return server.client().generate(ids, temperature=0, **options).token_ids


def expected_tokens(server, ending=(), second=SECOND_BEHIND_EOS, **options):
    """The tokens of two turns whose answers end so, with the part of an end token that they held."""
    ids = (BOS, *FIRST)
    ids += answer_to(server, ids, **options) + ending
    ids += second
    return ids + answer_to(server, ids, **options)


def next_token(server, prompt, session=None):
    result = server.client().generate(prompt, session=session, max_tokens=1, temperature=0, logprobs=5)
    return result.logprobs


def assert_holds(server, session, ids):
    assert server.client().sessions.get(session).position == len(ids)
    assert next_token(server, (7,), session) == next_token(server, (*ids, 7))


def test_the_parts_of_a_turn(server):
    tokenize = server.client().tokenize
    assert tuple(tokenize("User: One\nAssistant:").ids) == (BOS, *FIRST)
    assert tuple(tokenize("\nUser: Two\nAssistant:", continuation=True).ids) == SECOND


def test_turns_follow_the_end_token_on_a_line_of_their_own(server, chat, name):
    chat(name, "One\nTwo\n", **THREE_TOKENS_AND_EOS)
    ids = expected_tokens(server, **THREE_TOKENS_AND_EOS)
    assert ids.count(EOS) == 2
    assert ids[-1] == EOS
    assert_holds(server, name, ids)


def test_another_chat_goes_on_where_the_last_one_stopped(server, chat, name):
    chat(name, "One\n", **THREE_TOKENS_AND_EOS)
    chat(name, "Two\n", **THREE_TOKENS_AND_EOS)
    assert_holds(server, name, expected_tokens(server, **THREE_TOKENS_AND_EOS))


def test_white_space_around_a_turn_is_not_part_of_it(server, chat, name):
    chat(name, "  One \n\tTwo  \n", **THREE_TOKENS_AND_EOS)
    assert_holds(server, name, expected_tokens(server, **THREE_TOKENS_AND_EOS))


def test_an_answer_that_was_cut_off_is_closed(server, chat, name):
    chat(name, "One\nTwo\n", **THREE_TOKENS)
    assert_holds(server, name, expected_tokens(server, ending=(EOS,), **THREE_TOKENS))


def test_or_left_open(server, chat, name):
    chat(name, "One\nTwo\n", "--no-template", "--no-close", **THREE_TOKENS)
    assert_holds(server, name, expected_tokens(server, second=SECOND, **THREE_TOKENS))


def test_without_the_template_an_answer_is_closed_too(server, chat, name):
    chat(name, "One\nTwo\n", "--no-template", **THREE_TOKENS)
    assert_holds(server, name, expected_tokens(server, ending=(EOS,), second=SECOND, **THREE_TOKENS))


def test_the_line_break_that_stopped_an_answer_is_not_repeated(server, chat, name):
    options = {"max_tokens": 4, "logit_bias": {LINE_BREAK: 100.0}}
    chat(name, "One\nTwo\n", "--no-template", "--stop", "\n", **options)
    ids = (BOS, *FIRST, LINE_BREAK, *SECOND[1:], LINE_BREAK)
    assert_holds(server, name, ids)


def test_after_a_reset_a_conversation_begins(server, chat, name):
    chat(name, "Two\n/reset\nOne\nTwo\n", **THREE_TOKENS_AND_EOS)
    assert_holds(server, name, expected_tokens(server, **THREE_TOKENS_AND_EOS))


def test_a_fork_goes_on_where_it_was_made(server, chat, name):
    chat(name, f"One\n/fork {name}-2\nTwo\n", **THREE_TOKENS_AND_EOS)
    ids = expected_tokens(server, **THREE_TOKENS_AND_EOS)
    assert_holds(server, f"{name}-2", ids)
    assert_holds(server, name, ids[: ids.index(EOS) + 1])


def test_an_answer_that_was_interrupted_is_closed(bin_dir, server, name, tmp_path):
    sessions = server.client().sessions
    said = tmp_path / "said"  # no pipe, which could be full
    command = [bin_dir / "mneme", "--server", server.target, "chat", "--session", name, "--ignore-eos"]
    command += ["--max-tokens", "100000000", "--logit-bias", f"{EOS}:-100"]
    with (
        said.open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, bufsize=0
        ) as chat,
    ):
        assert chat.stderr.readline() == f"[new session {name}]\n".encode()
        for line in (b"One\n", b"Two\n"):
            before = said.stat().st_size
            chat.stdin.write(line)
            while said.stat().st_size == before:  # it answers
                assert chat.poll() is None
            chat.send_signal(signal.SIGINT)
            assert chat.stderr.readline() == b"[stopped]\n"
            while sessions.get(name).busy:
                pass
        chat.kill()
    pending = 1  # the last token of the answer, sampled and not yet fed: it counts as new
    wait_for_value(  # lines are written by a thread of their own
        lambda: re.findall(rf"session={name} .* prompt_tokens=(\d+)", server.log),
        [str(len((BOS, *FIRST))), str(pending + len((EOS, *SECOND_BEHIND_EOS)))],
    )


@pytest.mark.parametrize("mode", ["whole", "append"])
@pytest.mark.parametrize(
    ("options", "ending"), [(THREE_TOKENS_AND_EOS, ()), (THREE_TOKENS, (EOS,))], ids=["ended", "cut"]
)
def test_http_feeds_the_same_tokens(server, name, mode, options, ending):
    messages = []
    for text in ("One", "Two"):
        if mode == "append":
            messages = []
        messages.append({"role": "user", "content": text})
        bias = {str(token): value for token, value in options["logit_bias"].items()}
        body = {"messages": messages, "temperature": 0, "session_id": name, "session_mode": mode}
        base = f"http://127.0.0.1:{server.http_port}"
        status, _, said = ask(base, "/v1/chat/completions", body=body | options | {"logit_bias": bias})
        assert status == 200, said
        messages.append(json.loads(said)["choices"][0]["message"])
    assert_holds(server, name, expected_tokens(server, ending=ending, **options))


# The system may speak only first, as most templates have it; or has to, as some do.
SYSTEM_FIRST = {
    "may": "{% for m in messages[1:] %}{% if m.role == 'system' %}"
    "{{ raise_exception('system after others') }}{% endif %}{% endfor %}",
    "must": "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
}


@pytest.fixture(scope="module", params=SYSTEM_FIRST)
def strict_server(request, start_any, text_model, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("models") / request.param
    shutil.copytree(text_model, folder)
    turns = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    config["chat_template"] = SYSTEM_FIRST[request.param] + turns
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = start_any(folder)
    server.strictness = request.param
    return server


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_the_system_may_begin_a_session_where_it_may_not_go_on(strict_server, name, door):
    def say(*messages):
        """Whether these were taken, or what the template said."""
        messages = [{"role": role, "content": content} for role, content in messages]
        if door == "grpc":
            try:
                strict_server.client().chat(messages, session=name, max_tokens=1)
            except mneme.InvalidArgument as error:
                return str(error)
            return "taken"
        body = {"messages": messages, "max_tokens": 1, "session_id": name, "session_mode": "append"}
        base = f"http://127.0.0.1:{strict_server.http_port}"
        status, _, said = ask(base, "/v1/chat/completions", body=body)
        if status == 200:
            return "taken"
        assert (status, json.loads(said)["error"]["param"]) == (400, "messages"), said
        return said.decode()

    may = strict_server.strictness == "may"
    system, user = ("system", "Be brief."), ("user", "One")
    if not may:
        assert "no system" in say(user)
    assert say(system, user) == "taken"
    assert say(user) == "taken"
    again = say(system, user)
    if may:
        assert "behind an answer: line 1: system after others" in again
    else:
        assert again == "taken"
