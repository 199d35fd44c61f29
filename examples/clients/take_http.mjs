for (let i = 0; i < 3; i++) {
  const response = await fetch(process.argv[2] + "/v1/take", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ limit: "login", key: "node:7", cost: 1 }),
  });
  if (response.status !== 200 && response.status !== 429) throw new Error(await response.text()); // 503: the store cannot decide
  const answer = await response.json();
  console.log(answer.allowed ? `allowed, ${answer.remaining} left` : `refused, again in ${Math.round(answer.retry_after_us / 1e6)} s`);
}
