// A client generated from /openapi.json: openapi-typescript makes openapi.d.ts, and
// openapi-fetch checks paths, bodies and answers against it.
import createClient from "openapi-fetch";
import type { paths } from "./openapi.js";

const client = createClient<paths>({ baseUrl: process.argv[2] ?? "" });
for (let i = 0; i < 3; i++) {
  const { data, error, response } = await client.POST("/v1/take", { body: { limit: "login", key: "walk:7", cost: 1 } });
  if (data) console.log(`allowed, ${data.remaining} left`);
  else if (response.status === 429) console.log(`refused, again in ${response.headers.get("Retry-After")} s`);
  else throw new Error(JSON.stringify(error));
}
const limit = await client.GET("/v1/limits/{name}", { params: { path: { name: "login" } } });
if (limit.data?.rate !== 2) throw new Error(JSON.stringify(limit));
const reset = await client.POST("/v1/reset", { body: { limit: "login", key: "walk:7" } });
if (reset.data?.remaining !== 2) throw new Error(JSON.stringify(reset));
