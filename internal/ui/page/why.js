// Why a limit is as it is for a key: one sentence, by the definition that decides the next
// call. Nothing here asks the service, and nothing computes what the store decides.
import {at, count, length, past, per, some, span, unlimited} from "./words.js";

// b marks what is bold in a sentence; see Rich in parts.js.
export const b = (text) => "\u0001" + text + "\u0001";
export const plain = (text) => text.replaceAll("\u0001", "");

export const windows = ["fixed_window", "interval", "sliding_window"];
export const held = (def) => def?.algorithm === "concurrency";

export const unit = (def) => (held(def) ? "holds" : "tokens");

// numbersOf returns the numbers of an override or a plan of a limit, over those below it.
export function numbersOf(def, o, below = baseOf(def)) {
  if (o.plan) {
    const p = def.plans?.[o.plan] ?? {}, rate = p.rate ?? def.rate;
    return {rate, per: p.per ?? def.per, burst: p.burst ?? (def.burst ?? rate), mode: p.mode};
  }
  const rate = o.rate ?? below.rate, ownBurst = o.burst ?? (o.rate !== undefined && below.burst === below.rate ? o.rate : below.burst);
  return {rate, per: o.per ?? below.per, burst: windows.includes(def.algorithm) && o.burst === undefined && o.rate !== undefined && below.burst <= below.rate ? rate : ownBurst};
}

export const baseOf = (def) => ({rate: def.rate, per: def.per, burst: def.capacity});

// temporary and standing return an override of a key of that kind.
export const temporary = (x) => (x.override?.until ? x.override : undefined);
export const standing = (x) => (x.override?.until ? x.override.under : x.override) ?? undefined;

// layersOf returns what can decide calls of a key, the one on top first: its overrides, the
// plan that callers name, and the base.
export function layersOf(x, def, changes = []) {
  const out = [], base = baseOf(def), add = (kind, what, n, o) => out.push({kind, what, numbers: n, override: o, change: o && changeOf(o, changes)});
  const low = standing(x), top = temporary(x);
  const lowNumbers = low ? numbersOf(def, low, base) : base;
  if (top) add("until " + at(Date.parse(top.until)), nameOf(def, top), top.kind === "automatic" ? {mode: "blocked"} : numbersOf(def, top, lowNumbers), top);
  if (low) add("standing", nameOf(def, low), lowNumbers, low);
  if (!x.override && x.row?.plan) add("as callers name it", "plan " + x.row.plan, numbersOf(def, x.row, base));
  add("base", "the base", base);
  return out;
}

export function nameOf(def, o) {
  if (o.kind === "automatic") return "its own block";
  if (o.plan) return "plan " + o.plan;
  return o.until ? (more(def, o) ? "the raise" : "the cut") : "numbers of its own";
}

// more reports whether an override of numbers gives more than the base.
function more(def, o) {
  const n = numbersOf(def, o);
  return held(def) ? n.burst >= def.capacity : n.rate / length(n.per || "1s") >= def.rate / length(def.per || "1s");
}

// changeOf is the entry of the audit that set an override.
const changeOf = (o, changes) => changes.find((e) => e.action === "override" && e.limit === o.limit && sameNumbers(parse(e.what).set, o));

export function sameNumbers(p, o) {
  const until = (t) => (t ? Date.parse(t) : 0);
  return (p.plan ?? "") === (o.plan ?? "") && Number(p.rate ?? 0) === (o.rate ?? 0) && (p.per ?? "") === (o.per ?? "") && String(p.burst ?? "") === String(o.burst ?? "") && until(p.until) === until(o.until);
}

// parse reads "rate 50 per 1m until …, in place of plan pro, over plan free" of the audit.
export function parse(what = "") {
  const one = (text) => {
    const out = {};
    for (const [, name, value] of text.matchAll(/\b(plan|rate|per|burst|until|start) (.+?)(?= (?:plan|rate|per|burst|until|start) |$)/g)) out[name] = value;
    return out;
  };
  const [, set = "", replaced, over] = /^(.*?)(?:, in place of (.*?))?(?:, over (.*))?$/.exec(what) ?? [];
  return {set: one(set), replaced: replaced === undefined ? undefined : one(replaced), over: over === undefined ? undefined : one(over)};
}

const by = (e) => (e ? ` by ${e.who}` + (e.note ? `: “${e.note}”` : "") : "");

// because is who set an override, and why: by the audit, or only the note.
const because = (o, changes) => by(changeOf(o, changes)) || (o.note ? `: “${o.note}”` : "");

// stateOf returns {kind, badge, text, free, of}: the verdict on a limit of a key and its
// sentence. x is what GET /v1/keys has of it, with when it was asked in ms as x.now; changes
// are the entries of the audit, the newest first.
export function stateOf(x, def, changes = []) {
  const s = {free: x.row?.remaining ?? x.remaining, of: x.row?.capacity ?? x.capacity};
  const [top, ...below] = layersOf(x, def, changes);
  const say = (kind, text) => ({...s, kind, badge: badges[kind], text});
  if (x.source?.startsWith("fallback")) return say("away", "Not decided: the store is away. " + without[def.on_store_error ?? "closed"]);
  if (x.mode === "blocked") return say("blocked", blocked(x, def, top, below[0], changes));
  if (x.mode === "unlimited") return say("passes", `Every call passes: ${top.what} has no limit.`);
  if (def.mode === "shadow") {
    return say("shadow", x.shadow ? `In shadow: a call of ${count(x.cost)} would be refused now, and passes.` : `In shadow: it refuses nobody; ${count(s.free)} of ${count(s.of)} are free.`);
  }
  const parent = x.limits?.slice(1).find((l) => !l.allowed);
  if (x.allowed && parent) {
    return say("refuses", `Refused by its parent ${b(parent.limit)}${parent.key ? " of " + parent.key : ""}. ${count(s.free)} of its own ${count(s.of)} are free.`);
  }
  if (x.row && s.free >= x.cost) return say("passes", `By ${top.what}, as callers name it; calls without it are under the base, ${count(x.remaining)} of ${count(x.capacity)} free.`);
  if (x.allowed) return say("passes", passes(x, def, s, top));
  return say("refuses", refuses(x, def, s, top, below[0]));
}

const badges = {refuses: "Refuses", blocked: "Blocked", passes: "Passes", shadow: "Shadow", away: "Not decided"};
export const without = {closed: "This limit refuses every call (503).", open: "This limit lets every call pass.", local: "This limit counts in each service alone."};

function blocked(x, def, top, next, changes) {
  const then = next && next.override !== undefined ? next.what : "the base", used = x.capacity - x.remaining, n = next?.numbers; // used tokens stay used
  const free = x.remaining > 0 && n?.burst && !n.mode && (def.on_change ?? "keep") === "keep" ? `, ${count(Math.max(0, n.burst - used))} of ${count(n.burst)} free` : "";
  if (top.override?.kind === "automatic") {
    return `Blocked until ${b(at(Date.parse(top.override.until)))} by the limit itself${def.block ? `, for ${span(length(def.block) * 1000)} after a refusal` : ""}.`;
  }
  const until = x.blocked_until_us ?? (top.override?.until && Date.parse(top.override.until) * 1000);
  if (until) return `Blocked until ${b(at(until / 1000))}${because(top.override, changes)}. Then ${then} again${free}.`;
  const e = top.override && changeOf(top.override, changes);
  return `Blocked by ${top.what}${e ? " since " + past(Date.parse(e.at)) : ""}${top.override ? because(top.override, changes) : ""}; no end.`;
}

function passes(x, def, s, top) {
  const named = top.what[0].toUpperCase() + top.what.slice(1);
  if (held(def)) {
    const taken = s.of - s.free, next = x.holds?.[0];
    return taken === 0 ? `By ${top.what}; none is held.` : `${count(taken)} of the ${count(s.of)} of ${top.what} are held` + (next ? `; the next hold ends by ${b(at(next.expires_us / 1000))}.` : ".");
  }
  const until = top.override?.until ? ` until ${at(Date.parse(top.override.until))}` : "";
  const by = top.what === "the base" || top.what.startsWith("plan") ? "By " + top.what : named + " decides";
  if (s.of >= unlimited) return by + until + "; no limit.";
  if (x.delay_us > 0) return `${by}${until}; a call waits until ${b(at(x.now + x.delay_us / 1000))}, behind those before it.`;
  return `${by}${until}; ${x.reset_after_us > 0 ? "full again at " + at(x.now + (x.row?.reset_after_us ?? x.reset_after_us) / 1000) : "full"}.`;
}

function refuses(x, def, s, top) {
  const t = x.retry_after_us === null ? undefined : at(x.now + x.retry_after_us / 1000), last = x.refusals?.last?.length ? ", as refused last," : "";
  const ofPlan = `of ${top.what}`;
  if (x.never) return `Refuses a call of ${count(x.cost)} for ever: ${top.what} never has more than ${count(s.of)}.`;
  if (held(def)) {
    const next = x.holds?.[0];
    return (s.free <= 0 ? `All ${count(s.of)} ${ofPlan} are held` : `${count(s.of - s.free)} of the ${count(s.of)} ${ofPlan} are held, a call takes ${count(x.cost)}`) + (next ? `; the next hold ends by ${b(at(next.expires_us / 1000))}, sooner if settled.` : ".");
  }
  const bound = x.retry_is_bound ? " at the latest" : "";
  if (s.free > 0) {
    return `Refuses calls above ${some(s.free, "token")}: ${count(s.of - s.free)} of the ${count(s.of)} ${ofPlan} are used. A call of ${count(x.cost)}${last} passes at ${b(t)}${bound}.`;
  }
  const over = debt(x, def, s, top);
  if (over > 0) return `Refuses every call until ${b(t)}${bound}: ${count(over)} more than the burst of ${count(s.of)} are used.`;
  const rest = x.cost > 1 ? ` A call of ${count(x.cost)}${last} passes then.` : "";
  return `Refuses until ${b(t)}${bound}: all ${count(s.of)}${windows.includes(def.algorithm) ? " " + per(top.numbers.per ?? def.per) : ""} ${ofPlan} are used.${rest}`;
}

// debt is how much more than the burst is used: the time until it is full says that of a bucket.
export function debt(x, def, s, top) {
  if (windows.includes(def.algorithm) || held(def) || s.free > 0 || top.override?.until) return 0;
  const n = top.numbers, used = Math.ceil((x.reset_after_us - 1) * n.rate / (length(n.per) * 1000)); // a part of a token is not free
  return Number.isFinite(used) ? Math.max(0, used - s.of) : 0;
}

// summary is the sentence about all limits of a key.
export function summary(key, states) {
  const bad = states.filter(({s}) => s.kind === "refuses" || s.kind === "blocked" || s.kind === "away"), n = states.length;
  if (n === 0) return `No limit knows ${key} yet: every limit is full for it.`;
  if (bad.length === 0) return n === 1 ? `${key} passes in its only limit, ${b(states[0].x.limit)}.` : `All ${n} limits let ${key} pass now.`;
  const part = ({x, s}) => `${b(x.limit)} ${brief(x, s)}`;
  const shown = bad.slice(0, 3).map(part), rest = bad.length > 3 ? ` and ${some(bad.length - 3, "more", "more")}` : "";
  return `${bad.length} of ${some(n, "limit")} ${bad.length === 1 ? "refuses" : "refuse"} ${key} now: ${shown.join(", ")}${rest}.`;
}

function brief(x, s) {
  const t = x.retry_after_us === null || x.retry_after_us === undefined ? undefined : at(x.now + x.retry_after_us / 1000);
  if (s.kind === "away") return "is not decided";
  if (s.kind === "blocked") return x.blocked_until_us ? `is blocked until ${at(x.blocked_until_us / 1000)}` : "is blocked, with no end";
  if (x.never) return `never has ${count(x.cost)}`;
  if (x.allowed) return "is refused by its parent";
  if (s.free > 0) return `is nearly used up (a call of ${count(x.cost)} passes at ${t})`;
  return t ? `is used up until ${t}` : "is used up";
}

// outlook says what a change of numbers does: {free, used, worst}. Used tokens carry over.
export function outlook(x, def, to, then) {
  if (def.on_change && def.on_change !== "keep") return {};
  const used = (x.row?.capacity ?? x.capacity) - (x.row?.remaining ?? x.remaining) + debt(x, def, {free: x.remaining, of: x.capacity}, layersOf(x, def)[0]);
  const free = Math.max(0, to.burst - used), over = to.burst - then.burst;
  const wait = !windows.includes(def.algorithm) && !held(def) && over > 0 ? (over + 1) * length(then.per) / then.rate : 0; // ms
  return {free, used, over: Math.max(0, over), wait: Number.isFinite(wait) ? wait : 0};
}
