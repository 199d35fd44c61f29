"""A throttle for Django REST framework.

    REST_FRAMEWORK = {
        'DEFAULT_THROTTLE_CLASSES': ['dipwell.drf.DipwellThrottle'],
        'DEFAULT_THROTTLE_RATES': {'user': '5/min'},
    }
"""
from __future__ import annotations

from django.db import connections, transaction
from rest_framework.throttling import UserRateThrottle

from . import Dipwell, DipwellError
from ._values import short


class DipwellThrottle(UserRateThrottle):
    """Takes a token for each request, from PostgreSQL, by user or else by address.

    rate, or the rate of scope in DEFAULT_THROTTLE_RATES, is a rate of Django REST framework such
    as '5/min', or the name of a limit that is defined elsewhere, for all that a limit can be. A
    rate is a token bucket: of '5/min' five requests at once, and then one each 12 seconds. It is
    defined with its first request, for which the role that logs in needs to be a dipwell_admin;
    to take from a limit that is there it needs dipwell_app. As with other throttles, scope,
    rate and get_cache_key may be set in a subclass.

    The token is taken in the transaction of the request, if there is one (ATOMIC_REQUESTS): a
    view that fails gives it back.
    """

    using = "default"  # the database
    cache_format = "%(scope)s:%(ident)s"
    result = None  # of the last request
    _seen = set()  # the limits that are there, with their database

    def parse_rate(self, rate):
        number, slash, period = (rate or "").partition("/")
        if slash and number.isdigit():
            per = period if period[:1].isdigit() else "1" + period[:1]
            self.limit, self.settings = f"drf/{self.scope}/{number}/{per}", dict(rate=int(number), per=per)
        else:
            self.limit, self.settings = rate, None
        return None, None

    def allow_request(self, request, view):
        if self.rate is None:
            return True
        key = self.get_cache_key(request, view)
        if key is None:
            return True
        self.result = self._take(short(key))
        return self.result.allowed

    def wait(self):
        if self.result is None or self.result.retry_after is None:
            return None
        return self.result.retry_after.total_seconds()

    def _take(self, key):
        d = Dipwell(connections[self.using])
        if self.settings is None:
            return d.take(self.limit, key)
        here = self.using, self.limit
        try:
            if here in self._seen:
                return d.take(self.limit, key)
            with transaction.atomic(using=self.using):  # an error ends this part of the transaction alone
                r = d.take(self.limit, key)
            self._seen.add(here)
            return r
        except DipwellError as e:
            if e.code != "42704":
                raise
            if here in self._seen:  # it was dropped: the next request defines it
                self._seen.remove(here)
                raise
        d.define(self.limit, **self.settings)  # a rollback takes it back, so it is not in _seen yet
        return d.take(self.limit, key)
