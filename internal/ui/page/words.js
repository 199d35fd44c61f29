// Numbers, times and rules as text. All times are in the zone of the service.

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const short = new Intl.NumberFormat("en", {maximumSignificantDigits: 3});
export const unlimited = 9007199254740991;

export const count = (n) => (n >= unlimited ? "unlimited" : whole.format(n));
export const some = (n, one, many = one + "s") => count(n) + " " + (n === 1 ? one : many);

// shorter is a key without its middle, if it is so long that it fills a view.
export const shorter = (key) => (key.length > 72 ? key.slice(0, 40).replace(/[\uD800-\uDBFF]$/, "") + "…" + key.slice(-24).replace(/^[\uDC00-\uDFFF]/, "") : key);

// brief shortens a number for an axis: 600k.
export const brief = (n) => (n >= 1e6 ? short.format(n / 1e6) + "M" : n >= 1e4 ? short.format(n / 1e3) + "k" : short.format(n));

// share writes a part of all in percent; nothing is blank.
export const share = (part, all) => (part === 0 || all === 0 ? "" : part * 1000 < all ? "< 0.1 %" : (100 * part / all).toFixed(1) + " %");

// span writes a length of time in microseconds, rounded up to its last unit.
export function span(us) {
  if (us <= 0) return "0 s";
  if (us < 1e6) return short.format(us < 1e3 ? us : us / 1e3) + (us < 1e3 ? " µs" : " ms");
  let s = Math.ceil(us / 1e6);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (parts.length === 1 && size < 60 && parts[0].endsWith("h")) break;
    if (s >= size && parts.length < 2) {
      parts.push(Math.floor(s / size) + " " + unit);
      s %= size;
    }
  }
  return parts.join(" ");
}

let format, zone = "UTC", ahead = 0;

// setZone sets the zone of all times, by its name of the tz database.
export function setZone(name) {
  const parts = {hourCycle: "h23", weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit"};
  try {
    format = new Intl.DateTimeFormat("en-GB", {timeZone: name, ...parts});
    zone = name;
  } catch { // an abbreviation, such as CEST
    format = new Intl.DateTimeFormat("en-GB", {timeZone: zone = "UTC", ...parts});
  }
}
setZone("UTC");
export const zoneName = () => zone.replace(/^Etc\//, "").replaceAll("_", " ");

// now is the service's time in ms: setClock says by how much its clock is ahead.
export const now = () => Date.now() + ahead;
export function setClock(ms) {
  const off = ms - Date.now();
  ahead = Math.abs(off) < 2000 ? 0 : off; // what it says is exact to a second
}

const partsOf = (ms) => Object.fromEntries(format.formatToParts(ms).map((p) => [p.type, p.value]));

// day is the day of a time: "" for today.
export function day(ms, always) {
  const t = partsOf(ms), today = partsOf(now());
  if (t.year === today.year && t.month === today.month && t.day === today.day) return always ? "Today" : "";
  return t.year === today.year ? `${t.weekday} ${t.day} ${t.month}` : `${t.day} ${t.month} ${t.year}`;
}

export function minute(ms) {
  const t = partsOf(ms);
  return t.hour + ":" + t.minute;
}

// at writes a time to the second, rounded up, with the day if that is not today.
export function at(ms) {
  if (!(ms < 8e15)) return "the far future"; // no date has that many ms
  ms = Math.ceil(Math.floor(ms) / 1000) * 1000; // some times are in µs, and others in ms
  const t = partsOf(ms), date = day(ms);
  return (date && date + " ") + t.hour + ":" + t.minute + (t.second === "00" || date && ms - now() > 864e5 ? "" : ":" + t.second);
}

// past is at for what has happened, rounded down.
export const past = (ms) => at(Math.floor(ms / 1000) * 1000);

export function clock(ms) {
  const t = partsOf(ms);
  return `${t.hour}:${t.minute}:${t.second}`;
}

// fromZone reads what a field of the type datetime-local has as a time of the zone.
export function fromZone(text) {
  const guess = Date.parse(text + "Z");
  const offset = (ms) => {
    const t = partsOf(ms);
    return Date.parse(`${t.day} ${t.month} ${t.year} ${t.hour}:${t.minute}:${t.second} UTC`) - Math.floor(ms / 1000) * 1000;
  };
  return guess - offset(guess - offset(guess));
}

const each = {"1s": "a second", "1m": "a minute", "1h": "an hour", "1d": "a day", "1w": "a week", "1mo": "a month", "1y": "a year"};
export const per = (p) => each[p] ?? "each " + p.replace(/^(\d+)([a-z]+)$/, (_, n, unit) => n + " " + ({m: "min", mo: "months", w: "weeks", d: "days", y: "years"}[unit] ?? unit));

const seconds = {ms: 1e-3, s: 1, m: 60, h: 3600, d: 86400, w: 604800};

// length is the length of a period in ms, and NaN for months and years.
export const length = (p) => [...p.matchAll(/(\d+(?:\.\d+)?)(ms|mo|[smhdwy])/g)].reduce((sum, [, n, unit]) => sum + n * (seconds[unit] ?? NaN) * 1000, 0);

export function numbers(n, algorithm) {
  if (n.mode === "blocked") return "refuses every call";
  if (n.mode === "unlimited") return "allows every call";
  if (algorithm === "concurrency") return count(n.burst) + " at a time";
  return count(n.rate) + " " + per(n.per) + (n.burst !== undefined && n.burst !== n.rate ? ", burst " + count(n.burst) : "");
}

export function rule(l) {
  return numbers({rate: l.rate, per: l.per, burst: l.algorithm === "concurrency" ? l.burst : l.algorithm === "leaky_bucket" ? undefined : l.capacity}, l.algorithm) +
    (l.algorithm === "leaky_bucket" ? ", evenly" : "") +
    (l.start && l.start !== "0s" && l.start !== "first_call" ? ", from " + l.start : l.start === "first_call" ? ", from the first call" : "") + (l.block ? `, then ${span(length(l.block) * 1000)} blocked` : "");
}

export const kinds = {token_bucket: "token bucket", fixed_window: "fixed window", interval: "interval", leaky_bucket: "leaky bucket", sliding_window: "sliding window", concurrency: "concurrency: held at a time"};
export const stores = {memory: "memory of this process", file: "file", postgres: "PostgreSQL", redis: "Redis", rediss: "Redis", "redis+cluster": "Redis Cluster", yugabyte: "YugabyteDB", cockroach: "CockroachDB"};
