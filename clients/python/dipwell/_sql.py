"""Calls as SQL, over a DB-API connection."""
from __future__ import annotations

import inspect
import json
import pkgutil
import re
import sys
from datetime import timedelta

from ._values import DipwellError, Result, decides, http_length, micros, sql_length, without

# Errors of the functions of dipwell: docs/reference/sql.md, Errors.
OURS = {"22023", "42501", "42704", "54000", "55000", "P0002"}
LENGTHS = {"per", "ttl", "block"}
SETTINGS = LENGTHS | {"rate", "burst", "algorithm", "max_debt", "start", "on_change", "mode", "plans", "parent", "parts", "on_expire",
                      "shards", "shared", "usage"}
# What the members of a take are called in the lists of take_all and hold_all.
LISTS = {"limit_names": "limit", "keys": "key", "costs": "cost", "plans": "plan", "floors": "floor"}

INSTALL = """do $install$
declare
    path text := current_setting('search_path');
    have int;
begin
    perform pg_advisory_xact_lock(28263429431454828); -- as dipwell migrate up does
    if to_regclass('dipwell.migrations') is not null then
        select max(version) into have from dipwell.migrations;
    end if;
    if have > 0 and have < {version} then
        raise exception using errcode = 'object_not_in_prerequisite_state', constraint = 'schema',
            message = 'schema: is version ' || have || ', and this package has {version}; run dipwell migrate up';
    elsif have > 0 then
        return;
    end if;
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    begin
        execute $dipwell_schema$
{schema}
$dipwell_schema$;
    exception when others then
        raise exception using errcode = sqlstate, message = sqlerrm; -- without the whole schema as its context
    end;
    perform set_config('search_path', path, true);
end $install$"""


class SQL:
    """Returns each call as (statement, parameters) and the function that reads its rows. Without
    parameters there are no rows."""

    def decision(self, verb, limit, key, cost, plan, floor):
        statement, params = f"select * from dipwell.{verb}(%s, %s, %s", [limit, key, cost]
        if plan is not None:
            statement += ", plan => %s"
            params.append(plan)
        if floor is not None:
            statement += ", floor => %s"
            params.append(floor)
        return (statement + ")", params), one

    def take_all(self, takes):
        return ("select * from dipwell.take_all(%s::text[], %s::text[], %s::bigint[], plans => %s::text[], floors => %s::bigint[])",
                columns(takes)), several

    def hold(self, limit, key, cost, ttl, id, plan, floor):
        return ("select * from dipwell.hold(%s, %s, %s, %s::interval, %s, %s, %s)",
                (limit, key, cost, sql_length(ttl, "ttl"), id, plan, floor)), one

    def hold_all(self, takes, ttl, id):
        names, keys, costs, plans, floors = columns(takes)
        return ("select * from dipwell.hold_all(%s::text[], %s::text[], %s::bigint[], %s::interval, %s, %s::text[], %s::bigint[])",
                (names, keys, costs, sql_length(ttl, "ttl"), id, plans, floors)), several

    def settle(self, hold, cost, costs):
        if costs is not None:
            return ("select * from dipwell.settle_all(%s, %s::bigint[])", (hold, costs)), settled_all
        return ("select * from dipwell.settle(%s, %s)", (hold, cost)), settled

    def extend(self, hold, ttl):
        return ("select dipwell.extend(%s, %s::interval)", (hold, sql_length(ttl, "ttl"))), scalar

    def cancel(self, reservation):
        return ("select dipwell.cancel(%s::uuid)", (reservation,)), nothing

    def ready(self, limit, keys, cost, plan):
        return ("select key from dipwell.ready(%s, %s::text[], %s, %s)", (limit, keys, cost, plan)), lambda rows: [r[0] for r in rows]

    def define(self, name, settings):
        statement, params = "select dipwell.define(%s", [name]
        for field, value in settings.items():
            if field not in SETTINGS:
                raise DipwellError(field, "is not a setting that a limit has in SQL")
            if field in LENGTHS:
                value = sql_length(value, field)
            elif field == "max_debt" and value == "unlimited":
                value = -1
            elif field == "plans":
                value = json.dumps(value, default=lambda per: http_length(per, "per"))
            cast = "::interval" if field in LENGTHS else "::jsonb" if field == "plans" else ""
            statement += f", {field} => %s{cast}"
            params.append(value)
        return (statement + ")", params), nothing

    def override(self, limit, key, plan, rate, per, burst, until, note, start):
        per = per if per is None else sql_length(per, "per")
        return ("select 1 from dipwell.override(%s, %s, %s, %s, %s::interval, %s, %s::timestamptz, %s, %s)",
                (limit, key, plan, rate, per, burst, until, note, start)), nothing

    def end_override(self, limit, key, kind):
        return (yield ("select dipwell.end_override(%s, %s, %s)", (limit, key, kind)), scalar)

    def install(self):
        schema = pkgutil.get_data("dipwell", "schema.sql").decode()
        version = max(map(int, re.findall(r"^insert into dipwell\.migrations \(version, name\) values \(([0-9]+),", schema, re.M)))
        return (INSTALL.replace("{version}", str(version)).replace("{schema}", schema), None), nothing

    def wait(self, limit, key, cost, timeout, plan, floor, clock):
        """Take as soon as the tokens can be had, within timeout: reserve and sleep until the
        reservation is due, or where the limit has no debt, try again when tokens are back."""
        us = micros(timeout, "timeout")
        if not 1000 <= us <= 600_000_000:
            raise DipwellError("timeout", "is not between 1ms and 10m")
        end = clock() + us / 1e6
        while True:
            left = timedelta(seconds=max(0, end - clock()))
            r = yield from self.attempt(limit, key, cost, plan, floor, left)
            if not r.delay:
                return r
            late = r.delay - timedelta(seconds=max(0, end - clock()))
            if late > timedelta():  # the statement has waited for the row
                if r.reservation is not None:
                    yield from self.give_back(r.reservation)
                return r._replace(allowed=False, granted=0, retry_after=late, delay=timedelta(), reservation=None)
            try:
                yield r.delay.total_seconds()
            except BaseException:
                if r.reservation is not None:
                    yield from self.give_back(r.reservation)
                raise
            if r.allowed:
                return r._replace(delay=timedelta(), reservation=None, reset_after=max(timedelta(), r.reset_after - r.delay))

    def attempt(self, limit, key, cost, plan, floor, left):
        """Reserve within the time that is left. A refusal with a delay says when to try again."""
        if floor is None:
            return (yield ("select * from dipwell.reserve(%s, %s, %s, %s, %s)", [limit, key, cost, plan, left]), one)
        r = yield self.decision("check", limit, key, cost, plan, floor)  # a check begins no block
        if r.allowed:
            r = yield self.decision("take", limit, key, cost, plan, floor)
        if r.allowed or r.retry_after is None:
            return r
        return r._replace(delay=r.retry_after if r.retry_after <= left else timedelta(), retry_after=max(timedelta(), r.retry_after - left))

    def give_back(self, reservation):
        try:
            yield self.cancel(reservation)
        except DipwellError:
            pass  # it has just fallen due


def columns(takes):
    return list(map(list, zip(*takes))) or [[]] * 5


def one(rows):
    r = Result(*rows[0])
    return r if r.reservation is None else r._replace(reservation=str(r.reservation))


def settled(rows):
    return Result(*rows[0][:8], repeated=rows[0][8])


def settled_all(rows):
    return top([Result(*r[2:10], repeated=r[10], limit=r[0], key=r[1]) for r in rows])


def several(rows):
    return top([one([r[2:]])._replace(limit=r[0], key=r[1]) for r in rows])


def top(limits):
    return decides(limits)._replace(limits=tuple(limits))


def scalar(rows):
    return rows[0][0]


def nothing(_):
    return None


def error_of(e, statement):
    """Return the DipwellError for an exception of the driver, or None if the error is not one
    of our functions. Django wraps the driver's exception."""
    for x in (e, e.__cause__):
        diag = getattr(x, "diag", None)
        field = getattr(diag, "constraint_name", None)
        if field and diag.sqlstate in OURS:
            return DipwellError(argument(field, statement), without(field, diag.message_primary), diag.sqlstate)
    return None


def argument(field, statement):
    """Return what an argument of SQL is called here."""
    entry = re.fullmatch(r"(\w+)\[([0-9]+)\]", field)
    if entry and re.search("(take|hold)_all", statement):
        return f"takes[{int(entry[2]) - 1}].{LISTS[entry[1]]}"
    if entry:
        return f"{entry[1]}[{int(entry[2]) - 1}]"
    return {"limit_name": "limit", "limit_names": "takes"}.get(field, field)


def options(conn):
    """Return what makes a cursor of conn return tuples."""
    psycopg, psycopg2 = sys.modules.get("psycopg"), sys.modules.get("psycopg2.extensions")
    if psycopg and isinstance(conn, (psycopg.Connection, psycopg.AsyncConnection)):
        return {"row_factory": psycopg.rows.tuple_row}
    if psycopg2 and isinstance(conn, psycopg2.connection):
        return {"cursor_factory": psycopg2.cursor}
    return {}


class Connection(SQL):
    def __init__(self, conn):
        if inspect.iscoroutinefunction(conn.commit):
            raise TypeError("an asynchronous connection is for AsyncDipwell")
        self._conn, self._options = conn, options(conn)

    def send(self, statement, params):
        cursor = self._conn.cursor(**self._options)
        try:
            cursor.execute(statement, params)
            return cursor.fetchall() if params is not None else None
        except Exception as e:
            ours = error_of(e, statement)
            if ours is None:
                raise
            raise ours from e
        finally:
            cursor.close()


class AsyncConnection(SQL):
    def __init__(self, conn):
        if not inspect.iscoroutinefunction(conn.commit):
            raise TypeError("AsyncDipwell needs an asynchronous connection")
        self._conn, self._options = conn, options(conn)

    async def send(self, statement, params):
        cursor = self._conn.cursor(**self._options)
        try:
            await cursor.execute(statement, params)
            return await cursor.fetchall() if params is not None else None
        except Exception as e:
            ours = error_of(e, statement)
            if ours is None:
                raise
            raise ours from e
        finally:
            await cursor.close()
