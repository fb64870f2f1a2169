"""LiteLLM's SDK: whole, streamed, asynchronous, as text, in a session.

usage: litellm_chat.py HTTP_URL MODEL_FOLDER
"""

import asyncio
import sys

import litellm

url = sys.argv[1]
common = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
conversation = [
    {"role": "developer", "content": "You remember things."},
    {"role": "user", "content": "My code is 7281."},
    {"role": "assistant", "content": "Noted. Your code is 7281."},
    {"role": "user", "content": "What is my code?"},
]
chat = {"model": "openai/model", **common}

whole = litellm.completion(messages=conversation, **chat).choices[0].message.content
assert "7281" in whole, whole
chunks = litellm.completion(messages=conversation, stream=True, **chat)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


async def one() -> str:
    return (await litellm.acompletion(messages=conversation, **chat)).choices[0].message.content


assert asyncio.run(one()) == whole

text = litellm.text_completion(
    model="text-completion-openai/model", prompt="On Monday Ben went to the market", max_tokens=16, **common
)
assert text.choices[0].text.strip(), text

# A session: only what is new is sent.
session = {**chat, "extra_body": {"session_id": "litellm", "session_mode": "append"}}
litellm.completion(messages=[{"role": "user", "content": "My name is Clara."}], **session)
answer = litellm.completion(messages=[{"role": "user", "content": "What is my name?"}], **session)
assert "Clara" in answer.choices[0].message.content, answer
assert answer.usage.prompt_tokens_details.cached_tokens > 0, answer
print(answer.choices[0].message.content.strip(), answer.usage.prompt_tokens_details.cached_tokens)
