"""DipwellStorage does what limits documents for its storages, by its own strategies."""
import threading
import time
import unittest

import psycopg
from limits import RateLimitItemPerHour, RateLimitItemPerMinute, RateLimitItemPerSecond, RateLimitItemPerYear
from limits.storage import storage_from_string
from limits.strategies import FixedWindowElasticExpiryRateLimiter, FixedWindowRateLimiter, MovingWindowRateLimiter
from servers import with_schema

from dipwell import DipwellError
from dipwell.limits import DipwellStorage

URI = "dipwell+" + with_schema()


class Storage(unittest.TestCase):
    def setUp(self):
        self.storage = storage_from_string(URI)
        self.storage.reset()

    def tearDown(self):
        for idle in self.storage._idle.values():
            for d in idle:
                d._link._conn.close()

    def until(self, done):
        while not done():
            time.sleep(0.01)

    def test_scheme(self):
        self.assertIsInstance(self.storage, DipwellStorage)
        self.assertTrue(self.storage.check())
        self.assertFalse(storage_from_string("dipwell+postgresql://postgres@127.0.0.1:1/none").check())

    def test_incr(self):
        now = time.time()
        self.assertEqual([self.storage.get("k"), self.storage.incr("k", 3600), self.storage.incr("k", 3600, amount=3), self.storage.get("k")], [0, 1, 4, 4])
        self.assertTrue(now + 3598 < self.storage.get_expiry("k") <= time.time() + 3600)
        self.assertTrue(now - 1 <= self.storage.get_expiry("other") <= time.time())
        self.assertEqual(self.storage.get("other"), 0)

    def test_expiry(self):
        self.storage.incr("k", 1)
        self.until(lambda: self.storage.get("k") == 0)
        self.assertEqual(self.storage.incr("k", 1, amount=2), 2)

    def test_clear_and_reset(self):
        for key in ("a", "b"):
            self.storage.incr(key, 60)
            self.storage.acquire_entry(key, 5, 60)
        self.storage.clear("a")
        self.assertEqual((self.storage.get("a"), self.storage.get("b")), (0, 1))
        self.assertEqual((self.storage.get_moving_window("a", 5, 60)[1], self.storage.get_moving_window("b", 5, 60)[1]), (0, 1))
        self.assertEqual(self.storage.reset(), 2)  # b in each of the two limits
        self.assertEqual((self.storage.get("b"), self.storage.get_moving_window("b", 5, 60)[1]), (0, 0))
        self.assertEqual(self.storage.incr("b", 60), 1)

    def test_fixed_window(self):
        limiter, per_minute = FixedWindowRateLimiter(self.storage), RateLimitItemPerMinute(10, 2)
        start = time.time()
        self.assertTrue(all(limiter.hit(per_minute, "ip") for _ in range(10)))
        self.assertFalse(limiter.hit(per_minute, "ip"))
        self.assertFalse(limiter.test(per_minute, "ip"))
        self.assertTrue(limiter.test(per_minute, "other"))
        reset, remaining = limiter.get_window_stats(per_minute, "ip")
        self.assertEqual(remaining, 0)
        self.assertTrue(start + 118 < reset <= time.time() + 120)
        self.assertEqual(limiter.get_window_stats(per_minute, "other")[1], 10)
        limiter.clear(per_minute, "ip")
        self.assertTrue(limiter.hit(per_minute, "ip", cost=10))
        self.assertFalse(limiter.hit(per_minute, "ip", cost=1))

    def test_fixed_window_begins_with_the_first_hit(self):
        limiter, per_second = FixedWindowRateLimiter(self.storage), RateLimitItemPerSecond(2)
        self.assertTrue(limiter.hit(per_second, "k", cost=2))
        self.until(lambda: limiter.test(per_second, "k"))
        self.assertEqual(limiter.get_window_stats(per_second, "k")[1], 2)

    def test_moving_window(self):
        limiter, per_hour = MovingWindowRateLimiter(self.storage), RateLimitItemPerHour(10)
        start = time.time()
        self.assertTrue(limiter.hit(per_hour, "k", cost=4))
        self.assertTrue(all(limiter.hit(per_hour, "k") for _ in range(6)))
        self.assertFalse(limiter.hit(per_hour, "k"))
        self.assertFalse(limiter.test(per_hour, "k"))
        reset, remaining = limiter.get_window_stats(per_hour, "k")
        self.assertEqual(remaining, 0)
        self.assertTrue(start + 3598 < reset <= time.time() + 3600)
        self.assertEqual(limiter.get_window_stats(per_hour, "other")[1], 10)
        self.assertFalse(limiter.hit(per_hour, "other", cost=11))
        limiter.clear(per_hour, "k")
        self.assertTrue(limiter.hit(per_hour, "k", cost=10))

    def test_moving_window_is_exact(self):
        limiter, per_second = MovingWindowRateLimiter(self.storage), RateLimitItemPerSecond(3)
        hits = []  # when each was allowed, at the latest and at the earliest
        while len(hits) < 12:
            before = time.monotonic()
            if limiter.hit(per_second, "k"):
                hits.append((before, time.monotonic()))
        for i in range(len(hits) - 3):  # four hits never lie within a second
            self.assertGreater(hits[i + 3][1] - hits[i][0], 1)

    def test_at_once(self):
        limiter, per_hour = MovingWindowRateLimiter(self.storage), RateLimitItemPerHour(20)
        for strategy in (limiter, FixedWindowRateLimiter(self.storage)):
            allowed = []
            threads = [threading.Thread(target=lambda: allowed.extend(strategy.hit(per_hour, "k") for _ in range(10))) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((len(allowed), sum(allowed)), (40, 20))

    def test_what_is_not_possible(self):
        with self.assertRaises(NotImplementedError):
            FixedWindowElasticExpiryRateLimiter(self.storage).hit(RateLimitItemPerHour(1), "k")
        with self.assertRaises(DipwellError):
            MovingWindowRateLimiter(self.storage).hit(RateLimitItemPerYear(1), "k")

    def test_long_keys(self):
        limiter, per_hour = FixedWindowRateLimiter(self.storage), RateLimitItemPerHour(1)
        self.assertTrue(limiter.hit(per_hour, "k" * 600))
        self.assertFalse(limiter.hit(per_hour, "k" * 600))

    def test_a_lost_connection(self):
        self.storage.incr("k", 60)
        with psycopg.connect(URI.replace("dipwell+", ""), autocommit=True) as conn:
            conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
        with self.assertRaises(psycopg.Error):
            self.storage.incr("k", 60)
        self.assertEqual(self.storage.incr("k", 60), 2)
