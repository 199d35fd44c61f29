// Writes dist, what is packed: the program compiled, the SQL and the version of the dipwell
// program, which is that of this checkout, or the one that DIPWELL names.
import { execFileSync } from "node:child_process";
import { copyFileSync, readFileSync, rmSync, writeFileSync } from "node:fs";

process.chdir(import.meta.dirname ?? new URL(".", import.meta.url).pathname);
const run = (program, ...args) => execFileSync(program, args, { encoding: "utf8", maxBuffer: 1 << 24, stdio: ["ignore", "pipe", "inherit"] });
const dipwell = (...args) =>
  process.env.DIPWELL ? run(process.env.DIPWELL, ...args) : run("go", "run", "-buildvcs=true", "../../cmd/dipwell", ...args);

rmSync("dist", { recursive: true, force: true });
try {
  run("npx", "tsc");
} catch (e) {
  console.error(e.stdout);
  process.exit(1);
}

const sql = dipwell("migrate", "print");
const [, schema] = [...sql.matchAll(/insert into dipwell\.migrations \(version, name\) values \((\d+)/g)].at(-1);
writeFileSync("dist/schema.js", `export const version = ${schema};\nexport const sql = ${JSON.stringify(sql)};\n`);

// Not a version of npm's where the go command has stamped none.
const [, version = "0.0.0-devel"] = /^dipwell v(\d\S+)/.exec(dipwell("version")) ?? [];
const manifest = { name: "dipwell", version, ...JSON.parse(readFileSync("src/package.json", "utf8")) };
writeFileSync("dist/package.json", JSON.stringify(manifest, null, 2) + "\n");
copyFileSync("README.md", "dist/README.md");
copyFileSync("../../LICENSE", "dist/LICENSE");
