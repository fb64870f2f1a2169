"""Client for Mneme, the inference server for recurrent-memory language models.

from mneme import Client

with Client("127.0.0.1:50051") as client:
    session = client.session("anna")
    session.chat("My name is Anna.")
    print(session.chat("What is my name?"))
"""

from mneme import errors, memory, types
from mneme.aio import AsyncClient, AsyncStream
from mneme.aio_sessions import AsyncSession, AsyncSessions
from mneme.channel import tls_credentials
from mneme.client import Client, Stream
from mneme.errors import *  # noqa: F403
from mneme.memory import *  # noqa: F403
from mneme.requests import (
    ChatMessage,
    ChatOptions,
    Document,
    Duration,
    GenerateOptions,
    Messages,
    Place,
    Prompt,
    RequestOptions,
)
from mneme.retry import RetryPolicy
from mneme.sessions import Session, Sessions
from mneme.types import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "AsyncSessions",
    "AsyncStream",
    "ChatMessage",
    "ChatOptions",
    "Client",
    "Document",
    "Duration",
    "GenerateOptions",
    "Messages",
    "Place",
    "Prompt",
    "RequestOptions",
    "RetryPolicy",
    "Session",
    "Sessions",
    "Stream",
    "tls_credentials",
]
__all__ += errors.__all__
__all__ += memory.__all__
__all__ += types.__all__
