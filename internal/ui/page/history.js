// What happened to a key: changes that the audit has, their ends, refusals, and how a change
// is undone.
import {html, useState} from "./preact.js";
import {call, limitPath} from "./api.js";
import {limitOf, may, shared} from "./state.js";
import {at, now, numbers, some} from "./words.js";
import {held, nameOf, numbersOf, parse, sameNumbers, standing, temporary} from "./why.js";

const whole = (set) => ({...set, rate: set.rate === undefined ? undefined : Number(set.rate), burst: set.burst === undefined ? undefined : Number(set.burst)});
const until = (set) => (set.until ? " until " + at(Date.parse(set.until)) : "");

// wordsOf returns what an entry of the audit did, in the words of the page.
export function wordsOf(e) {
  const def = limitOf(e.limit), {set, replaced} = parse(e.what), o = whole(set), undid = /^Undo\b/.test(e.note ?? "");
  const blocked = o.plan && def?.plans?.[o.plan]?.mode === "blocked", own = !o.plan && def && numbers(numbersOf(def, o), def.algorithm);
  const lower = def && nameOf(def, {...o, until: "x"}) === "the cut";
  switch (e.action) {
    case "override":
      if (blocked) return `Blocked in ${e.limit}${until(o)}`;
      if (o.plan) return `Gave plan ${o.plan} in ${e.limit}${until(o)}`;
      return `${lower ? "Lowered" : "Raised"} in ${e.limit} to ${own ?? e.what}${until(o)}`;
    case "end-override": {
      const what = /^block\b/.test(e.what ?? "") || blocked ? "the block" : o.plan ? "plan " + o.plan : o.until ? lower ? "the cut" : "the raise" : "its own numbers";
      return (undid ? `Undid ${what} in ${e.limit}` : `Ended ${what} in ${e.limit}`) + (replaced ? "" : "");
    }
    case "refund": return `Gave ${e.what ?? "tokens"} back in ${e.limit}`;
    case "reset": return held(def) ? `Ended all holds in ${e.limit}` : `Filled the bucket in ${e.limit}`;
    case "define": return `Changed ${e.limit}`;
    case "drop": return `Dropped ${e.limit}`;
  }
  return `${e.action} in ${e.limit}`;
}

const note = (e) => (e.role && e.role !== e.who ? `${e.who} (${e.role})` : e.who) + (e.note ? `: “${e.note}”` : "");

// eventsOf returns the timeline of a key.
export function eventsOf({limits, changes, of, start, done, news}) {
  const events = [];
  for (const x of limits) {
    const last = x.refusals?.last ?? [];
    if (last.length === 0) continue;
    const n = last.reduce((sum, r) => sum + 1 + r.more, 0), why = last[0].shadow ? " (in shadow: it passed)" : last[0].source === "fallback-closed" ? " (the store was away)" : "";
    events.push({id: "refused-" + x.limit, limit: x.limit, at: last[0].at_us / 1000, text: html`<span class="refused">Refused</span> in ${x.limit}, ${n === 1 ? "a call" : some(n, "call") + " since " + at(Math.floor(last.at(-1).at_us / 1e6) * 1000)}${why}`,
      below: `last ${at(Math.floor(last[0].at_us / 1e6) * 1000)}, cost ${last[0].cost}; by ${x.refusals.process}`});
  }
  const ended = new Set(); // limits and kinds of which a newer entry is known
  for (const e of changes) {
    const {set} = parse(e.what), kind = set.until ? "temporary" : "standing", slot = e.limit + "\0" + kind, time = Date.parse(e.at), x = limits.find((l) => l.limit === e.limit), def = limitOf(e.limit);
    if (e.action === "override" && set.until && Date.parse(set.until) <= now() && !ended.has(slot)) {
      events.push({id: e.id + "-end", limit: e.limit, at: Date.parse(set.until), text: `${def?.plans?.[set.plan]?.mode === "blocked" ? "Block" : set.plan ? "Plan " + set.plan : "Raise"} in ${e.limit} ended by itself`, below: x && def && nextOf(x, def)});
    }
    const undone = (e.action === "override" || e.action === "end-override") && ended.has(slot);
    if (e.action === "override" || e.action === "end-override") ended.add(slot);
    const can = x && def && may("support") && !undone && undoOf(e, x, def, changes);
    events.push({id: e.id, limit: e.limit, at: time, text: wordsOf(e), below: note(e) + (e.action === "refund" || e.action === "reset" ? "; no undo" : ""), isNew: news && e === changes[0] && e.id !== news.before,
      struck: e.action === "override" && changes.some((f) => f.action === "end-override" && /^Undo\b/.test(f.note ?? "") && f.limit === e.limit && f.id > e.id && sameNumbers(parse(f.what).set, whole(set))),
      undo: can && html`<${Undo} of=${of} e=${e} can=${can} start=${start} done=${done}/>`});
  }
  return events.sort((a, b) => b.at - a.at);
}

const nextOf = (x, def) => (x.override ? nameOf(def, x.override) : "the base") + " decides now";

// undoOf returns how an entry is undone, or nothing if it cannot be, or is in force no more.
function undoOf(e, x, def, changes) {
  const {set, replaced} = parse(e.what), kind = set.until ? "temporary" : "standing", present = kind === "temporary" ? temporary(x) : standing(x);
  if (e.action === "override" && present && sameNumbers(set, present)) {
    const again = replaced && !replaced.block && Object.keys(replaced).length > 0 && (!replaced.until || Date.parse(replaced.until) > now()) ? replaced : null;
    return {kind, put: again && bodyOf(again, e.limit, changes), ask: kind === "standing" && now() - Date.parse(e.at) > 36e5};
  }
  if (e.action === "end-override" && !present && Object.keys(set).length > 0 && (!set.until || Date.parse(set.until) > now())) return {kind, put: bodyOf(set, e.limit, changes)};
  return undefined;
}

// bodyOf is the call that sets an override of the audit once more, with the note it had.
function bodyOf(set, limit, changes) {
  const o = whole(set), old = changes.find((e) => e.action === "override" && e.limit === limit && sameNumbers(parse(e.what).set, o));
  return Object.fromEntries(Object.entries({...o, note: old?.note ?? "Undo"}).filter(([, v]) => v !== undefined));
}

function Undo({of, e, can, start, done}) {
  const [wrong, say] = useState(""), [busy, set] = useState(false);
  const undo = async () => {
    if (can.ask) {
      start("end", e.limit, can.kind);
      return;
    }
    set(true);
    const key = of === null ? {} : {key: of};
    try {
      if (can.put) await call("PUT", limitPath(e.limit, "/overrides"), {...key, ...can.put});
      else await call("DELETE", limitPath(e.limit, "/overrides?" + new URLSearchParams({...key, kind: can.kind, note: "Undo: " + wordsOf(e)})));
      await done("Undone: " + wordsOf(e));
    } catch (err) {
      say(err.message);
    }
    set(false);
  };
  return html`<span><button class="link" disabled=${busy} onClick=${undo} aria-label=${"Undo: " + wordsOf(e)}>Undo</button>${wrong && html`<small class="fault" role="alert">${wrong}</small>`}</span>`;
}

export {note, shared};
