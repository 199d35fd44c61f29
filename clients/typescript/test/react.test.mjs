import assert from "node:assert/strict";
import { it } from "node:test";
import { createElement } from "react";
import { act, create } from "react-test-renderer";
import { usePrediction } from "dipwell/react";

globalThis.IS_REACT_ACT_ENVIRONMENT = true;

it("counts a button down until it works", async () => {
  const answer = { allowed: false, remaining: 0, retryAfterMs: 300, resetAfterMs: 300, granted: 0, never: false, delayMs: 0, cost: 1, at: 0 }; // by a clock that is far off
  const seen = [];
  function Button() {
    const { allowed, retryAfterMs } = usePrediction(answer);
    seen.push(allowed);
    return createElement("button", { disabled: !allowed }, allowed ? "Send" : `again in ${Math.ceil(retryAfterMs / 1000)} s`);
  }
  let root;
  await act(async () => {
    root = create(createElement(Button));
  });
  assert.deepEqual(root.toJSON().children, ["again in 1 s"]);
  for (const end = Date.now() + 60_000; root.toJSON().props.disabled && Date.now() < end; ) {
    await act(() => new Promise((r) => setTimeout(r, 20)));
  }
  assert.deepEqual(root.toJSON().children, ["Send"]);
  assert.deepEqual([seen[0], seen.at(-1)], [false, true]);
  await act(async () => root.unmount());
});
