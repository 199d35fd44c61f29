"""A storage for the package limits, which flask-limiter and slowapi use too.

    import dipwell.limits                  # registers the scheme
    Limiter(key_func, app=app, storage_uri='dipwell+postgresql://app@db/shop')

The database has the schema of dipwell, and the role that logs in is a dipwell_admin, because
each pair of a strategy and a window is a limit that is defined with its first call.
"""
from __future__ import annotations

import os
import threading
import time

from limits.storage import MovingWindowSupport, Storage

from . import Dipwell, DipwellError
from ._values import short

CONNECTIONS = 10  # of a process, at most; other threads wait
COUNT = 2**31  # more than anybody counts in a window
OURS = "(select id, name from dipwell.limits where name ~ '^limits/(fixed|moving)/') ours"


class DipwellStorage(Storage, MovingWindowSupport):
    """How strategies map:

    fixed-window: a window of dipwell that begins with the first call of a key (``start:
    first_call``). What limits calls incr takes from it, also beyond the rate limit.

    moving-window: each hit is a hold of a concurrency limit that expires after the window. It is
    exact: no window of that length, wherever it begins, has more hits than the rate limit. A key
    has at most 10,000 hits that have not expired, and a window at most 31 days. dipwell.sweep
    deletes what has expired.

    fixed-window-elastic-expiry is not possible: no window of dipwell moves its end.

    For a token bucket, or a limit that SQL or other programs take from too, call Dipwell.
    """

    STORAGE_SCHEME = ["dipwell+postgresql", "dipwell+postgres"]

    def __init__(self, uri, wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        self._uri, self._options = uri.replace("dipwell+", "", 1), options
        self._free = threading.Semaphore(CONNECTIONS)
        self._idle = {}  # clients without a call, by process: a fork must not share connections

    @property
    def base_exceptions(self):
        return Exception

    def incr(self, key, expiry, elastic_expiry=False, amount=1):
        if elastic_expiry:
            raise NotImplementedError("a window of dipwell does not move its end; use fixed-window or moving-window")
        limit = dict(name=f"limits/fixed/{expiry}", rate=COUNT, per=f"{expiry}s", algorithm="fixed_window", start="first_call")
        return COUNT - self._defining(limit, lambda d: d.take(limit["name"], short(key), amount)).remaining

    def get(self, key):
        return sum(COUNT - remaining for remaining, _ in self._windows(key))

    def get_expiry(self, key):
        return int(max((ends for _, ends in self._windows(key)), default=0) + time.time())

    def acquire_entry(self, key, limit, expiry, amount=1):
        log = dict(name=f"limits/moving/{limit}/{expiry}", algorithm="concurrency", burst=limit, ttl=f"{expiry}s")
        return self._defining(log, lambda d: d.hold(log["name"], short(key), amount, ttl=log["ttl"])).allowed

    def get_moving_window(self, key, limit, expiry):
        ((first, hits),) = self._rows("select extract(epoch from min(expires))::float8, coalesce(sum(tokens), 0)::bigint"
                                      " from dipwell.holds where limit_name = %s and key = %s", [f"limits/moving/{limit}/{expiry}", short(key)])
        return (int(time.time()) if first is None else int(first - expiry)), hits

    def check(self):
        try:
            return self._rows("select 1", ()) == [(1,)]
        except Exception:
            return False

    def reset(self):
        """Drop the limits of this storage, and return how many keys they had."""
        ((keys,),) = self._rows(f"select count(*) from dipwell.buckets where limit_id in (select id from {OURS})", ())
        self._rows(f"select dipwell.drop(name) from {OURS}", ())
        return keys

    def clear(self, key):
        self._rows(f"select dipwell.reset(name, %s) from {OURS}", [short(key)])

    def _windows(self, key):
        """Return what remains in the windows of a key, and in how many seconds each ends."""
        return self._rows("select c.remaining, extract(epoch from c.reset_after)::float8 from dipwell.limits l"
                          " cross join lateral dipwell.check(l.name, %s, 0) c where l.name ~ '^limits/fixed/' and c.remaining < %s", [short(key), COUNT])

    def _rows(self, statement, params):
        return self._call(lambda d: d._link.send(statement, params))

    def _defining(self, limit, call):
        """Make a call, and define its limit if there is none of that name."""
        def both(d):
            try:
                return call(d)
            except DipwellError as e:
                if e.code != "42704":
                    raise
            d.define(**limit)
            return call(d)

        return self._call(both)

    def _call(self, call):
        idle = self._idle.setdefault(os.getpid(), [])
        with self._free:
            try:
                d = idle.pop()
            except IndexError:
                d = Dipwell(self._connect())
            try:
                out = call(d)
            except DipwellError:
                idle.append(d)
                raise
            except Exception:
                idle.clear()  # the server may have closed them all
                raise
            idle.append(d)
            return out

    def _connect(self):
        try:
            import psycopg as driver
        except ImportError:
            import psycopg2 as driver
        conn = driver.connect(self._uri, **self._options)
        conn.autocommit = True
        return conn
