"""Rate limits in the PostgreSQL that you already run, or from ``dipwell serve``.

    d = Dipwell(conn)                     # psycopg 2 or 3; in the transaction of conn
    d.define('login', rate=5, per='1m', burst=20)
    r = d.take('login', 'user:7')
    if not r.allowed:
        print('again in', r.retry_after)

A refusal is a result. A DipwellError means that the call was wrong, or that the
service could not decide; the driver's own exceptions pass unchanged.
"""
from ._clients import AsyncDipwell, Dipwell
from ._hold import AsyncHold, Hold
from ._values import DipwellError, Result

__all__ = ["AsyncDipwell", "AsyncHold", "Dipwell", "DipwellError", "Hold", "Result"]
