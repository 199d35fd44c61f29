"""Results, errors, and what arguments may be."""
from __future__ import annotations

import hashlib
import operator
import re
from datetime import datetime, timedelta
from typing import NamedTuple, Optional, Tuple, Union

MAX_INT = 2**53 - 1


class DipwellError(Exception):
    """A call that is wrong, or that could not be decided.

    field is the argument that is wrong, or None; reason says why. code is the SQLSTATE of
    PostgreSQL, the status of an HTTP answer, or None if the client found it.
    """

    def __init__(self, field, reason, code=None):
        super().__init__(field, reason, code)
        self.field, self.reason, self.code = field, reason, code

    def __str__(self):
        return f"{self.field}: {self.reason}" if self.field else self.reason


def without(field, reason):
    """Return a reason without its field, and without what is before that."""
    before, colon, rest = reason.partition(f"{field}: ")
    return rest if colon and (not before or before.endswith(": ")) else reason


class Result(NamedTuple):
    """What a call was told. It is true in a condition if the call was allowed."""

    allowed: bool
    remaining: int  # whole tokens left after the call
    retry_after: Optional[timedelta]  # None: allowed, or no wait helps
    reset_after: Optional[timedelta]  # until the bucket is full
    granted: int  # tokens taken
    delay: timedelta  # how long to wait before acting, of reserve and leaky buckets
    never: bool  # no wait helps: more than the limit can hold, or a blocked key
    reservation: Optional[str] = None  # for cancel, if there is a delay
    hold: Optional[str] = None  # the id of a hold
    expires: Optional[datetime] = None  # when the hold does
    repeated: bool = False  # the call was made before, and nothing was taken
    limit: Optional[str] = None  # of an entry of limits
    key: Optional[str] = None
    limits: Tuple["Result", ...] = ()  # of several limits: each of them, and then their parents

    def __bool__(self):
        return self.allowed


def decides(results):
    """Return the result that decides a call of several limits: of refusals the one with the
    latest retry, otherwise the one with the fewest remaining tokens."""
    refused = [r for r in results if not r.allowed]
    if not refused:
        return min(results, key=lambda r: r.remaining)
    return max(refused, key=lambda r: (r.never, r.retry_after or timedelta()))


def whole(n, field):
    """Return n, a whole number from 0 to 2^53-1."""
    if type(n) is not int:
        if isinstance(n, bool) or not hasattr(type(n), "__index__"):
            raise DipwellError(field, f"{n!r} is not a whole number")
        n = operator.index(n)
    if not 0 <= n <= MAX_INT:
        raise DipwellError(field, f"{n} is not between 0 and 2^53-1")
    return n


def text(s, field):
    """Return s, a text that every store can keep."""
    if type(s) is not str and not isinstance(s, str):
        raise DipwellError(field, f"has type {type(s).__name__}, but must be text (str)")
    if "\0" in s or not s.isascii() and any("\ud800" <= c <= "\udfff" for c in s):
        raise DipwellError(field, "has a character that is not allowed in UTF-8 text")
    return s


def key_of(key, field="key"):
    """Return a key. None is that of a shared limit; a list of parts becomes a path."""
    if isinstance(key, (list, tuple)):
        if "" in key:
            raise DipwellError(field, f"part {key.index('') + 1} is empty")
        return "/".join(text(p, field).replace("%", "%25").replace("/", "%2F") for p in key)
    return None if key is None else text(key, field)


UNITS = {"w": 604800_000_000, "d": 86400_000_000, "h": 3600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000, "us": 1, "µs": 1}
PART = re.compile(r"([0-9]+)(w|d|h|ms|us|µs|m|s)")
MONTHS = re.compile(r"([0-9]+)(mo|y)")

Length = Union[str, timedelta]


def micros(length, field):
    """Return the microseconds of a timedelta, or of a text such as 250ms, 1m or 1h30m."""
    if isinstance(length, timedelta):
        return length // timedelta(microseconds=1)
    if not isinstance(length, str) or not re.fullmatch(f"(?:{PART.pattern})+", length):
        raise DipwellError(field, f"{length!r} is not a length of time such as 250ms, 1s, 1m, 1h or 1d")
    return sum(int(n) * UNITS[unit] for n, unit in PART.findall(length))


def http_length(length, field):
    """Return a length as the HTTP API reads it."""
    if isinstance(length, str) and MONTHS.fullmatch(length):
        return length
    us = micros(length, field)
    return length if isinstance(length, str) else f"{us}us"


def sql_length(length, field):
    """Return a length as PostgreSQL reads an interval."""
    calendar = isinstance(length, str) and MONTHS.fullmatch(length)
    if calendar:
        return f"{calendar[1]} {'years' if calendar[2] == 'y' else 'months'}"
    return f"{micros(length, field)} microseconds"


class Take(NamedTuple):
    """An entry of take_all and hold_all."""

    limit: str
    key: Optional[str] = None
    cost: int = 1
    plan: Optional[str] = None
    floor: Optional[int] = None


def takes_of(takes):
    """Return the entries of a call, of tuples (limit, key, cost, plan, floor) or dicts."""
    out = []
    for i, t in enumerate(takes):
        at = f"takes[{i}]"
        try:
            t = Take(**t) if isinstance(t, dict) else Take(*t)
        except TypeError:
            raise DipwellError(at, "is not (limit, key, cost)") from None
        out.append(Take(text(t.limit, at + ".limit"), key_of(t.key, at + ".key"), whole(t.cost, at + ".cost"),
                        t.plan if t.plan is None else text(t.plan, at + ".plan"),
                        t.floor if t.floor is None else whole(t.floor, at + ".floor")))
    return out


def short(key):
    """Return a key of a framework; of one that is too long for a key its hash."""
    data = key.encode("utf-8", "replace")
    return key if len(data) <= 512 else "sha256:" + hashlib.sha256(data).hexdigest()
