"""Sessions: what is remembered, by whom, and for how long."""

import math

import pytest

import mneme

from waiting import wait_for, wait_for_value

FIRST = [10, 20, 30, 40, 50, 60]
SECOND = [70, 80, 90]
GREEDY = {"temperature": 0, "ignore_eos": True, "logprobs": 3}


def test_a_continued_session_equals_a_fresh_one_fed_everything(client, name):
    one = client.generate(FIRST, session=name, max_tokens=5, **GREEDY)
    two = client.generate(SECOND, session=name, max_tokens=7, **GREEDY)
    fresh = client.generate([*FIRST, *one.token_ids, *SECOND], max_tokens=7, **GREEDY)
    assert two.token_ids == fresh.token_ids
    assert two.logprobs == fresh.logprobs  # to the bit
    # All but the pending token were in memory.
    assert two.usage.resumed_tokens == len(FIRST) + 4
    assert two.usage.prompt_tokens == 1 + len(SECOND)
    assert two.session == mneme.SessionState(name, len(FIRST) + 5 + len(SECOND) + 7, True)


def test_a_session_goes_on_without_a_prompt(client, name):
    whole = client.generate(FIRST, max_tokens=12, **GREEDY)
    part = client.generate(FIRST, session=name, max_tokens=5, **GREEDY)
    rest = client.generate(session=name, max_tokens=7, **GREEDY)
    assert part.token_ids + rest.token_ids == whole.token_ids
    assert part.logprobs + rest.logprobs == whole.logprobs


def test_an_empty_prompt_needs_a_pending_token(client, name):
    with pytest.raises(mneme.InvalidArgument):
        client.generate(session=name, max_tokens=1)
    with pytest.raises(mneme.InvalidArgument):
        client.generate("", max_tokens=1, add_special_tokens=False)
    client.generate(FIRST, session=name, max_tokens=0)
    with pytest.raises(mneme.InvalidArgument):
        client.generate(session=name, max_tokens=1)


def test_many_small_prompts_equal_one_large_one(client, name):
    prompt = [(31 * i) % 256 for i in range(300)]
    for start in range(0, 300, 50):
        client.generate(prompt[start : start + 50], session=name, max_tokens=0)
    pieces = client.generate([5], session=name, max_tokens=8, **GREEDY)
    whole = client.generate([*prompt, 5], max_tokens=8, **GREEDY)
    assert pieces.token_ids == whole.token_ids
    assert pieces.logprobs == whole.logprobs


def test_seeded_draws_continue_as_if_never_interrupted(client, name):
    whole = client.generate(FIRST, max_tokens=12, seed=9, ignore_eos=True)
    part = client.generate(FIRST, session=name, max_tokens=5, seed=9, ignore_eos=True)
    rest = client.generate(session=name, max_tokens=7, seed=9, ignore_eos=True)
    assert part.token_ids + rest.token_ids == whole.token_ids


def test_text_continues_without_a_second_beginning(text_client, name):
    text_client.generate("Hello", session=name, max_tokens=0)
    middle = text_client.generate("world", session=name, max_tokens=4, **GREEDY)
    ids = [
        *text_client.tokenize("Hello").ids,
        *text_client.tokenize("world", continuation=True).ids,
    ]
    fresh = text_client.generate(ids, max_tokens=4, **GREEDY)
    assert middle.token_ids == fresh.token_ids


def test_two_sessions_do_not_mix(client, name):
    alone = [client.session(f"{name}-a{i}") for i in range(2)]
    expected = [
        [alone[i].send([100 * i + turn], max_tokens=4, **GREEDY).token_ids for turn in range(4)]
        for i in range(2)
    ]
    mixed = [client.session(f"{name}-b{i}") for i in range(2)]
    got = [[], []]
    for turn in range(4):
        for i in range(2):
            answer = mixed[i].send([100 * i + turn], max_tokens=4, **GREEDY)
            got[i].append(answer.token_ids)
    assert got == expected


def test_a_fork_remembers_the_same_and_goes_its_own_way(client, name):
    session = client.session(name)
    session.send(FIRST, max_tokens=5, **GREEDY)
    fork = session.fork(f"{name}-fork")
    info = fork.info()
    assert (info.position, info.has_pending_token) == (len(FIRST) + 5, True)
    changed = fork.send([1, 2, 3], max_tokens=6, **GREEDY)
    # The parent does not notice.
    parent = session.send(SECOND, max_tokens=6, **GREEDY)
    other = client.session(f"{name}-other")
    other.send(FIRST, max_tokens=5, **GREEDY)
    assert parent.logprobs == other.send(SECOND, max_tokens=6, **GREEDY).logprobs
    assert changed.token_ids != parent.token_ids or changed.logprobs != parent.logprobs


def test_forking_needs_a_source_and_a_free_name(client, name):
    with pytest.raises(mneme.SessionNotFound):
        client.sessions.fork("no-such-session", f"{name}-x")
    client.sessions.create(name)
    client.sessions.create(f"{name}-taken")
    with pytest.raises(mneme.SessionExists):
        client.sessions.fork(name, f"{name}-taken")
    chosen = client.sessions.fork(name)
    assert chosen.name
    assert chosen.name != name


def test_create_get_and_delete(client, name):
    created = client.sessions.create(name, ttl=60)
    assert (created.name, created.position, created.busy, created.ttl) == (name, 0, False, 60)
    assert created.state_bytes == client.info().capacity.slab_bytes
    with pytest.raises(mneme.SessionExists):
        client.sessions.create(name)
    client.generate(FIRST, session=name, max_tokens=2, ignore_eos=True)
    got = client.sessions.get(name)
    assert (got.position, got.has_pending_token) == (len(FIRST) + 2, True)
    assert got.last_use_time >= got.create_time
    client.sessions.delete(name)
    with pytest.raises(mneme.SessionNotFound):
        client.sessions.get(name)
    with pytest.raises(mneme.SessionNotFound):
        client.sessions.delete(name)


def test_a_deleted_session_is_forgotten(client, name):
    fresh = client.generate(SECOND, session=name, max_tokens=6, **GREEDY)
    client.sessions.delete(name)
    client.generate(FIRST, session=name, max_tokens=6, **GREEDY)
    client.sessions.delete(name)
    again = client.generate(SECOND, session=name, max_tokens=6, **GREEDY)
    assert again.usage.resumed_tokens == 0
    assert again.logprobs == fresh.logprobs


def test_the_server_chooses_names(client):
    one, two = client.sessions.create(), client.sessions.create()
    assert one.name != two.name


def test_lists_come_in_pages_in_order(client, name):
    names = [f"{name}/{i:02}" for i in range(7)]
    for each in reversed(names):
        client.sessions.create(each)
    page = client.sessions.list_page(f"{name}/", page_size=3)
    assert [session.name for session in page.sessions] == names[:3]
    assert page.total_count == 7
    assert [s.name for s in client.sessions.list(f"{name}/", page_size=3)] == names
    assert [s.name for s in client.sessions.list(f"{name}/")] == names
    assert list(client.sessions.list(f"{name}/nothing")) == []
    for wrong in (-1, 1001):
        with pytest.raises(mneme.InvalidArgument) as caught:
            client.sessions.list_page(page_size=wrong)
        assert caught.value.field_violations[0].field == "page_size"


def test_an_unknown_session_is_not_created_against_the_wish(client, name):
    with pytest.raises(mneme.SessionNotFound):
        client.generate(FIRST, session=name, create_if_missing=False, max_tokens=1)
    with pytest.raises(mneme.SessionNotFound):
        client.sessions.get(name)


def test_a_busy_session_refuses_others(client, name):
    stream = client.stream(FIRST, session=name, max_tokens=1_000_000, ignore_eos=True)
    for event in stream:
        if not isinstance(event, mneme.Chunk):
            continue
        assert client.sessions.get(name).busy
        with pytest.raises(mneme.SessionBusy):
            client.generate(SECOND, session=name, max_tokens=1)
        with pytest.raises(mneme.SessionBusy):
            client.sessions.delete(name)
        with pytest.raises(mneme.SessionBusy):
            client.sessions.fork(name, f"{name}-fork")
        break
    wait_until_idle(client, name)
    client.sessions.delete(name)


def wait_until_idle(client, name):
    """The server learns of a cancelled call a moment later."""
    wait_for(lambda: not client.sessions.get(name).busy, f"the end of what {name} does")
    return client.sessions.get(name)


@pytest.mark.parametrize("tokens_read", [1, 7, 40])
def test_after_a_cancelled_stream_the_session_holds_exactly_the_tokens_fed(
    client, name, tokens_read
):
    seen = []
    for event in client.stream(
        FIRST, session=name, max_tokens=1_000_000, temperature=0, ignore_eos=True
    ):
        if isinstance(event, mneme.Chunk):
            seen += event.token_ids
        if len(seen) >= tokens_read:
            break
    info = wait_until_idle(client, name)
    generated = info.position - len(FIRST)
    assert generated >= len(seen)
    truth = client.generate(FIRST, max_tokens=generated, **GREEDY).token_ids
    assert list(truth[: len(seen)]) == seen
    continued = client.generate(SECOND, session=name, max_tokens=6, **GREEDY)
    fresh = client.generate([*FIRST, *truth, *SECOND], max_tokens=6, **GREEDY)
    assert continued.logprobs == fresh.logprobs


def test_after_a_deadline_the_session_holds_exactly_the_tokens_fed(client, name):
    endless = {"max_tokens": 1_000_000, "temperature": 0, "ignore_eos": True}
    seen, timeout = (), 0.15
    while not seen:  # as much time as it takes to be given a token
        timeout *= 2
        session = f"{name}-{timeout}"
        with pytest.raises(mneme.DeadlineExceeded) as caught:
            client.generate(FIRST, session=session, timeout=timeout, **endless)
        seen = caught.value.choices[0].token_ids
    name = session
    info = wait_until_idle(client, name)
    generated = info.position - len(FIRST)
    assert generated >= len(seen) > 0
    truth = client.generate(FIRST, max_tokens=generated, **GREEDY).token_ids
    assert truth[: len(seen)] == seen
    continued = client.generate(SECOND, session=name, max_tokens=6, **GREEDY)
    fresh = client.generate([*FIRST, *truth, *SECOND], max_tokens=6, **GREEDY)
    assert continued.logprobs == fresh.logprobs


def test_an_expected_position_is_checked_before_anything_is_fed(client, name):
    client.generate(FIRST, session=name, max_tokens=3, ignore_eos=True, expected_position=0)
    position = len(FIRST) + 3
    for wrong in (0, position - 1, position + 1):
        with pytest.raises(mneme.PositionMismatch) as caught:
            client.generate(SECOND, session=name, max_tokens=1, expected_position=wrong)
        assert caught.value.position == position
    assert client.sessions.get(name).position == position
    client.generate(SECOND, session=name, max_tokens=0, ignore_eos=True, expected_position=position)
    with pytest.raises(mneme.PositionMismatch) as caught:
        client.generate(FIRST, session=f"{name}-new", max_tokens=1, expected_position=5)
    assert caught.value.position == 0


def test_a_repeated_request_is_answered_again_and_feeds_nothing(client, name):
    options = {"session": name, "idempotency_key": f"key-{name}", "max_tokens": 6, "logprobs": 2}
    one = client.generate(FIRST, **options)
    two = client.generate(FIRST, **options)
    assert not one.replayed
    assert two.replayed
    assert two.choices == one.choices
    assert two.seed == one.seed
    assert client.sessions.get(name).position == one.session.position


def test_a_key_of_a_running_request_is_answered_as_that_goes_on(client, name):
    options = {
        "session": name,
        "idempotency_key": f"key-{name}",
        "max_tokens": 300,
        "ignore_eos": True,
    }
    stream = client.stream(FIRST, **options)
    next(stream)
    second = client.generate(FIRST, **options)
    first = stream.result()
    assert second.replayed and not first.replayed
    assert second.choices == first.choices
    assert client.sessions.get(name).position == len(FIRST) + 300


def test_a_key_of_a_request_that_broke_off_is_refused(client, name):
    key = f"key-{name}"
    stream = client.stream(
        FIRST, session=name, idempotency_key=key, max_tokens=1_000_000, ignore_eos=True
    )
    for event in stream:
        if isinstance(event, mneme.Chunk):
            break
    stream.cancel()
    info = wait_until_idle(client, name)
    with pytest.raises(mneme.RequestBroken) as caught:
        client.generate(
            FIRST, session=name, idempotency_key=key, max_tokens=1_000_000, ignore_eos=True
        )
    assert caught.value.position == info.position
    assert client.sessions.get(name).position == info.position


def test_a_detached_request_finishes_without_its_client(client, name):
    options = {"session": name, "idempotency_key": f"key-{name}", "max_tokens": 30}
    stream = client.stream(FIRST, detached=True, ignore_eos=True, **options)
    next(stream)
    stream.cancel()
    wait_for(lambda: client.sessions.get(name).position > 0, "its beginning")
    assert wait_until_idle(client, name).position == len(FIRST) + 30
    late = client.generate(FIRST, detached=True, ignore_eos=True, **options)
    assert late.replayed
    assert len(late.token_ids) == 30


def test_penalties_look_back_on_the_whole_session(client, name):
    options = {"temperature": 0, "ignore_eos": True, "logit_bias": {9: 6.0, 10: 5.5}}
    whole = client.generate(FIRST, max_tokens=12, frequency_penalty=1.5, **options)
    part = client.generate(FIRST, session=name, max_tokens=6, frequency_penalty=1.5, **options)
    fork = client.session(name).fork(f"{name}-fork")
    rest = client.generate(session=name, max_tokens=6, frequency_penalty=1.5, **options)
    forked = fork.send(max_tokens=6, frequency_penalty=1.5, **options)
    assert part.token_ids + rest.token_ids == whole.token_ids
    assert forked.token_ids == rest.token_ids


def test_a_request_changes_the_time_to_live_of_its_session(client, name):
    client.sessions.create(name, ttl=60)
    client.generate(FIRST, session=name, ttl=120, max_tokens=1)
    assert client.sessions.get(name).ttl == 120
    client.generate(session=name, max_tokens=1)
    assert client.sessions.get(name).ttl == 120
    client.generate(session=name, ttl=math.inf, max_tokens=1)
    assert client.sessions.get(name).ttl == math.inf


def test_idle_sessions_expire(start):
    client = start("--session-ttl", "300ms").client()
    client.sessions.create("short")
    client.sessions.create("kept", ttl=math.inf)
    assert client.sessions.get("kept").ttl == math.inf
    wait_for_value(lambda: [session.name for session in client.sessions.list()], ["kept"])
    with pytest.raises(mneme.SessionNotFound):
        client.sessions.get("short")
