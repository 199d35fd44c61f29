"""Dipwell and AsyncDipwell: the calls."""
from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from datetime import datetime

from . import _http, _sql
from ._hold import Hold, Holding
from ._values import DipwellError, key_of, takes_of, text, whole


class Calls:
    """The calls of both clients; those of AsyncDipwell are awaited.

    A key is text, or a list of the parts of a path; None is for shared limits alone. Lengths of
    time are timedeltas, or texts such as 250ms, 1m, 1h30m, 1d or 1mo.
    """

    def take(self, limit, key=None, cost=1, *, plan=None, floor=None):
        """Take cost tokens, if all are there and floor tokens stay free."""
        return self._decide("take", limit, key, cost, plan, floor)

    def check(self, limit, key=None, cost=1, *, plan=None, floor=None):
        """Answer as take would, and change nothing."""
        return self._decide("check", limit, key, cost, plan, floor)

    def take_up_to(self, limit, key=None, cost=1, *, plan=None):
        """Take as many tokens as there are, up to cost and at least one: see granted."""
        return self._decide("take_up_to", limit, key, cost, plan)

    def reserve(self, limit, key=None, cost=1, *, plan=None):
        """Take ahead of time, into debt: act after delay, or cancel the reservation."""
        return self._decide("reserve", limit, key, cost, plan)

    def charge(self, limit, key=None, cost=1):
        """Take the tokens even if they are not there."""
        return self._decide("charge", limit, key, cost)

    def refund(self, limit, key=None, cost=1):
        """Give tokens back, up to a full bucket."""
        return self._decide("refund", limit, key, cost)

    def reset(self, limit, key=None):
        """Make the bucket full, and end its reservations and holds."""
        return self._decide("reset", limit, key, 1)

    def cancel(self, reservation):
        """Give back what time has not returned yet of a reservation."""
        try:
            reservation = str(uuid.UUID(str(reservation)))
        except ValueError:
            raise DipwellError("reservation", f"{reservation!r} is no id of a reservation") from None
        return self._ask(self._link.cancel(reservation))

    def wait(self, limit, key=None, cost=1, *, timeout="30s", plan=None, floor=None):
        """Take as soon as the tokens can be had; refused at once if that is not within timeout,
        from 1ms to 10m.

        Over SQL it reserves or tries again, and sleeps here. In a transaction the key's row then
        stays locked during the sleep: use a connection in autocommit mode."""
        return self._run(self._link.wait(*_one(limit, key, cost), timeout, *_how(plan, floor), time.monotonic))

    def take_all(self, takes):
        """Take from several limits, or from none. takes has tuples (limit, key, cost), or dicts
        that may have plan and floor too. The result is that of the limit that decides, and its
        limits are those of each, and then of their parents."""
        return self._ask(self._link.take_all(takes_of(takes)))

    def ready(self, limit, keys, cost=1, *, plan=None):
        """Return those of at most 1,000 keys for which take would be allowed now."""
        if isinstance(keys, str):
            raise DipwellError("keys", "has type str, but must be a list of keys")
        keys = [key_of(k, f"keys[{i}]") for i, k in enumerate(keys)]
        return self._ask(self._link.ready(text(limit, "limit"), keys, whole(cost, "cost"), _how(plan, None)[0]))

    def hold(self, limit, key=None, cost=1, *, ttl, id=None, plan=None, floor=None):
        """Take, and hold until settle says what was used or ttl has passed.

        With an id the call is safe to repeat: the result is then repeated, and nothing is taken
        again."""
        return self._holding(self._link.hold(*_one(limit, key, cost), ttl, _id(id), *_how(plan, floor)))

    def hold_all(self, takes, *, ttl, id=None):
        """Hold of several limits, all or nothing: takes as in take_all."""
        takes = takes_of(takes)
        return self._holding(self._link.hold_all(takes, ttl, _id(id)), len(takes))

    def settle(self, hold, cost=None):
        """End the hold of this id with the actual cost, a list for hold_all; None: as held."""
        costs = None
        if isinstance(cost, (list, tuple)):
            cost, costs = None, [whole(c, f"costs[{i}]") for i, c in enumerate(cost)]
        return self._ask(self._link.settle(text(hold, "hold"), None if cost is None else whole(cost, "cost"), costs))

    def extend(self, hold, ttl):
        """Let the hold of this id expire ttl from now, and return when."""
        return self._ask(self._link.extend(text(hold, "hold"), ttl))

    def define(self, name, rate=None, per=None, burst=None, **settings):
        """Define a limit, or change it: settings as in a configuration file."""
        settings = {"rate": rate, "per": per, "burst": burst, **settings}
        settings = {k: v for k, v in settings.items() if v is not None}
        for field in ("rate", "burst", "parts", "shards"):
            if field in settings:
                settings[field] = whole(settings[field], field)
        return self._ask(self._link.define(text(name, "name"), settings))

    def override(self, limit, key=None, *, plan=None, rate=None, per=None, burst=None, until=None, note=None, start=None):
        """Give a key a plan or numbers of its own, until a datetime or for good."""
        if until is not None and (not isinstance(until, datetime) or until.utcoffset() is None):
            raise DipwellError("until", f"{until!r} is not a datetime with a time zone")
        rate, burst = rate if rate is None else whole(rate, "rate"), burst if burst is None else whole(burst, "burst")
        return self._ask(self._link.override(text(limit, "limit"), key_of(key), plan, rate, per, burst, until, note, start))

    def end_override(self, limit, key=None, kind=None):
        """End an override: the standing or temporary one, by default the one that decides. Return
        False if there is none."""
        return self._run(self._link.end_override(text(limit, "limit"), key_of(key), kind))

    def install(self):
        """Create the schema dipwell, in one transaction; if it is there, do nothing.

        It is part of the caller's transaction, unless the connection is in autocommit mode."""
        return self._ask(self._link.install())

    def _decide(self, verb, limit, key, cost, plan=None, floor=None):
        if plan is not None or floor is not None:
            plan, floor = _how(plan, floor)
        return self._ask(self._link.decision(verb, text(limit, "limit"), key_of(key), whole(cost, "cost"), plan, floor))


def _one(limit, key, cost):
    return text(limit, "limit"), key_of(key), whole(cost, "cost")


def _how(plan, floor):
    return None if plan is None else text(plan, "plan"), None if floor is None else whole(floor, "floor")


def _id(id):
    return None if id is None else text(id, "id")


class Dipwell(Calls):
    """Limits over a DB-API connection, such as psycopg's, in its transaction."""

    def __init__(self, conn):
        self._link = _sql.Connection(conn)

    @classmethod
    def http(cls, url, token=None, *, client=None, timeout=10.0):
        """Return a client of a service, over urllib or a given httpx.Client. timeout is in
        seconds, of each call."""
        self = cls.__new__(cls)
        self._link = _http.Urllib(url, token, timeout) if client is None else _http.Client(url, token, timeout, client)
        return self

    def _ask(self, call):
        args, read = call
        return read(self._link.send(*args))

    def _holding(self, call, takes=1):
        return Hold(self, self._ask(call), takes)

    def _run(self, steps):
        """Make the calls and sleeps of a generator, and return its result."""
        resume, value = steps.send, None
        try:
            while True:
                step = resume(value)
                try:
                    resume, value = steps.send, time.sleep(step) if isinstance(step, float) else self._ask(step)
                except BaseException as e:
                    resume, value = steps.throw, e
        except StopIteration as end:
            return end.value


class AsyncDipwell(Calls):
    """Limits over an asynchronous connection of psycopg 3, in its transaction."""

    def __init__(self, aconn):
        self._link = _sql.AsyncConnection(aconn)

    @classmethod
    def http(cls, url, token=None, *, client, timeout=10.0):
        """Return a client of a service, over an httpx.AsyncClient."""
        self = cls.__new__(cls)
        self._link = _http.AsyncClient(url, token, timeout, client)
        return self

    async def _ask(self, call):
        args, read = call
        return read(await self._link.send(*args))

    def _holding(self, call, takes=1):
        return Holding(self, call, takes)

    async def _run(self, steps):
        resume, value = steps.send, None
        ask = self._outlast if isinstance(self._link, _sql.SQL) else self._ask
        try:
            while True:
                step = resume(value)
                try:
                    resume, value = steps.send, await (asyncio.sleep(step) if isinstance(step, float) else ask(step))
                except BaseException as e:
                    resume, value = steps.throw, e
        except StopIteration as end:
            return end.value

    async def _outlast(self, call):
        """Ask, and if cancelled meanwhile, wait up to a second for the answer: it may be a
        reservation to give back."""
        task = asyncio.ensure_future(self._ask(call))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            done, late = await asyncio.wait({task}, timeout=1)
            for t in late:
                t.cancel()
            for t in done:
                if t.exception() is None and getattr(t.result(), "reservation", None):
                    with suppress(DipwellError):  # it has just fallen due
                        await self.cancel(t.result().reservation)
            raise
