"""Calls as requests to ``dipwell serve``."""
from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

from ._values import DipwellError, Result, http_length, micros, without

LENGTHS = ("per", "ttl", "lease", "block", "timeout")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class HTTP:
    """Returns each call as (method, path, body, seconds that it may take) and the function that
    reads its answer."""

    def __init__(self, url, token, timeout):
        self._url, self._timeout = url.rstrip("/"), timeout
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = "Bearer " + token

    def _post(self, verb, read, **body):
        return ("POST", "/v1/" + verb, members(body), self._timeout), read

    def decision(self, verb, limit, key, cost, plan, floor):
        return self._post(verb, result, limit=limit, key=key, cost=cost, plan=plan, floor=floor)

    def take_all(self, takes):
        return self._post("take", several, takes=entries(takes))

    def hold(self, limit, key, cost, ttl, id, plan, floor):
        return self._post("hold", result, limit=limit, key=key, cost=cost, ttl=http_length(ttl, "ttl"), id=id, plan=plan, floor=floor)

    def hold_all(self, takes, ttl, id):
        return self._post("hold", several, takes=entries(takes), ttl=http_length(ttl, "ttl"), id=id)

    def settle(self, hold, cost, costs):
        return self._post("settle", result, hold=hold, cost=cost, costs=costs)

    def extend(self, hold, ttl):
        return self._post("extend", lambda d: when(d["expires_us"]), hold=hold, ttl=http_length(ttl, "ttl"))

    def cancel(self, reservation):
        return self._post("cancel", nothing, reservation=reservation)

    def ready(self, limit, keys, cost, plan):
        return self._post("ready", lambda d: d["keys"], limit=limit, keys=keys, cost=cost, plan=plan)

    def define(self, name, settings):
        if isinstance(settings.get("plans"), dict):
            settings["plans"] = {k: lengths(p) if isinstance(p, dict) else p for k, p in settings["plans"].items()}
        return ("PUT", "/v1/limits/" + quote(name, safe=""), lengths(settings), self._timeout), nothing

    def override(self, limit, key, plan, rate, per, burst, until, note, start):
        until = until if until is None else until.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        body = members(dict(key=key, plan=plan, rate=rate, per=per, burst=burst, until=until, note=note, start=start))
        return ("PUT", f"/v1/limits/{quote(limit, safe='')}/overrides", lengths(body), self._timeout), nothing

    def end_override(self, limit, key, kind):
        query = "".join(f"&{k}={quote(v, safe='')}" for k, v in (("key", key), ("kind", kind)) if v is not None)
        try:
            yield ("DELETE", f"/v1/limits/{quote(limit, safe='')}/overrides?{query[1:]}", None, self._timeout), nothing
        except DipwellError as e:
            if (e.code, e.field) != (404, "key"):
                raise
            return False
        return True

    def install(self):
        raise DipwellError("install", "needs a database connection; a service has its schema")

    def wait(self, limit, key, cost, timeout, plan, floor, clock):
        del clock  # the service waits
        (method, path, body, seconds), read = self._post("wait", result, limit=limit, key=key, cost=cost, plan=plan, floor=floor, timeout=http_length(timeout, "timeout"))
        return (yield (method, path, body, seconds + micros(timeout, "timeout") / 1e6), read)


def members(body):
    """Leave out what is None: an absent member."""
    return {k: v for k, v in body.items() if v is not None}


def lengths(settings):
    return {k: http_length(v, k) if k in LENGTHS else v for k, v in settings.items()}


def entries(takes):
    return [members(t._asdict()) for t in takes]


def result(d):
    return Result(d["allowed"], d["remaining"], length(d["retry_after_us"]), length(d["reset_after_us"]), d["granted"], length(d["delay_us"]),
                  d.get("never", False), d.get("reservation"), d.get("hold"), when(d.get("expires_us")), d.get("repeated", False),
                  limits=tuple(each(x) for x in d.get("limits", ())))


def each(d):
    return result(d)._replace(limit=d["limit"], key=d["key"])


def several(d):
    r = each(d)
    return r if r.limits else r._replace(limits=(r,))


def length(us):
    return None if us is None else timedelta(microseconds=us)


def when(us):
    return None if us is None else EPOCH + timedelta(microseconds=us)


def nothing(_):
    return None


def answered(method, path, status, body):
    """Return the answer's body, which is a decision if the status is 429."""
    try:
        d = json.loads(body) if body else {}
    except ValueError:
        d = None
    if isinstance(d, dict) and (status < 300 or status == 429 and "allowed" in d):
        return d
    d = d if isinstance(d, dict) else {}  # not from dipwell
    field, reason = d.get("field"), d.get("detail") or d.get("title") or f"{method} {path} was answered with status {status}"
    raise DipwellError(field, without(field, reason), status)


class Urllib(HTTP):
    def send(self, method, path, body, seconds):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answered(method, path, answer.status, answer.read())
        except urllib.error.HTTPError as e:
            with e:
                return answered(method, path, e.code, e.read())


class Client(HTTP):
    """Sends by an httpx.Client."""

    def __init__(self, url, token, timeout, client):
        super().__init__(url, token, timeout)
        self._client = client

    def send(self, method, path, body, seconds):
        answer = self._client.request(method, self._url + path, content=None if body is None else json.dumps(body), headers=self._headers, timeout=seconds)
        return answered(method, path, answer.status_code, answer.content)


class AsyncClient(Client):
    """Sends by an httpx.AsyncClient."""

    async def send(self, method, path, body, seconds):
        answer = await self._client.request(method, self._url + path, content=None if body is None else json.dumps(body), headers=self._headers, timeout=seconds)
        return answered(method, path, answer.status_code, answer.content)
