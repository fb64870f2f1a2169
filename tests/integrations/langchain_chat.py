"""LangChain's ChatOpenAI: whole, streamed, asynchronous, in a session.

usage: langchain_chat.py HTTP_URL MODEL_FOLDER
"""

import asyncio
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

url = sys.argv[1]


def model(**options) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="model", temperature=0, **options)


conversation = [
    SystemMessage("You remember things."),
    HumanMessage("My code is 7281."),
    AIMessage("Noted. Your code is 7281."),
    HumanMessage("What is my code?"),
]
whole = model().invoke(conversation)
assert "7281" in whole.content, whole
assert whole.usage_metadata["input_tokens"] > 10, whole

streamed = "".join(chunk.content for chunk in model(stream_usage=True).stream(conversation))
assert streamed == whole.content, streamed


async def both() -> list[str]:
    asked = await asyncio.gather(*(model().ainvoke(conversation) for _ in range(2)))
    return [answer.content for answer in asked]


assert asyncio.run(both()) == [whole.content] * 2

chain = ChatPromptTemplate.from_messages([("human", "{text}")]) | model(max_tokens=40)
assert chain.batch([{"text": "Good morning!"}, {"text": "Hello!"}])[0].content.strip()

# A session: only what is new is sent.
session = model(extra_body={"session_id": "langchain", "session_mode": "append"})
session.invoke("My name is Clara.")
answer = session.invoke("What is my name?")
assert "Clara" in answer.content, answer
assert answer.usage_metadata["input_token_details"]["cache_read"] > 0, answer
print(answer.content.strip(), answer.usage_metadata)
