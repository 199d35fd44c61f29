// The package as a whole: what README.md shows, and what the modules need.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import { it } from "node:test";
import { promisify } from "node:util";
import { pool, url } from "./servers.mjs";

const dir = new URL("../node_modules/dipwell/", import.meta.url);

it("runs the programs of its README", async () => {
  const readme = await readFile(new URL("README.md", dir), "utf8");
  const program = [...readme.matchAll(/^```js\n(.*?)^```/gms)].map(([, block]) => block).join("\n") + "\nawait client.end();\n";
  await pool.query("create database readme");
  const file = new URL("readme.mjs", import.meta.url);
  await writeFile(file, program);
  try {
    const env = { ...process.env, DATABASE_URL: Object.assign(new URL(url), { pathname: "/readme" }).href };
    const { stdout } = await promisify(execFile)(process.execPath, [file.pathname], { env });
    assert.match(stdout, /^true \[ 1, 0 \]\n\[ 'customer:7', 'customer:8' \]\ntrue 15 \d{4}-.*\n$/);
  } finally {
    await rm(file);
  }
});

it("imports nothing but itself, and React for the hook", async () => {
  for (const name of await readdir(dir)) {
    if (!name.endsWith(".js") || name === "schema.js") continue;
    const text = await readFile(new URL(name, dir), "utf8");
    const imports = [...text.matchAll(/(?:from|import)\s*\(?"([^"]+)"/g)].map(([, module]) => module);
    assert.deepEqual(imports.filter((module) => !module.startsWith("./")), name === "react.js" ? ["react"] : [], name);
    assert.ok(!/\b(require|process|Buffer)\b/.test(text.replace(/\/\*.*?\*\/|\/\/.*/gs, "")), name);
  }
});
