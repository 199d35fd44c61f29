import assert from "node:assert/strict";
import { it } from "node:test";
import { predict } from "dipwell";

const at = 1_000_000;
const answer = (a) => ({ allowed: true, remaining: 0, retryAfterMs: null, resetAfterMs: 0, granted: 1, never: false, delayMs: 0, limit: "l", key: "k", cost: 1, at, ...a });

/** bucket computes in whole microseconds what a token bucket answers that has used some. */
function bucket(rate, perMs, burst, usedUs, cost) {
  const perToken = (BigInt(perMs) * 1000n) / BigInt(rate); // rates are chosen so that it is whole
  const free = (BigInt(burst) * perToken - usedUs) / perToken;
  const missing = BigInt(cost) * perToken - (BigInt(burst) * perToken - usedUs);
  const up = (us) => Number((us + 999n) / 1000n);
  return answer({ allowed: missing <= 0n, remaining: Number(free), retryAfterMs: missing > 0n ? up(missing) : null, resetAfterMs: up(usedUs), cost, granted: 0 });
}

it("promises nothing early, and is late by a millisecond at most", () => {
  const [rate, per, burst] = [50, 7000, 20]; // a token in 140 ms
  for (let used = 0n; used <= 2_800_000n; used += 3_337n) {
    for (const cost of [0, 1, 2, 20]) {
      const a = bucket(rate, per, burst, used, cost);
      const p = predict(a, at, { rate, per, burst });
      if (a.retryAfterMs !== null) assert.ok(p.retryAfterMs === a.retryAfterMs || p.retryAfterMs === a.retryAfterMs + 1, `${used} ${cost}`);
      for (const later of [0, 1, 139, 140, 141, 1000, 5000]) {
        const truth = bucket(rate, per, burst, used - BigInt(later) * 1000n < 0n ? 0n : used - BigInt(later) * 1000n, cost);
        const exact = predict(a, at + later, { rate, per, burst });
        const any = predict(a, new Date(at + later));
        assert.ok(exact.remaining === truth.remaining || exact.remaining === truth.remaining - 1, `${used} ${cost} ${later}`);
        assert.ok(exact.remaining >= a.remaining, `${used} ${cost} ${later}`);
        assert.ok(any.remaining <= truth.remaining, `${used} ${cost} ${later}`);
        assert.ok(truth.allowed || !any.allowed, `${used} ${cost} ${later}`);
        assert.ok(truth.allowed || !exact.allowed, `${used} ${cost} ${later}`);
      }
    }
  }
});

it("counts down from a refusal", () => {
  const refused = answer({ allowed: false, retryAfterMs: 3000, resetAfterMs: 60_000, granted: 0 });
  assert.deepEqual(predict(refused, at + 1), { allowed: false, remaining: 0, retryAfterMs: 2999 });
  assert.deepEqual(predict(refused, at + 3000), { allowed: true, remaining: 1, retryAfterMs: 0 });
  assert.deepEqual(predict(refused, at - 5), { allowed: false, remaining: 0, retryAfterMs: 3000 });
});

it("knows after the last token when all are back, and with the settings when one is", () => {
  const last = answer({ resetAfterMs: 240_000 });
  assert.deepEqual(predict(last, at), { allowed: false, remaining: 0, retryAfterMs: 240_000 });
  assert.deepEqual(predict(last, at + 240_000), { allowed: true, remaining: 1, retryAfterMs: 0 });
  const login = { rate: 5, per: "1m", burst: 20 };
  assert.deepEqual(predict(last, at, login), { allowed: false, remaining: 0, retryAfterMs: 12_000 });
  assert.deepEqual(predict(last, at + 24_000, login), { allowed: true, remaining: 2, retryAfterMs: 0 });
});

it("knows never, shadow mode and limits without a reset", () => {
  const never = answer({ allowed: false, never: true, cost: 30, resetAfterMs: 1000, granted: 0 });
  for (const settings of [undefined, { rate: 1, per: "1s", burst: 20 }]) {
    assert.deepEqual([predict(never, at + 5000, settings).allowed, predict(never, at + 5000, settings).retryAfterMs], [false, null]);
  }
  assert.equal(predict(answer({ retryAfterMs: 500, resetAfterMs: 1000 }), at).allowed, true);
  assert.deepEqual(predict(answer({ allowed: false, resetAfterMs: null, granted: 0 }), at), { allowed: false, remaining: 0, retryAfterMs: null });
});
