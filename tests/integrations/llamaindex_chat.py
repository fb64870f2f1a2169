"""LlamaIndex's OpenAILike: chats and completions, whole and streamed, in a session.

usage: llamaindex_chat.py HTTP_URL MODEL_FOLDER
"""

import asyncio
import sys

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

url = sys.argv[1]


def model(**options) -> OpenAILike:
    return OpenAILike(
        api_base=f"{url}/v1",
        api_key="none",
        model="model",
        is_chat_model=True,
        context_window=1_000_000,  # there is none, but LlamaIndex wants to know
        max_tokens=64,
        temperature=0,
        **options,
    )


conversation = [
    ChatMessage(role="system", content="You remember things."),
    ChatMessage(role="user", content="My code is 7281."),
    ChatMessage(role="assistant", content="Noted. Your code is 7281."),
    ChatMessage(role="user", content="What is my code?"),
]
whole = model().chat(conversation).message.content
assert "7281" in whole, whole
streamed = "".join(part.delta or "" for part in model().stream_chat(conversation))
assert streamed == whole, streamed
assert asyncio.run(model().achat(conversation)).message.content == whole

completing = OpenAILike(
    api_base=f"{url}/v1", api_key="none", model="model", is_chat_model=False, max_tokens=16, temperature=0
)
assert completing.complete("On Monday Ben went to the market").text.strip()

# LlamaIndex keeps the conversation, and sends it again with each turn.
engine = SimpleChatEngine.from_defaults(llm=model())
engine.chat("My name is Clara.")
assert "Clara" in str(engine.chat("What is my name?"))

# A session: only what is new is sent.
session = model(additional_kwargs={"extra_body": {"session_id": "llamaindex", "session_mode": "append"}})
session.chat([ChatMessage(role="user", content="My name is Clara.")])
answer = session.chat([ChatMessage(role="user", content="What is my name?")])
assert "Clara" in answer.message.content, answer
assert answer.raw.usage.prompt_tokens_details.cached_tokens > 0, answer.raw
print(answer.message.content.strip(), answer.raw.usage.prompt_tokens_details.cached_tokens)
