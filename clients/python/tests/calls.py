"""Tests of the calls, which every client must pass."""
import itertools
import time
from datetime import datetime, timedelta, timezone

from dipwell import DipwellError

numbers = itertools.count(1)


class Calls:
    d = None  # the client

    def limit(self, rate=5, per="1h", **settings):
        name = f"limit-{next(numbers)}"
        self.d.define(name, rate=rate, per=per, **settings)
        return name

    def wrong(self, field, call, *args, **kwargs):
        """Check that a call names a field as wrong, and return the error."""
        with self.assertRaises(DipwellError) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.field, field, caught.exception)
        self.assertTrue(caught.exception.reason)
        self.assertNotIn(f"{field}: ", caught.exception.reason)
        return caught.exception

    def test_take(self):
        name = self.limit(5)
        r = self.d.take(name, "user:7", 3)
        self.assertEqual((r.allowed, r.remaining, r.retry_after, r.granted, r.delay, r.never, r.reservation), (True, 2, None, 3, timedelta(), False, None))
        self.assertTrue(timedelta(minutes=35) < r.reset_after <= timedelta(minutes=36), r)
        self.assertTrue(r)
        r = self.d.take(name, "user:7", cost=3)
        self.assertEqual((r.allowed, r.remaining, r.granted, r.never), (False, 2, 0, False))
        self.assertTrue(timedelta(minutes=11) < r.retry_after <= timedelta(minutes=12), r)
        self.assertFalse(r)
        r = self.d.take(name, "user:7", 6)
        self.assertEqual((r.allowed, r.never, r.retry_after), (False, True, None))
        self.assertEqual(self.d.take(name, "user:8").remaining, 4)

    def test_verbs(self):
        name = self.limit(5)
        self.assertEqual(self.d.check(name, "k", 5).remaining, 5)
        self.assertEqual(self.d.take_up_to(name, "k", 9).granted, 5)
        self.assertFalse(self.d.check(name, "k"))
        self.assertEqual(self.d.refund(name, "k", 2).remaining, 2)
        r = self.d.charge(name, "k", 4)
        self.assertEqual((r.allowed, r.remaining, r.granted), (True, 0, 4))
        self.assertEqual(self.d.reset(name, "k").remaining, 5)

    def test_reserve(self):
        name = self.limit(5, max_debt=5)
        self.assertEqual(self.d.reserve(name, "k", 5).reservation, None)
        r = self.d.reserve(name, "k", 2)
        self.assertIsInstance(r.reservation, str)
        self.assertTrue(timedelta(minutes=23) < r.delay <= timedelta(minutes=24), r)
        self.assertIsNone(self.d.cancel(r.reservation))
        self.wrong("reservation", self.d.cancel, r.reservation)
        self.wrong("reservation", self.d.cancel, "nobody")
        self.assertFalse(self.d.reserve(name, "k", 6))

    def test_plans_and_floors(self):
        name = self.limit(5, plans={"pro": {"rate": 100, "burst": 50}, "banned": "blocked", "staff": {"mode": "unlimited", "callable": False}})
        self.assertEqual(self.d.take(name, "k", 20, plan="pro").remaining, 30)
        self.assertTrue(self.d.take(name, "k2", plan="banned").never)
        self.assertFalse(self.d.take(name, "k3", 2, floor=4))
        self.assertTrue(self.d.check(name, "k3", 1, floor=4))
        self.wrong("plan", self.d.take, name, "k", plan="gold")
        self.wrong("plan", self.d.take, name, "k", plan="staff")

    def test_take_all(self):
        user, tenant = self.limit(5), self.limit(2)
        r = self.d.take_all([(user, "u7"), {"limit": tenant, "key": "acme", "cost": 2}])
        self.assertEqual((r.allowed, r.remaining, r.limit), (True, 0, tenant))
        self.assertEqual([(x.limit, x.key, x.remaining, x.granted) for x in r.limits], [(user, "u7", 4, 1), (tenant, "acme", 0, 2)])
        r = self.d.take_all([(user, "u7"), (tenant, "acme", 1)])
        self.assertEqual((r.allowed, r.limit, [x.allowed for x in r.limits]), (False, tenant, [True, False]))
        self.assertEqual(r.retry_after, r.limits[1].retry_after)
        self.assertEqual(self.d.check(user, "u7").remaining, 4)
        self.assertTrue(self.d.take_all([(user, "u9")]).limits[0])
        self.assertFalse(self.d.take_all([(user, "u9", 1, None, 5)]))
        self.wrong("takes[1].limit", self.d.take_all, [(user, "u7"), ("nobody", "k")])
        self.wrong("takes[1].key", self.d.take_all, [(user, "u7"), (user, None)])
        self.wrong("takes[1].cost", self.d.take_all, [(user, "u7"), (user, "u7", 1.5)])
        self.wrong("takes[0]", self.d.take_all, [(user, "u7", 1, None, None, 8)])
        self.wrong("takes", self.d.take_all, [])

    def test_keys(self):
        name, shared = self.limit(5), self.limit(5, shared=True)
        self.assertIn("is null" if self.sql else "", self.wrong("key", self.d.take, name).reason)
        self.wrong("key", self.d.take, name, "")
        self.wrong("key", self.d.take, name, 7)
        self.wrong("key", self.d.take, name, "a\0b")
        self.wrong("key", self.d.take, name, "\ud800")
        self.assertEqual(self.d.take(shared).remaining, 4)
        self.wrong("key", self.d.take, shared, "")
        self.wrong("key", self.d.take, shared, "k")
        self.assertEqual(self.d.take(name, "Ünïcode 漢字 '\"\\ %s").remaining, 4)
        self.wrong("limit", self.d.take, "nobody", "k")
        self.wrong("limit", self.d.take, None, "k")
        self.wrong("key", self.d.take, name, ["acme", ""])
        self.wrong("keys[1]", self.d.ready, name, ["k", ("", "u7")])

    def test_paths(self):
        org = self.limit(100, parts=1)
        member = self.limit(10, parent=org)
        r = self.d.take(member, ["acme", "a/b%"], 9)
        self.assertEqual(r.remaining, 1)
        self.assertEqual(self.d.check(member, "acme/a%2Fb%25").remaining, 1)
        self.assertEqual(self.d.check(org, "acme").remaining, 91)
        r = self.d.take_all([(member, ("acme", "u7"))])
        self.assertEqual([x.limit for x in r.limits], [member, org])

    def test_costs(self):
        name = self.limit(5)
        for cost in (True, False, 1.0, 1.5, "1", None, -1, 2**53, float("nan")):
            for call in (self.d.take, self.d.check, self.d.take_up_to, self.d.reserve, self.d.charge, self.d.refund, self.d.wait):
                self.wrong("cost", call, name, "k", cost)
        self.wrong("floor", self.d.take, name, "k", floor=True)
        self.wrong("cost", self.d.ready, name, ["k"], 0.5)
        self.assertEqual(self.d.take(name, "k", 2**53 - 1).never, True)
        self.assertEqual(self.d.take(name, "k", 0).remaining, 5)

    def test_hold(self):
        name = self.limit(100)
        h = self.d.hold(name, "k", 30, ttl="2m", id=f"{name}-1")
        self.assertEqual((h.allowed, h.remaining, h.id, h.hold, h.repeated), (True, 70, f"{name}-1", f"{name}-1", False))
        self.assertTrue(h.expires > datetime.now(timezone.utc))
        self.assertTrue(self.d.hold(name, "k", 30, ttl="2m", id=f"{name}-1").repeated)
        self.assertTrue(h.extend(timedelta(minutes=9)) > h.expires)
        r = h.settle(20)
        self.assertEqual((r.remaining, r.granted, r.repeated), (80, 20, False))
        self.assertTrue(h.settle(20).repeated)
        self.assertTrue(self.d.settle(h.id, 20).repeated)
        self.assertEqual(self.wrong("hold", h.settle, 21).code, "55000" if self.sql else 409)
        self.wrong("hold", self.d.settle, "nobody")
        self.wrong("id", self.d.hold, name, "k", ttl="2m", id="ü")
        self.wrong("ttl", self.d.hold, name, "k", ttl="2 minutes")
        self.wrong("ttl", self.d.hold, name, "k", ttl="0s")
        refused = self.d.hold(name, "k", 99, ttl="1m")
        self.assertEqual((refused.allowed, refused.id), (False, None))
        self.wrong("hold", refused.settle)

    def test_hold_all(self):
        tokens, calls = self.limit(100), self.limit(10)
        h = self.d.hold_all([(tokens, "acme", 30), (calls, "acme")], ttl="1m")
        self.assertEqual([x.remaining for x in h.limits], [70, 9])
        r = h.settle([20, 1])
        self.assertEqual([x.remaining for x in r.limits], [80, 9])
        h = self.d.hold_all([(tokens, "acme", 30), (calls, "acme", 2)], ttl="1m")
        self.wrong("cost", h.settle, False)
        h.settle(0)
        self.assertEqual((self.d.check(tokens, "acme").remaining, self.d.check(calls, "acme").remaining), (80, 9))
        self.assertFalse(self.d.hold_all([(tokens, "acme", 30), (calls, "acme", 99)], ttl="1m").allowed)
        self.wrong("costs[1]", self.d.settle, "x", [1, True])
        both = self.d.hold_all([(tokens, "bee"), (calls, "bee")], ttl="1m")
        self.wrong("costs", both.settle, [1])

    def test_ready(self):
        name = self.limit(1)
        self.d.take(name, "bee")
        self.assertEqual(self.d.ready(name, ["acme", "bee", "cee"]), ["acme", "cee"])
        self.assertEqual(self.d.ready(name, ["acme"], 2), [])
        self.wrong("keys[1]", self.d.ready, name, ["acme", 7])
        self.wrong("keys[1]", self.d.ready, name, ["acme", ""])
        self.wrong("keys", self.d.ready, name, "acme")

    def test_wait(self):
        for debt in (0, 5):
            name = self.limit(1, "20ms", burst=1, max_debt=debt)
            for _ in range(3):
                r = self.d.wait(name, "k", timeout="1m")
                self.assertEqual((r.allowed, r.delay, r.reservation), (True, timedelta(), None))
            name = self.limit(1, "1h", max_debt=debt)
            self.assertTrue(self.d.wait(name, "k"))
            r = self.d.wait(name, "k", timeout="10m")
            self.assertEqual(r.allowed, False)
            self.assertTrue(timedelta(minutes=49) < r.retry_after < timedelta(minutes=51), r)
            self.assertEqual(self.d.refund(name, "k").remaining, 1)  # the refused wait took nothing
            self.assertTrue(self.d.wait(name, "k", 9, timeout="1s").never)
        name = self.limit(1, "1h", max_debt=0)
        self.assertFalse(self.d.wait(name, "k", timeout="1s", floor=1))
        for timeout in (3, "0s", "11m"):
            self.wrong("timeout", self.d.wait, name, "k", timeout=timeout)

    def test_wait_of_other_limits(self):
        for debt in (0, 1):
            name = self.limit(1, "1h", max_debt=debt, block="5h")
            self.assertEqual([self.d.wait(name, "k", timeout=t).allowed for t in ("1s", "1s")], [True, False])
            self.assertTrue(self.d.check(name, "k").retry_after <= timedelta(hours=1), "the wait began a block")
        name = self.limit(20, "1s", algorithm="leaky_bucket", max_debt=9)
        start = time.monotonic()
        for _ in range(3):
            self.assertEqual(self.d.wait(name, "k").delay, timedelta())
        self.assertTrue(time.monotonic() - start > 0.09)
        name = self.limit(1, "50ms", algorithm="sliding_window")
        self.assertEqual([self.d.wait(name, "k").allowed for _ in range(3)], [True, True, True])
        name = self.limit(1, "1h", mode="shadow")
        self.assertEqual([self.d.wait(name, "k", timeout="1s").allowed for _ in range(3)], [True, True, True])

    def test_override(self):
        name = self.limit(5, plans={"pro": {"rate": 100}})
        self.d.override(name, "k", plan="pro", note="contract")
        self.assertEqual(self.d.take(name, "k").remaining, 99)
        self.d.override(name, "k", rate=9, per="1d", burst=7, until=datetime.now(timezone.utc) + timedelta(hours=1))
        self.assertEqual(self.d.check(name, "k2").remaining, 5)
        self.assertTrue(self.d.end_override(name, "k"))
        self.assertTrue(self.d.end_override(name, "k"))
        self.assertFalse(self.d.end_override(name, "k"))
        self.wrong("limit", self.d.end_override, "nobody", "k")
        self.wrong("limit", self.d.override, "nobody", "k", plan="pro")
        self.wrong("plan", self.d.override, name, "k", plan="gold")
        for until in (datetime(2030, 1, 1), "2030-01-01", 60):
            self.wrong("until", self.d.override, name, "k", plan="pro", until=until)
        self.wrong("rate", self.d.override, name, "k", rate=1.5, per="1m")
        self.wrong("burst", self.d.override, name, "k", rate=1, per="1m", burst="2")

    def test_define(self):
        self.assertTrue(self.d.take(self.limit(1000, "1mo", algorithm="fixed_window", start="17 00:00 Europe/Rome"), "k"))
        self.assertTrue(self.d.take(self.limit(5, timedelta(seconds=90), max_debt="unlimited", block="10m", usage=True), "k"))
        if not self.sql:  # SQL defines none
            self.assertTrue(self.d.take(self.limit(500, "1s", burst=1000, adaptive={"floor": 50, "latency": "200ms"}), "k"))
        name = self.limit(None, None, burst=3, algorithm="concurrency", ttl="5m")
        self.assertEqual(self.d.hold(name, "k", ttl="1m").remaining, 2)
        self.assertEqual(self.d.check(self.limit(5, burst=0, max_debt=3), "k").remaining, 0)
        self.wrong("rate", self.d.define, "x", rate=True, per="1m")
        self.wrong("burst", self.d.define, "x", rate=1, per="1m", burst=1.5)
        self.wrong("rate", self.d.define, "x")
        self.wrong("per", self.d.define, "x", rate=1, per="1 minute")
        self.wrong("per", self.d.define, "x", rate=1, per="1mo")
        self.wrong("algorithm", self.d.define, "x", rate=1, per="1m", algorithm="magic")
        self.wrong("colour", self.d.define, "x", rate=1, per="1m", colour="red")
