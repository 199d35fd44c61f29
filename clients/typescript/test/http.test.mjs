import assert from "node:assert/strict";
import { createServer } from "node:http";
import { it } from "node:test";
import { Dipwell, DipwellError } from "dipwell";
import { service, token } from "./servers.mjs";

const failing = (code, reason, field = null) => (e) => e instanceof DipwellError && e.field === field && e.code === code && reason.test(e.reason);

it("sends the token", async () => {
  const definition = ["of-admin", { rate: 1, per: "1h" }];
  await assert.rejects(Dipwell.http(service).define(...definition), failing("401", /./, "Authorization"));
  await assert.rejects(Dipwell.http(service, { token: "wrong" }).define(...definition), failing("401", /./, "Authorization"));
  await Dipwell.http(new URL(service), { token }).define(...definition);
  assert.equal((await Dipwell.http(service).take("of-admin", "k")).allowed, true);
  await assert.rejects(Dipwell.http(service, { token }).install(), failing(null, /nothing to install/));
});

it("reports what else may answer", async () => {
  const answers = {
    "/html/v1/take": [502, "<h1>Bad Gateway</h1>"],
    "/empty/v1/take": [503, ""],
    "/other/v1/take": [429, '{"title":"Too Many Requests"}'],
    "/broken/v1/take": [200, "<h1>Welcome</h1>"],
  };
  const server = createServer((request, response) => {
    const [status, body] = answers[request.url] ?? []; // no answer at all
    if (status) response.writeHead(status).end(body);
  });
  await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
  const url = `http://127.0.0.1:${server.address().port}`;
  const take = (path, options) => Dipwell.http(url + path, options).take("login", "k");
  try {
    await assert.rejects(take("/html/"), failing("502", /Bad Gateway/));
    await assert.rejects(take("/empty"), failing("503", /status 503/));
    await assert.rejects(take("/other"), failing("429", /Too Many/));
    await assert.rejects(take("/broken"), failing("200", /Welcome/));
    await assert.rejects(take("/silent", { timeoutMs: 50 }), failing(null, /no answer in 50 ms/));
  } finally {
    server.closeAllConnections();
    await new Promise((closed) => server.close(closed));
  }
  await assert.rejects(take(""), failing(null, new RegExp(url)));
});
