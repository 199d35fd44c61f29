// Each verb over each driver and over HTTP, which answer alike.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { DipwellError, key, predict } from "dipwell";
import { ways } from "./servers.mjs";

const hour = 3_600_000;
const within = (ms, most) => assert.ok(Number.isInteger(ms) && ms > 0 && ms <= most, `${ms} is not from 1 to ${most}`);

/** fails checks that a call is an error of a field, which changes nothing. */
const fails = (call, field, reason) =>
  assert.rejects(call, (e) => {
    assert.ok(e instanceof DipwellError, String(e));
    assert.equal(e.field, field, e.message);
    assert.match(e.reason, reason);
    assert.equal(e.message, field === null ? e.reason : `${field}: ${e.reason}`);
    assert.ok(!e.reason.includes(`${field}: `), e.reason);
    return true;
  });

for (const [way, d] of Object.entries(ways)) {
  describe(way, () => {
    const limit = (name) => `${name}-${way}`;
    const login = limit("login");

    it("takes until it is refused", async () => {
      await d.define(login, { rate: 2, per: "1h", burst: 20, plans: { pro: { rate: 4, burst: 40 }, banned: { mode: "blocked" } } });
      const first = await d.take(login, "u1", { cost: 18 });
      within(first.resetAfterMs, 9 * hour);
      assert.ok(Math.abs(first.at - Date.now()) < hour);
      const { at, resetAfterMs, ...rest } = first;
      assert.deepEqual(rest, {
        allowed: true, remaining: 2, retryAfterMs: null, granted: 18, never: false, delayMs: 0, reservation: null, limit: login, key: "u1", cost: 18,
      });
      const refused = await d.take(login, "u1", { cost: 3 });
      assert.deepEqual([refused.allowed, refused.remaining, refused.granted, refused.never], [false, 2, 0, false]);
      within(refused.retryAfterMs, hour / 2);
      assert.ok(refused.resetAfterMs > refused.retryAfterMs);
      assert.equal(predict(refused, refused.at + refused.retryAfterMs).allowed, true);
      const never = await d.take(login, "u1", { cost: 21 });
      assert.deepEqual([never.allowed, never.never, never.retryAfterMs], [false, true, null]);
    });

    it("knows plans and floors", async () => {
      assert.equal((await d.take(login, "u2", { plan: "pro" })).remaining, 39);
      assert.equal((await d.take(login, "u3", { floor: 20 })).allowed, false);
      assert.equal((await d.check(login, "u3", { floor: 19 })).allowed, true);
      assert.equal((await d.check(login, "u3", { plan: "banned" })).never, true);
      await fails(d.take(login, "u2", { plan: "gold" }), "plan", /gold/);
    });

    it("checks, takes up to, charges, gives back and resets", async () => {
      assert.deepEqual(await d.check(login, "u4").then((a) => [a.remaining, a.granted]), [20, 0]);
      assert.equal((await d.takeUpTo(login, "u4", { cost: 30 })).granted, 20);
      assert.equal((await d.charge(login, "u4", 5)).granted, 5);
      assert.equal((await d.refund(login, "u4", 15)).remaining, 10);
      assert.deepEqual(await d.reset(login, "u4").then((a) => [a.remaining, a.resetAfterMs]), [20, 0]);
    });

    it("reserves and cancels", async () => {
      const jobs = limit("jobs");
      await d.define(jobs, { rate: 1, per: hour, burst: 1, maxDebt: 5 });
      await d.take(jobs, "k");
      const r = await d.reserve(jobs, "k", { cost: 2 });
      assert.equal(r.allowed, true);
      within(r.delayMs, 2 * hour);
      await d.cancel(r.reservation);
      await fails(d.cancel(r.reservation), "reservation", /spent/);
    });

    it("takes from several limits or none", async () => {
      const tenant = limit("tenant");
      await d.define(tenant, { rate: 100, per: "1h", burst: 2 });
      const all = (cost) => d.takeAll([{ limit: login, key: 'a "u", \\{7}' }, { limit: tenant, key: "acme", cost }]);
      const yes = await all(2);
      assert.deepEqual([yes.allowed, yes.limit, yes.remaining], [true, tenant, 0]);
      assert.deepEqual(yes.limits.map((a) => [a.limit, a.key, a.cost, a.allowed, a.remaining, a.granted]), [
        [login, 'a "u", \\{7}', 1, true, 19, 1], [tenant, "acme", 2, true, 0, 2],
      ]);
      const no = await all(1);
      assert.deepEqual([no.allowed, no.limit, no.limits[0].remaining], [false, tenant, 19]);
      within(no.retryAfterMs, hour);
      await fails(d.takeAll([{ limit: login, key: "u" }, { limit: tenant, key: "" }]), "takes[1].key", /empty/);
      await fails(d.takeAll([{ limit: login, key: "u" }, { limit: "nobody", key: "k" }]), "takes[1].limit", /nobody/);
      await fails(d.takeAll([{ limit: login, key: "u", cost: 0.5 }]), "takes[0].cost", /whole/);
    });

    it("adds up the takes of a bucket, and has an entry for its parent", async () => {
      const [org, user, other] = [limit("firm"), limit("person"), limit("other")];
      await d.define(org, { rate: 100, per: "1d", parts: 1 });
      await d.define(user, { rate: 20, per: "1d", parent: org });
      await d.define(other, { rate: 20, per: "1d" });
      const takes = [{ limit: user, key: "acme/u", cost: 2 }, { limit: user, key: "acme/u", cost: 3 }, { limit: other, key: "o", cost: 4 }];
      const a = await d.takeAll(takes);
      assert.deepEqual(a.limits.map((l) => [l.limit, l.key, l.cost, l.remaining]), [
        [user, "acme/u", 2, 15], [user, "acme/u", 3, 15], [other, "o", 4, 16], [org, "acme", 5, 95],
      ]);
    });

    it("holds and settles", async () => {
      const id = limit("req-81");
      const h = await d.hold(login, "u5", 15, { ttl: "2m", id });
      assert.deepEqual([h.allowed, h.remaining, h.hold, h.repeated], [true, 5, id, false]);
      assert.ok(h.expires instanceof Date);
      assert.equal((await d.hold(login, "u5", 15, { ttl: "2m", id })).repeated, true);
      const later = await h.extend("1h");
      assert.ok(later > Date.now() && h.expires === later);
      const s = await h.settle(5);
      assert.deepEqual([s.remaining, s.repeated], [15, false]);
      assert.equal((await d.settle(id, 5)).repeated, true);
      await fails(d.settle(id, 6), "hold", /./);
      await fails(d.settle("no-such-hold"), "hold", /./);
      const refused = await d.hold(login, "u5", 20, { ttl: 1000 });
      assert.deepEqual([refused.allowed, refused.hold, refused.expires], [false, null, null]);
      await fails(refused.settle(), "hold", /refused/);
      const own = await d.hold(login, "u5", 1, { ttl: 60_000 });
      assert.match(own.hold, /./);
    });

    it("holds of several limits", async () => {
      const calls = limit("calls");
      await d.define(calls, { rate: 10, per: "1h" });
      const h = await d.holdAll([{ limit: login, key: "u6", cost: 10 }, { limit: calls, key: "u6" }], { ttl: "1m" });
      assert.deepEqual(h.limits.map((a) => a.remaining), [10, 9]);
      const s = await h.settle([4, 1]);
      assert.deepEqual(s.limits.map((a) => a.remaining), [16, 9]);
    });

    it("waits for limits of every kind", async () => {
      const begun = Date.now();
      const leaky = limit("leaky");
      await d.define(leaky, { rate: 20, per: "1s", algorithm: "leaky_bucket", maxDebt: 9 });
      for (let i = 0; i < 3; i++) assert.deepEqual(await d.wait(leaky, "k").then((a) => [a.allowed, a.delayMs, a.reservation]), [true, 0, null]);
      assert.ok(Date.now() - begun > 90);
      for (const maxDebt of [0, 1]) {
        const blocks = limit(`blocks-${maxDebt}`);
        await d.define(blocks, { rate: 1, per: hour, maxDebt, block: "5h" });
        for (const floor of maxDebt ? [undefined] : [undefined, 0]) {
          assert.equal((await d.wait(blocks, `k${floor}`, { timeout: "1s", floor })).allowed, true);
          assert.equal((await d.wait(blocks, `k${floor}`, { timeout: "1s", floor })).allowed, false);
          within((await d.check(blocks, `k${floor}`)).retryAfterMs, hour); // no block, which would end later
        }
      }
      const sliding = limit("sliding");
      await d.define(sliding, { rate: 1, per: "50ms", algorithm: "sliding_window" });
      for (let i = 0; i < 3; i++) assert.equal((await d.wait(sliding, "k")).allowed, true);
      const shadow = limit("shadow");
      await d.define(shadow, { rate: 1, per: hour, mode: "shadow" });
      for (let i = 0; i < 3; i++) assert.equal((await d.wait(shadow, "k", { timeout: "1s" })).allowed, true);
      const line = limit("line");
      await d.define(line, { rate: 1, per: hour, burst: 1, maxDebt: 3 });
      await d.take(line, "k");
      const stop = new AbortController();
      const left = d.wait(line, "k", { timeout: "10m", signal: stop.signal });
      assert.equal((await left).allowed, false);
      await d.define(line, { rate: 10, per: hour, burst: 1, maxDebt: 3 });
      await d.reset(line, "k");
      await d.take(line, "k");
      const gone = d.wait(line, "k", { timeout: "10m", signal: stop.signal });
      while (way !== "http" && (await d.check(line, "k")).resetAfterMs < hour / 10) await new Promise((r) => setTimeout(r, 5)); // until it has reserved
      stop.abort(new Error("left"));
      await assert.rejects(gone, /left/);
      if (way !== "http") within((await d.check(line, "k")).retryAfterMs, hour / 10);
    });

    it("waits", async () => {
      const pace = limit("pace");
      await d.define(pace, { rate: 20, per: "1s", burst: 1 });
      await d.take(pace, "k");
      assert.equal((await d.wait(pace, "k", { timeout: "1m" })).allowed, true);
      await d.take(login, "u7", { cost: 20 });
      const refused = await d.wait(login, "u7", { timeout: 10 });
      assert.equal(refused.allowed, false);
      within((await d.wait(login, "u7", { timeout: "10m" })).retryAfterMs, hour / 3); // then the same wait is allowed
      const stop = new AbortController();
      assert.equal((await d.wait(login, "u7", { cost: 0, signal: stop.signal })).allowed, true);
      await d.define(pace, { rate: 1, per: "5m", burst: 1 });
      await d.reset(pace, "gone");
      await d.take(pace, "gone");
      const gone = d.wait(pace, "gone", { timeout: "10m", signal: stop.signal });
      stop.abort(new Error("left"));
      await assert.rejects(gone, /left/);
      await assert.rejects(d.wait(pace, "gone", { signal: stop.signal }), /left/);
      await fails(d.wait(pace, "k", { timeout: "soon" }), "timeout", /length of time/);
      for (const timeout of [0, "11m"]) await fails(d.wait(pace, "k", { timeout }), "timeout", /between 1ms and 10m/);
    });

    it("says which keys are ready", async () => {
      await d.take(login, "spent", { cost: 20 });
      assert.deepEqual(await d.ready(login, ["c", "spent", 'b"', "a"]), ["c", 'b"', "a"]);
      await fails(d.ready(login, ["a", null]), "keys[1]", /null/);
    });

    it("needs a key unless the limit is shared", async () => {
      for (const none of [undefined, null]) await fails(d.take(login, none), "key", /./);
      await fails(d.take(login, ""), "key", /empty/);
      await fails(d.take(login, 7), "key", /type number/);
      const all = limit("everybody");
      await d.define(all, { rate: 5, per: "1h", shared: true });
      assert.deepEqual(await d.take(all).then((a) => [a.remaining, a.key]), [4, null]);
      assert.equal((await d.take(all, null)).remaining, 3);
      const both = await d.takeAll([{ limit: all }, { limit: login, key: "null" }]);
      assert.deepEqual(both.limits.map((a) => [a.key, a.remaining]), [[null, 2], ["null", 19]]);
      await fails(d.take(all, "k"), "key", /shared/);
    });

    it("makes keys of parts", async () => {
      const [org, member] = [limit("org"), limit("member")];
      await d.define(org, { rate: 100, per: "1h", parts: 1 });
      await d.define(member, { rate: 10, per: "1h", parent: org });
      assert.equal(key("acme", "a/b%"), "acme/a%2Fb%25");
      assert.throws(() => key("acme", ""), { field: "parts[1]", reason: "is empty" });
      const a = await d.takeAll([{ limit: member, key: key("acme", "a/b%"), cost: 9 }]);
      assert.deepEqual(a.limits.map((l) => [l.limit, l.remaining]), [[member, 1], [org, 91]]);
      await fails(d.take(member, "acme"), "key", /has 1 part/);
    });

    it("names the field of an error", async () => {
      await fails(d.take("nobody", "k"), "limit", /nobody/);
      await fails(d.take(undefined, "k"), "limit", /undefined/);
      await fails(d.take(login, "k", { cost: -1 }), "cost", /-1/);
      for (const cost of [2 ** 53, 1.5, NaN, Infinity, "1", 1n, null]) await fails(d.take(login, "k", { cost }), "cost", /whole number/);
      await fails(d.charge(login, "k"), "cost", /whole number|undefined/);
      await fails(d.hold(login, "k", 1, { ttl: "soon" }), "ttl", /./);
      await fails(d.define(limit("bad"), { rate: 5, per: "1mo" }), "per", /month/);
      await fails(d.define(limit("bad"), { rate: 0, per: "1m" }), "rate", /0/);
      await fails(d.define(limit("bad"), { rate: 1, per: "1m", brust: 3 }), "brust", /./);
      await fails(d.define(limit("bad"), { rate: 1, per: 0.5 }), "per", /whole number/);
      await fails(d.define(limit("bad"), { rate: 1, per: "1m", onChange: "never" }), "onChange", /keep/);
      await fails(d.define(limit("bad"), { rate: 1, per: "1mo2d" }), "per", /length of time/);
      await fails(d.wait(login, "k", { timeout: "1mo" }), "timeout", /no fixed length/);
      for (const half of ["a\ud800", "a\0"]) await fails(d.take(login, half), "key", /UTF-8/);
      await fails(d.cancel("nobody"), "reservation", /nobody/);
      await fails(d.takeAll([]), "takes", /0 entries/);
      await fails(d.ready(login, ["a", ""]), "keys[1]", /empty/);
      const both = await d.holdAll([{ limit: login, key: "h" }, { limit: login, key: "i" }], { ttl: "1m" });
      await fails(both.settle([1, -1]), "costs[1]", /-1/);
      assert.equal((await d.check(login, "k")).remaining, 20);
    });

    it("names what a call lacks, or has too much, where no types are checked", async () => {
      await fails(d.take(login, "k", 5), "options", /object/);
      await fails(d.take(login, "k", { costs: 5 }), "costs", /not known/);
      await fails(d.takeUpTo(login, "k", { timeout: 5 }), "timeout", /not known/);
      await fails(d.hold(login, "k", 1), "options", /object/);
      await fails(d.holdAll([{ limit: login, key: "k" }]), "options", /object/);
      await fails(d.takeAll(), "takes", /array/);
      await fails(d.takeAll([null]), "takes[0].limit", /undefined/);
      await fails(d.ready(login, "k"), "keys", /array/);
      await fails(d.define(limit("bad")), "limit", /object/);
      await fails(Promise.resolve().then(() => key("a", 7)), "parts[1]", /number/);
      assert.equal((await d.take(login, "k", null)).remaining, 19);
      await d.define(limit("undefined"), { rate: 1, per: "1m", maxDebt: undefined, plans: undefined });
    });

    it("defines all that a limit can have", async () => {
      await d.define(limit("month"), { algorithm: "fixed_window", rate: 1000, per: "1mo", start: "17 00:00 Europe/Rome", usage: true });
      await d.define(limit("slots"), { algorithm: "concurrency", burst: 2, ttl: "5m" });
      const h = await d.hold(limit("slots"), "k", 2, { ttl: "1m" });
      assert.deepEqual([h.allowed, (await d.take(limit("month"), "k")).remaining], [true, 999]);
      const adapts = d.define(limit("adapts"), { rate: 200, per: "1s", mode: "shadow", adaptive: { floor: 50, latency: "200ms" } });
      await (way === "http" ? adapts : fails(adapts, "adaptive", /no setting that a limit has in SQL/));
      await d.define(limit("debts"), { rate: 1, per: 3_600_000, burst: 2, maxDebt: -1, onChange: "reset", plans: { pro: { maxDebt: -1, per: "1m", callable: false } } });
      assert.equal((await d.reserve(limit("debts"), "k", { cost: 100 })).allowed, true);
      await d.define(limit("blocks"), { rate: 1, per: "1h", block: "10m" });
      await d.take(limit("blocks"), "k");
      assert.ok((await d.take(limit("blocks"), "k")).allowed === false);
    });
  });
}
