import pg from "pg";
import { Dipwell } from "dipwell";

const address = process.argv[2];
const client = address.startsWith("postgres") ? new pg.Client(address) : undefined;
await client?.connect();
const d = client ? Dipwell.sql((text, params) => client.query(text, params)) : Dipwell.http(address);
for (let i = 0; i < 3; i++) {
  const r = await d.take("login", "node:7");
  console.log(r.allowed ? `allowed, ${r.remaining} left` : `refused, again in ${Math.round(r.retryAfterMs / 1000)} s`);
}
await client?.end();
