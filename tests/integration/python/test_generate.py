"""Generation: what is drawn, when it ends, and what is sent back."""

import math

import pytest

import mneme

from golden import GOLDEN, int_tensor

PROMPT = [72, 101, 108, 108, 111]


def greedy(client, prompt, tokens, **options):
    return client.generate(
        prompt, max_tokens=tokens, temperature=0, ignore_eos=True, **options
    ).token_ids


def test_greedy_tokens_are_those_of_the_reference_implementation(client, golden_model):
    golden = golden_model / "golden.safetensors"
    expected = int_tensor(golden, "greedy_from_16")
    prompt = int_tensor(golden, "input_ids")[:16]
    assert list(greedy(client, prompt, len(expected))) == expected


def test_a_stream_begins_with_started_and_ends_with_finished(client):
    events = list(client.stream(PROMPT, max_tokens=8, ignore_eos=True))
    assert isinstance(events[0], mneme.Started)
    assert isinstance(events[-1], mneme.Finished)
    chunks = events[1:-1]
    assert all(isinstance(chunk, mneme.Chunk) for chunk in chunks)
    assert sum(len(chunk.token_ids) for chunk in chunks) == 8
    assert [c.finish_reason for c in chunks if c.finish_reason] == [mneme.FinishReason.LENGTH]
    assert chunks[-1].finish_reason is mneme.FinishReason.LENGTH
    assert events[0].prompt_tokens == len(PROMPT)
    usage = events[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.resumed_tokens) == (5, 8, 0)
    # The last token is not fed.
    assert usage.fed_tokens == 5 + 8 - 1


def test_tokens_arrive_while_the_answer_is_being_made(client):
    stream = client.stream(PROMPT, max_tokens=100_000, ignore_eos=True)
    chunks = 0
    for event in stream:
        chunks += isinstance(event, mneme.Chunk)
        if chunks == 3:
            break
    assert stream.finished is None


def test_the_same_seed_draws_the_same_tokens(client):
    def draw(seed):
        return client.generate(PROMPT, max_tokens=24, seed=seed, ignore_eos=True)

    first = draw(11)
    assert first.seed == 11
    assert draw(11).token_ids == first.token_ids
    assert draw(12).token_ids != first.token_ids


def test_without_a_seed_each_request_draws_its_own_and_tells_it(client):
    one = client.generate(PROMPT, max_tokens=24, ignore_eos=True)
    two = client.generate(PROMPT, max_tokens=24, ignore_eos=True)
    assert one.seed != two.seed
    assert one.token_ids != two.token_ids
    again = client.generate(PROMPT, max_tokens=24, ignore_eos=True, seed=one.seed)
    assert again.token_ids == one.token_ids


def test_top_k_of_one_is_greedy(client):
    expected = greedy(client, PROMPT, 12)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        drawn = client.generate(PROMPT, max_tokens=12, seed=3, ignore_eos=True, **options)
        assert drawn.token_ids == expected, options


def test_bias_bans_and_forces_tokens(client):
    first = greedy(client, PROMPT, 1)[0]
    assert greedy(client, PROMPT, 1, logit_bias={first: -100.0})[0] != first
    assert greedy(client, PROMPT, 3, logit_bias={9: 100.0}) == (9, 9, 9)


def test_a_frequency_penalty_ends_repetition(client):
    free = greedy(client, PROMPT, 40, logit_bias={9: 5.0, 10: 4.5})
    held = greedy(client, PROMPT, 40, logit_bias={9: 5.0, 10: 4.5}, frequency_penalty=2.0)
    assert len(set(held)) > len(set(free))


def test_n_choices_are_drawn_apart_and_repeatably(client):
    completion = client.generate(PROMPT, max_tokens=16, n=4, seed=5, ignore_eos=True)
    answers = [choice.token_ids for choice in completion.choices]
    assert len(set(answers)) == 4
    assert all(len(tokens) == 16 for tokens in answers)
    assert completion.usage.completion_tokens == 64
    again = client.generate(PROMPT, max_tokens=16, n=4, seed=5, ignore_eos=True)
    assert [choice.token_ids for choice in again.choices] == answers
    # Choice 0 is what a request for one choice gets.
    alone = client.generate(PROMPT, max_tokens=16, seed=5, ignore_eos=True)
    assert alone.token_ids == answers[0]


def test_logprobs_are_of_the_model_and_sorted(client):
    completion = client.generate(PROMPT, max_tokens=6, temperature=0, logprobs=5, ignore_eos=True)
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    for entry in completion.logprobs:
        assert entry.logprob is not None
        assert entry.logprob < 0
        tops = [top.logprob for top in entry.top]
        assert len(tops) == 5
        assert tops == sorted(tops, reverse=True)
        assert entry.top[0].token_id == entry.token_id  # greedy
        assert entry.top[0].logprob == entry.logprob
        assert sum(math.exp(logprob) for logprob in tops) <= 1 + 1e-5
    # Not those that the sampling options make of it.
    biased = client.generate(PROMPT, max_tokens=1, temperature=0, logprobs=0, logit_bias={9: 100.0})
    assert biased.token_ids == (9,)
    assert biased.logprobs[0].logprob < -1
    assert biased.logprobs[0].top == ()


def test_prompt_logprobs_agree_with_those_of_generation(client):
    made = client.generate(PROMPT, max_tokens=6, temperature=0, logprobs=2, ignore_eos=True)
    whole = [*PROMPT, *made.token_ids]
    scored = client.generate(whole, max_tokens=0, prompt_logprobs=2)
    assert scored.prompt is not None
    assert scored.prompt.token_ids == tuple(whole)
    assert scored.prompt.logprobs[0].logprob is None  # nothing predicts the first token
    assert scored.prompt.logprobs[len(PROMPT) :] == made.logprobs
    assert scored.token_ids == ()


def test_prompt_logprobs_of_a_long_prompt_are_complete(client):
    prompt = [(7 * i) % 256 for i in range(3000)]
    scored = client.generate(prompt, max_tokens=0, prompt_logprobs=0)
    assert scored.prompt is not None
    assert scored.prompt.token_ids == tuple(prompt)
    assert len(scored.prompt.logprobs) == 3000
    assert all(entry.logprob is not None for entry in scored.prompt.logprobs[1:])


def test_echo_sends_the_prompt_first(client):
    events = list(client.stream(PROMPT, max_tokens=4, echo=True, ignore_eos=True))
    chunks = [event for event in events if isinstance(event, mneme.Chunk)]
    marks = [chunk.is_prompt for chunk in chunks]
    assert marks == sorted(marks, reverse=True)
    echoed = [token for chunk in chunks if chunk.is_prompt for token in chunk.token_ids]
    assert echoed == PROMPT
    text = "".join(chunk.text for chunk in chunks if chunk.is_prompt)
    assert text == client.detokenize(PROMPT)


def test_max_tokens_zero_only_feeds_the_prompt(client, name):
    completion = client.generate(PROMPT, session=name, max_tokens=0)
    assert completion.token_ids == ()
    assert completion.finish_reason is mneme.FinishReason.LENGTH
    assert completion.session == mneme.SessionState(name, len(PROMPT), False)


def test_stop_tokens_end_a_choice(client):
    free = greedy(client, PROMPT, 12)
    stop = free[5]
    first = free.index(stop)
    completion = client.generate(
        PROMPT, max_tokens=12, temperature=0, stop_token_ids=[stop], ignore_eos=True
    )
    assert completion.token_ids == free[: first + 1]
    assert completion.finish_reason is mneme.FinishReason.STOP
    assert completion.choices[0].stop_matched == str(stop)


def test_stop_strings_are_trimmed_exactly(text_client):
    free = text_client.generate("Once upon a time", max_tokens=60, temperature=0, ignore_eos=True)
    assert len(free.text) >= 12, free.text
    start = len(free.text) // 2
    stop = free.text[start : start + 3]
    options = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "stop": [stop]}
    stopped = text_client.generate("Once upon a time", **options)
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason is mneme.FinishReason.STOP
    assert stopped.choices[0].stop_matched == stop
    kept = text_client.generate("Once upon a time", include_stop_in_output=True, **options)
    assert kept.text == free.text[: free.text.index(stop) + len(stop)]


def test_min_tokens_puts_the_end_off(client):
    first = greedy(client, PROMPT, 1)[0]
    options = {"max_tokens": 8, "temperature": 0, "stop_token_ids": [first], "ignore_eos": True}
    assert client.generate(PROMPT, **options).token_ids == (first,)
    later = client.generate(PROMPT, min_tokens=5, **options)
    assert first not in later.token_ids[:5]


def test_the_pieces_of_a_stream_are_the_text_of_its_tokens(text_client):
    for seed in range(6):
        stream = text_client.stream("Grüße, 世界! 🙂", max_tokens=48, seed=seed, ignore_eos=True)
        completion = stream.result()
        assert completion.text == text_client.detokenize(completion.token_ids, continuation=True), (
            f"seed {seed}"
        )
        completion.text.encode()


def test_unicode_survives_tokenizing(text_client):
    for text in ("Grüße", "世界 と 🙂", "a\tb\nc", "é\u0301", " two  spaces ", "\u202ertl"):
        ids = text_client.tokenize(text).ids
        assert text_client.detokenize(ids) == text, repr(text)


def test_tokenize_knows_bos_and_continuations(text_client):
    info = text_client.info().model
    assert info.tokenizer == "sentencepiece"
    plain = text_client.tokenize("Hello", add_special_tokens=False).ids
    assert text_client.tokenize("Hello", add_special_tokens=True).ids == (
        info.bos_token_id,
        *plain,
    )
    # No BOS and no dummy prefix in the middle of a session.
    middle = text_client.tokenize("Hello", continuation=True).ids
    assert middle != plain
    assert text_client.detokenize([*plain, *middle]) == "HelloHello"
    pieces = text_client.tokenize("Hello", with_pieces=True)
    assert len(pieces.pieces) == len(pieces.ids)


def test_tokenizing_equals_sentencepiece(text_client):
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(GOLDEN / "tokenizer_sp" / "bpe.model")
    )
    for text in ("", "Hello, world 123", "Grüße, 世界! 🙂", "  spaces  ", "\x00\x01"):
        ids = text_client.tokenize(text, add_special_tokens=False).ids
        assert list(ids) == processor.encode(text), repr(text)


def test_a_text_prompt_that_begins_a_session_starts_with_bos(text_client):
    for add_bos in (True, False):
        expected = text_client.tokenize("Hello", add_special_tokens=add_bos).ids
        completion = text_client.generate(
            "Hello", max_tokens=1, echo=True, skip_special_tokens=False, add_special_tokens=add_bos
        )
        assert completion.prompt is not None
        assert completion.prompt.token_ids == expected


def test_timings_and_usage_add_up(client):
    completion = client.generate([1] * 200, max_tokens=20, ignore_eos=True)
    assert completion.usage.prompt_tokens == 200
    assert completion.timings.queue_ms >= 0
    assert completion.timings.prefill_ms > 0
    assert completion.timings.decode_ms > 0
