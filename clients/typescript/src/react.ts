import { useEffect, useMemo, useState } from "react";
import { predict, type Bucket, type Prediction } from "./predict.js";
import type { Answer } from "./types.js";

/**
 * What an answer of a server allows now, rendered again each second until the same call is
 * allowed: for a button that counts down. The answer is as old as this component has had it,
 * so clocks may differ.
 */
export function usePrediction(answer: Answer, bucket?: Bucket): Prediction {
  const received = useMemo(() => ({ ...answer, at: Date.now() }), [answer]);
  const [, render] = useState(0);
  const prediction = predict(received, Date.now(), bucket);
  const wait = prediction.retryAfterMs;
  useEffect(() => {
    if (!wait) return;
    const timer = setTimeout(() => render((n) => n + 1), wait % 1000 || 1000);
    return () => clearTimeout(timer);
  });
  return prediction;
}
