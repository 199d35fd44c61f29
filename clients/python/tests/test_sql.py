import asyncio
import pickle
import threading
import unittest
from datetime import timedelta

import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
from calls import Calls
from servers import Blocking, new_database, with_schema

from dipwell import AsyncDipwell, Dipwell, DipwellError
from dipwell._sql import INSTALL, SETTINGS, SQL
from dipwell._values import Result

ADDRESS = with_schema()
DRIVERS = (psycopg, psycopg2)


class OverSQL(Calls):
    sql = True


class Psycopg3(OverSQL, unittest.TestCase):
    def setUp(self):
        self.conn = psycopg.connect(ADDRESS, autocommit=True)
        self.addCleanup(self.conn.close)
        self.d = Dipwell(self.conn)


class Psycopg2(OverSQL, unittest.TestCase):
    def setUp(self):
        self.conn = psycopg2.connect(ADDRESS)
        self.conn.autocommit = True
        self.addCleanup(self.conn.close)
        self.d = Dipwell(self.conn)


class AsyncPsycopg3(OverSQL, unittest.TestCase):
    def setUp(self):
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        conn = self.loop.run_until_complete(psycopg.AsyncConnection.connect(ADDRESS, autocommit=True))
        self.addCleanup(lambda: self.loop.run_until_complete(conn.close()))
        self.d = Blocking(AsyncDipwell(conn), self.loop)


class Complete(unittest.TestCase):
    """Every function and every setting of the schema is here."""

    OTHERS = {"drop", "define_plan", "drop_plan", "sweep", "count_usage"}  # for administrators and programs of their own
    OTHERWISE = {"key", "settle_all"}  # a list as a key; settle with a list

    def test_functions(self):
        with psycopg.connect(ADDRESS) as conn:
            rows = conn.execute("select distinct proname from pg_proc where pronamespace = 'dipwell'::regnamespace").fetchall()
        missing = {name for (name,) in rows if not hasattr(Dipwell, name)}
        self.assertEqual(missing, self.OTHERS | self.OTHERWISE)

    def test_settings(self):
        with psycopg.connect(ADDRESS) as conn:
            ((arguments,),) = conn.execute("select proargnames from pg_proc where oid = 'dipwell.define'::regproc").fetchall()
        self.assertEqual(set(arguments), SETTINGS | {"name"})


class Mistakes(unittest.IsolatedAsyncioTestCase):
    async def test_connections(self):
        async with await psycopg.AsyncConnection.connect(ADDRESS) as conn:
            self.assertRaises(TypeError, Dipwell, conn)
        with psycopg.connect(ADDRESS) as conn:
            self.assertRaises(TypeError, AsyncDipwell, conn)

    def test_errors_can_be_sent_to_another_process(self):
        e = pickle.loads(pickle.dumps(DipwellError("cost", "is wrong", "22023")))
        self.assertEqual((e.field, e.reason, e.code, str(e)), ("cost", "is wrong", "22023", "cost: is wrong"))


class Roles(unittest.TestCase):
    def test_app(self):
        with psycopg.connect(ADDRESS, autocommit=True) as conn:
            d = Dipwell(conn)
            d.define("app", rate=5, per="1h")
            conn.execute("set role dipwell_app")
            self.assertTrue(d.take("app", "k"))
            self.assertTrue(d.wait("app", "k"))
            self.assertEqual(d.hold("app", "k", ttl="1m").settle(0).remaining, 3)
            with self.assertRaises(psycopg.errors.InsufficientPrivilege):
                d.define("app", rate=6, per="1h")


class LateAnswers(unittest.TestCase):
    """A statement may wait for a row longer than the caller wants to."""

    def test_what_is_due_too_late_is_given_back(self):
        for allowed in (True, False):
            now = [0.0]
            steps = SQL().wait("jobs", "k", 1, "1m", None, None, lambda: now[0])
            (statement, params), _ = next(steps)
            self.assertEqual(("dipwell.reserve(" in statement, params[4]), (True, timedelta(minutes=1)))
            now[0] = 50.0
            got = Result(allowed, 0, None, timedelta(hours=1), 1, timedelta(seconds=30), False, "id" if allowed else None)
            with self.assertRaises(StopIteration) as end:
                step = steps.send(got)
                self.assertEqual(allowed and step[0][1], ("id",))
                steps.send(None)
            r = end.exception.value
            self.assertEqual((r.allowed, r.granted, r.retry_after, r.delay, r.reservation), (False, 0, timedelta(seconds=20), timedelta(), None))


class RowFactories(unittest.TestCase):
    """A connection may make other rows than tuples."""

    def test_rows(self):
        with psycopg.connect(ADDRESS, row_factory=psycopg.rows.dict_row) as conn:
            d = Dipwell(conn)
            d.define("rows", rate=5, per="1h")
            self.assertEqual(d.take("rows", "k").remaining, 4)
        conn = psycopg2.connect(ADDRESS, cursor_factory=psycopg2.extras.RealDictCursor)
        self.assertEqual(Dipwell(conn).take_all([("rows", "k")]).remaining, 3)
        conn.close()


class Transactions(unittest.TestCase):
    def setUp(self):
        with psycopg.connect(ADDRESS, autocommit=True) as conn:
            d = Dipwell(conn)
            d.define("orders", rate=5, per="1h")
            d.define("tokens", rate=100, per="1h")
            d.reset("orders", "k")
            d.reset("tokens", "k")

    def left(self, limit):
        with psycopg.connect(ADDRESS) as conn:
            return Dipwell(conn).check(limit, "k").remaining

    def test_rollback(self):
        for driver in DRIVERS:
            conn = driver.connect(ADDRESS)
            self.assertEqual(Dipwell(conn).take("orders", "k", 2).remaining, 3)
            conn.rollback()
            self.assertEqual(self.left("orders"), 5)
            Dipwell(conn).take("orders", "k", 2)
            conn.commit()
            self.assertEqual(self.left("orders"), 3)
            Dipwell(conn).refund("orders", "k", 2)
            conn.commit()
            conn.close()

    def test_the_drivers_errors_pass(self):
        for driver in DRIVERS:
            conn = driver.connect(ADDRESS)
            d = Dipwell(conn)
            with self.assertRaises(DipwellError) as caught:
                d.take("nobody", "k")
            self.assertEqual((caught.exception.code, caught.exception.reason), ("42704", 'unknown limit "nobody"'))
            self.assertIsInstance(caught.exception.__cause__, driver.Error)
            with self.assertRaises(driver.Error):  # the transaction has failed
                d.take("orders", "k")
            conn.close()
            with self.assertRaises(driver.Error):
                d.take("orders", "k")

    def test_with_hold(self):
        for driver in DRIVERS:
            conn = driver.connect(ADDRESS)
            conn.autocommit = True
            d = Dipwell(conn)
            with d.hold("tokens", "k", 30, ttl="1m") as h:
                h.settle(20)
            self.assertEqual(self.left("tokens"), 80)
            with d.hold("tokens", "k", 30, ttl="1m") as h:
                self.assertEqual(h.remaining, 50)
            self.assertEqual(self.left("tokens"), 50, "settled as held")
            with self.assertRaises(ZeroDivisionError), d.hold("tokens", "k", 30, ttl="1m"):
                1 / 0
            self.assertEqual(self.left("tokens"), 50, "an exception gives everything back")
            with self.assertRaises(DipwellError), d.hold("tokens", "k", 30, ttl="1m") as h:
                h.settle(1.5)
            self.assertEqual(self.left("tokens"), 50, "a settle that failed is none")
            with self.assertRaises(ZeroDivisionError), d.hold("tokens", "k", 30, ttl="1m") as h:
                h.settle(10)
                1 / 0
            self.assertEqual(self.left("tokens"), 40, "what was settled stays")
            with d.hold("tokens", "k", 99, ttl="1m") as h:
                self.assertFalse(h)
            name = "again-" + driver.__name__
            with d.hold("tokens", "k", 10, ttl="1m", id=name):
                with d.hold("tokens", "k", 10, ttl="1m", id=name) as h:
                    self.assertTrue(h.repeated)
                self.assertEqual(self.left("tokens"), 30)
                self.assertFalse(d.settle(name, 10).repeated, "a repeated hold is left alone")
            d.reset("tokens", "k")
            conn.close()

    def test_hold_in_a_failed_transaction(self):
        for driver in DRIVERS:
            conn = driver.connect(ADDRESS)
            with self.assertRaises(driver.Error) as caught, Dipwell(conn).hold("tokens", "k", 30, ttl="1m"):
                conn.cursor().execute("select 1 / 0")
            self.assertIn("division by zero", str(caught.exception))
            conn.rollback()
            conn.close()
            self.assertEqual(self.left("tokens"), 100)


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_with_hold(self):
        async with await psycopg.AsyncConnection.connect(ADDRESS, autocommit=True) as conn:
            d = AsyncDipwell(conn)
            await d.define("async", rate=100, per="1h")
            async with d.hold("async", "k", 30, ttl="1m") as h:
                await h.settle(20)
            async with d.hold("async", "k", 30, ttl="1m"):
                pass
            self.assertEqual((await d.check("async", "k")).remaining, 50)
            with self.assertRaises(ZeroDivisionError):
                async with d.hold("async", "k", 30, ttl="1m"):
                    1 / 0
            self.assertEqual((await d.check("async", "k")).remaining, 50)

    async def test_a_cancelled_wait_takes_nothing(self):
        async with await psycopg.AsyncConnection.connect(ADDRESS, autocommit=True) as conn, \
                await psycopg.AsyncConnection.connect(ADDRESS, autocommit=True) as other:
            d = AsyncDipwell(conn)
            await d.define("cancelled", rate=10, per="1h", burst=1, max_debt=5)
            await d.take("cancelled", "k")
            waiting = asyncio.ensure_future(d.wait("cancelled", "k", timeout="10m"))
            while not await (await other.execute("select 1 from dipwell.reservations r join dipwell.limits l on l.id = r.limit_id where l.name = 'cancelled'")).fetchone():
                await asyncio.sleep(0.01)
            while conn.lock.locked():  # the row is there before the wait has heard of it
                await asyncio.sleep(0.01)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            r = await d.reserve("cancelled", "k")
            self.assertTrue(timedelta(minutes=5) < r.delay <= timedelta(minutes=6), r)

    async def test_a_wait_cancelled_during_its_statement_takes_nothing(self):
        async with await psycopg.AsyncConnection.connect(ADDRESS, autocommit=True) as conn, \
                await psycopg.AsyncConnection.connect(ADDRESS) as other:
            d = AsyncDipwell(conn)
            await d.define("locked", rate=10, per="1h", burst=1, max_debt=5)
            await d.take("locked", "k")
            await other.execute("select from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id where l.name = 'locked' for update of b")
            waiting = asyncio.ensure_future(d.wait("locked", "k", timeout="10m"))
            while not await (await other.execute("select 1 from pg_locks where not granted and pid = %s", [conn.info.backend_pid])).fetchone():
                await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.sleep(0)
            await other.commit()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            r = await d.reserve("locked", "k")
            self.assertTrue(timedelta(minutes=5) < r.delay <= timedelta(minutes=6), r)

    async def test_a_cancelled_wait_whose_reservation_falls_due(self):
        asked = asyncio.Event()

        class Link(SQL):
            async def send(self, statement, params):
                if "reserve" not in statement:
                    raise DipwellError("reservation", "is unknown, spent, due or reset")
                asked.set()
                await asyncio.sleep(0.01)
                return [(True, 0, None, timedelta(), 1, timedelta(microseconds=1), False, "0198c2f3-0000-7000-8000-000000000000")]

        d = AsyncDipwell.__new__(AsyncDipwell)
        d._link = Link.__new__(Link)
        waiting = asyncio.ensure_future(d.wait("due", "k"))
        await asked.wait()
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting


class Install(unittest.TestCase):
    def test_install(self):
        conn = psycopg2.connect(new_database())
        d, cursor = Dipwell(conn), conn.cursor()
        d.install()
        conn.rollback()
        d.install()
        d.define("login", rate=5, per="1m")
        conn.commit()
        cursor.execute("show search_path")
        self.assertEqual(cursor.fetchone(), ('"$user", public',))
        self.assertEqual(d.take("login", "k").remaining, 4)
        conn.close()

    def test_the_second_time(self):
        for driver in DRIVERS:
            conn = driver.connect(ADDRESS)
            cursor = conn.cursor()
            Dipwell(conn).install()
            cursor.execute("select pg_current_xact_id_if_assigned()")
            self.assertEqual(cursor.fetchone(), (None,), "nothing was written")
            with self.assertRaisesRegex(driver.Error, "schema: is version 1, and this package has 2; run dipwell migrate up"):
                cursor.execute(INSTALL.replace("{version}", "2"))
            conn.close()

    def test_at_once(self):
        address = new_database()
        failed = []

        def install():
            try:
                with psycopg.connect(address, autocommit=True) as conn:
                    Dipwell(conn).install()
            except Exception as e:
                failed.append(e)

        threads = [threading.Thread(target=install) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])

    def test_is_all_or_nothing(self):
        with psycopg.connect(new_database(), autocommit=True) as conn:
            conn.execute("create schema dipwell")
            conn.execute("create view dipwell.limits as select 1")
            with self.assertRaises(psycopg.Error) as caught:
                Dipwell(conn).install()
            self.assertLess(len(str(caught.exception)), 1000)
            self.assertIsNone(conn.execute("select to_regnamespace('dipwell_internal')").fetchone()[0])
