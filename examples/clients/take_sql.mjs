import pg from "pg";

// PostgreSQL's bigint arrives as a string, because it may be larger than a number can hold
// exactly; dipwell's never are. An interval arrives as an object without a total.
pg.types.setTypeParser(pg.types.builtins.INT8, Number);
const db = new pg.Client(process.argv[2]);
await db.connect();
for (let i = 0; i < 3; i++) {
  const { rows: [row] } = await db.query("select allowed, remaining, extract(epoch from retry_after)::float8 as retry from dipwell.take($1, $2, $3)", ["login", "node:7", 1]);
  console.log(row.allowed ? `allowed, ${row.remaining} left` : `refused, again in ${Math.round(row.retry)} s`);
}
await db.end();
