"""Tokens that are held until their cost is known."""
from __future__ import annotations

from ._values import DipwellError


class _Held:
    """What Hold and AsyncHold share. They have the members of Result too: h.allowed, …"""

    def __init__(self, client, result, takes):
        self._client, self.result, self._takes = client, result, takes
        # A repeated call may be another program's hold, which only settle ends.
        self._open = result.allowed and not result.repeated

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.result, name)

    def __bool__(self):
        return self.result.allowed

    @property
    def id(self):
        return self.result.hold

    def _costs(self, cost):
        return [0] * self._takes if type(cost) is int and cost == 0 and self._takes > 1 else cost

    def _known(self):
        if not self.result.allowed:
            raise DipwellError("hold", "was refused: there is nothing to settle or extend")
        return self.id


class Hold(_Held):
    """Tokens that are held until settle says what was used, or until they expire.

    As a context manager it settles as held at the end of the block if settle was not
    called, and gives everything back after an exception. A hold that was refused, or
    that repeats an earlier call, is left alone.
    """

    def settle(self, cost=None):
        """End the hold with the actual cost: give back the rest, or charge the difference.

        For several limits cost is a list, with an entry for each, or 0 to give everything back.
        None is what was held."""
        r = self._client.settle(self._known(), self._costs(cost))
        self._open = False
        return r

    def extend(self, ttl):
        """Let the hold expire ttl from now, and return when."""
        return self._client.extend(self._known(), ttl)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if not self._open:
            return
        if kind is None:
            self.settle()
            return
        try:
            self.settle(0)
        except Exception:
            pass  # the transaction has failed, or the connection: the tokens come back with it, or by expiry


class AsyncHold(_Held):
    """Hold, of an AsyncDipwell."""

    async def settle(self, cost=None):
        r = await self._client.settle(self._known(), self._costs(cost))
        self._open = False
        return r

    async def extend(self, ttl):
        return await self._client.extend(self._known(), ttl)


class Holding:
    """What AsyncDipwell.hold returns: ``h = await d.hold(…)`` or ``async with d.hold(…) as h``."""

    def __init__(self, client, call, takes):
        self._client, self._call, self._takes, self._hold = client, call, takes, None

    def __await__(self):
        return self._make().__await__()

    async def _make(self):
        return AsyncHold(self._client, await self._client._ask(self._call), self._takes)

    async def __aenter__(self):
        self._hold = await self
        return self._hold

    async def __aexit__(self, kind, error, trace):
        if not self._hold._open:
            return
        if kind is None:
            await self._hold.settle()
            return
        try:
            await self._hold.settle(0)
        except Exception:
            pass  # as in Hold
