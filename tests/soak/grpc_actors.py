"""Clients over gRPC, well-behaved and otherwise."""

import asyncio
import random

import mneme
from ledger import Ledger

ENDLESS = {"max_tokens": 1_000_000, "ignore_eos": True}
# A request that its client leaves may have ended before the server hears of it; one that waits in a
# queue of the server's may be refused there.
LEFT = ("cancelled", "completed", "rejected")


class GrpcActors:
    """Each method is one round of something; all share a few clients."""

    def __init__(self, target: str, keys: dict[str, str], ledger: Ledger, random_: random.Random):
        self._target = target
        self._keys = keys
        self.ledger = ledger
        self.random = random_
        self.clients = {name: self.client(keys[name]) for name in ("alice", "bob", "carol")}

    def client(self, key: str) -> mneme.AsyncClient:
        return mneme.AsyncClient(self._target, api_key=key, retry=None, timeout=60)

    def anybody(self) -> mneme.AsyncClient:
        return self.clients[self.random.choice(["alice", "bob"])]

    def prompt(self) -> list[int]:
        return [self.random.randrange(256) for _ in range(self.random.choice([1, 3, 10, 60, 400]))]

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()

    async def generate(self, client, prompt, *, n=1, **options):
        """A request that runs to its end; None if there was no room for it."""
        request = self.ledger.new_id()
        length = self.random.randint(1, 30)
        options = {"max_tokens": length, "ignore_eos": True, "request_id": request, **options}
        try:
            answer = await client.generate(prompt, n=n, **options)
        except mneme.Overloaded:
            self.ledger.expect(request, "rejected")
            return None
        expected = options["max_tokens"] * n
        tokens = sum(len(choice.token_ids) for choice in answer.choices)
        self.ledger.check(tokens == expected, f"{request}: {tokens} tokens for {expected}")
        self.ledger.expect(request, "completed", tokens=tokens)
        return answer

    async def converse(self) -> None:
        """Turns of a session whose position is known to the token; a fork goes its own way."""
        client, name = self.anybody(), f"talk-{self.ledger.new_id()}"
        position = 0
        if self.random.random() < 0.5:
            try:
                await client.sessions.create(name, ttl=60)
            except mneme.Overloaded:
                return
        forked = None
        for _ in range(self.random.randint(2, 6)):
            prompt = self.prompt()
            answer = await self.generate(client, prompt, session=name, expected_position=position)
            if answer is None:
                break
            position += len(prompt) + len(answer.token_ids)
            held = answer.session.position
            self.ledger.check(held == position, f"{name}: at {held}, expected {position}")
            position = held
            if forked is None and self.random.random() < 0.3:
                try:
                    forked = (await client.sessions.fork(name, f"{name}-fork")).name
                except mneme.Overloaded:
                    pass
        if forked is not None:
            await self.generate(client, [1, 2], session=forked)
            await client.sessions.delete(forked)
        try:
            await client.sessions.delete(name)
        except mneme.SessionNotFound:  # its first request found no room
            pass

    async def expire(self) -> None:
        """A session that nobody deletes."""
        client, name = self.anybody(), f"expires-{self.ledger.new_id()}"
        if await self.generate(client, [5], session=name, ttl=0.2) is None:
            return
        for _ in range(600):
            await asyncio.sleep(0.1)
            try:
                await client.sessions.get(name)
            except mneme.SessionNotFound:
                self.ledger.seen["session expired"] += 1
                return
        self.ledger.check(False, f"{name} does not expire")

    async def many_answers(self) -> None:
        await self.generate(self.anybody(), self.prompt(), n=self.random.randint(2, 4), logprobs=2)

    async def cancel(self) -> None:
        """Reads a little of an endless answer, of a session or without one."""
        client, request = self.anybody(), self.ledger.new_id()
        session = f"left-{request}" if self.random.random() < 0.5 else None
        stream = client.stream(self.prompt(), session=session, request_id=request, **ENDLESS)
        try:
            for _ in range(self.random.choice([0, 1, 2, 10])):
                await stream.__anext__()
        except mneme.Overloaded:
            self.ledger.expect(request, "rejected")
            return
        stream.cancel()
        self.ledger.expect(request, *LEFT, is_logged=False)
        if session is not None:
            await self.delete_when_idle(client, session)

    async def delete_when_idle(self, client, session) -> None:
        for _ in range(1200):
            try:
                return await client.sessions.delete(session)
            except mneme.SessionNotFound:  # not there yet, or never
                await asyncio.sleep(0.5)
                try:
                    return await client.sessions.delete(session)
                except mneme.SessionNotFound:
                    return None
                except mneme.SessionBusy:
                    continue
            except mneme.SessionBusy:
                await asyncio.sleep(0.05)
        return self.ledger.check(False, f"{session} stays busy after its client left")

    async def disconnect(self) -> None:
        """A connection that is closed with requests on it."""
        client = self.client(self._keys["bob"])
        requests = [self.ledger.new_id() for _ in range(3)]
        streams = [client.stream([7], request_id=r, **ENDLESS) for r in requests]
        try:
            await streams[0].__anext__()
        except mneme.Overloaded:
            pass
        await client.close()
        for request in requests:
            self.ledger.expect(request, *LEFT, is_logged=False)

    async def read_slowly(self) -> None:
        """Longer than the stream's capacity, so that the request pauses."""
        client, request = self.anybody(), self.ledger.new_id()
        stream = client.stream([9], request_id=request, max_tokens=600, ignore_eos=True)
        tokens = 0
        try:
            async for event in stream:
                if isinstance(event, mneme.Chunk):
                    if tokens == 0:
                        await asyncio.sleep(1)
                    tokens += len(event.token_ids)
        except mneme.Overloaded:
            self.ledger.expect(request, "rejected")
            return
        self.ledger.check(tokens == 600, f"{request}: {tokens} of 600 tokens")
        self.ledger.expect(request, "completed", tokens=tokens)

    async def run_out_of_time(self) -> None:
        client, request = self.anybody(), self.ledger.new_id()
        try:
            await client.generate([3], request_id=request, timeout=0.05, **ENDLESS)
            self.ledger.check(False, f"{request} ignores its deadline")
        except (mneme.DeadlineExceeded, mneme.Overloaded):
            self.ledger.expect(request, "deadline", *LEFT, is_logged=False)

    async def repeat(self) -> None:
        """The same request again: the same answer, and nothing fed."""
        client, name = self.anybody(), f"again-{self.ledger.new_id()}"
        key = {"idempotency_key": self.ledger.new_id(), "session": name, "max_tokens": 5}
        first = await self.generate(client, [1, 2, 3], **key)
        if first is None:
            return
        request = self.ledger.new_id()
        try:
            again = await client.generate([1, 2, 3], ignore_eos=True, request_id=request, **key)
            self.ledger.expect(request, "replayed")
            same = again.token_ids == first.token_ids and again.replayed
            self.ledger.check(same, f"{request} is not the answer to its first request")
        except mneme.Overloaded:
            self.ledger.expect(request, "rejected")
        other = self.ledger.new_id()
        await self.refused(client, mneme.InvalidArgument, [4], request_id=other, **key)
        position = (await client.sessions.get(name)).position
        self.ledger.check(position == 8, f"{name} is at {position} after repetitions, expected 8")
        await client.sessions.delete(name)

    async def refused(self, client, error, prompt, **options) -> None:
        request = options.setdefault("request_id", self.ledger.new_id())
        try:
            await client.generate(prompt, **options)
            self.ledger.check(False, f"{request} was taken: {options}")
        except (error, mneme.Overloaded) as caught:
            self.ledger.expect(request, "rejected")
            self.ledger.check(bool(caught.reason), f"{request}: {caught} gives no reason")

    async def ask_wrongly(self) -> None:
        client, bad = self.anybody(), mneme.InvalidArgument
        await self.refused(client, bad, [256])
        await self.refused(client, bad, [1], top_p=7.0)
        await self.refused(client, bad, [1], max_tokens=-1)
        await self.refused(client, bad, [1], n=1000)
        await self.refused(client, bad, [1], session="not a name")
        await self.refused(client, bad, "x" * 3_000_000)
        await self.refused(client, bad, [1], logit_bias={300: 1.0})
        await self.refused(client, mneme.NotFound, [1], model="another")
        await self.refused(client, mneme.NotFound, [1], session="none", create_if_missing=False)
        for call in (client.sessions.get("none"), client.sessions.delete("none")):
            try:
                await call
                self.ledger.check(False, "a session that is not there was found")
            except mneme.SessionNotFound:
                pass

    async def quarrel(self) -> None:
        """Two requests for one session: one of them is told to wait."""
        client, name = self.anybody(), f"shared-{self.ledger.new_id()}"
        request = self.ledger.new_id()
        first = client.stream([1], session=name, request_id=request, **ENDLESS)
        try:
            while not getattr(await first.__anext__(), "token_ids", ()):
                pass
        except mneme.Overloaded:
            self.ledger.expect(request, "rejected")
            return
        await self.refused(client, mneme.SessionBusy, [2], session=name)
        first.cancel()
        self.ledger.expect(request, "cancelled")
        await self.delete_when_idle(client, name)

    async def overload(self) -> None:
        """More at once than the queue holds, and than a key with a limit may."""
        await asyncio.gather(*(self.generate(self.anybody(), [i]) for i in range(120)))
        carol = self.clients["carol"]
        await asyncio.gather(*(self.generate(carol, [i], max_tokens=20) for i in range(6)))
