"""OpenAI's own SDK, with the fields that it may send.

usage: openai_chat.py HTTP_URL MODEL_FOLDER
"""

import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
assert [model.id for model in client.models.list()] == ["model"]

answer = client.chat.completions.create(
    model="model",
    messages=[
        {"role": "developer", "content": "You remember things."},
        {"role": "user", "content": [{"type": "text", "text": "My code is 7281."}]},
        {"role": "assistant", "content": "Noted. Your code is 7281."},
        {"role": "user", "content": "What is my code?"},
    ],
    temperature=0,
    store=True,
    metadata={"purpose": "a check"},
    reasoning_effort="low",
    safety_identifier="somebody",
    prompt_cache_key="a-key",
    service_tier="auto",
    response_format={"type": "text"},
    max_completion_tokens=40,
)
assert "7281" in answer.choices[0].message.content, answer

# A session: only what is new is sent.
session = {"model": "model", "temperature": 0, "extra_body": {"session_id": "openai", "session_mode": "append"}}
client.chat.completions.create(messages=[{"role": "user", "content": "My name is Clara."}], **session)
stream = client.chat.completions.create(
    messages=[{"role": "user", "content": "What is my name?"}],
    stream=True,
    stream_options={"include_usage": True},
    **session,
)
chunks = list(stream)
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert "Clara" in text, text
assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, chunks[-1]
print(text.strip(), chunks[-1].usage.prompt_tokens_details.cached_tokens)
