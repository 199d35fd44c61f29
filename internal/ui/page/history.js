// What happened to a key: changes, their ends and refusals; and how a change is undone.
import {html, useState} from "./preact.js";
import {call, limitPath} from "./api.js";
import {limitOf, lookAt, may} from "./state.js";
import {at, minute, now, numbers, past, some} from "./words.js";
import {held, nameOf, numbersOf, parse, sameNumbers, standing, temporary} from "./why.js";

const whole = (set) => ({...set, rate: set.rate === undefined ? undefined : Number(set.rate), burst: set.burst === undefined ? undefined : Number(set.burst)});
const until = (set) => (set.until ? " until " + at(Date.parse(set.until)) : "");

// wordsOf returns what an entry of the audit did, in the words of the page.
export function wordsOf(e) {
  const def = limitOf(e.limit), {set} = parse(e.what), o = whole(set), undid = /^Undo\b/.test(e.note ?? "");
  const blocked = o.plan && def?.plans?.[o.plan]?.mode === "blocked", own = !o.plan && def && numbers(numbersOf(def, o), def.algorithm);
  const lower = def && nameOf(def, {...o, until: "x"}) === "the cut";
  switch (e.action) {
    case "override":
      if (blocked) return `Blocked in ${e.limit}${until(o)}`;
      if (o.plan) return `Gave plan ${o.plan} in ${e.limit}${until(o)}`;
      return `${lower ? "Lowered" : "Raised"} in ${e.limit} to ${own ?? e.what}${until(o)}`;
    case "end-override": {
      const what = /^block\b/.test(e.what ?? "") || blocked ? "the block" : o.plan ? "plan " + o.plan : o.until ? lower ? "the cut" : "the raise" : "its own numbers";
      return `${undid ? "Undid" : "Ended"} ${what} in ${e.limit}`;
    }
    case "refund": return `Gave ${e.what ?? "tokens"} back in ${e.limit}`;
    case "reset": return held(def) ? `Ended all holds in ${e.limit}` : `Filled the bucket in ${e.limit}`;
    case "settle": return `Ended ${/^hold [^,]*/.exec(e.what)?.[0] ?? "a hold"} in ${e.limit}`;
    case "define": return `${e.what?.includes("; was ") ? "Changed" : "Defined"} ${e.limit}`;
    case "drop": return `Dropped ${e.limit}`;
  }
  return `${e.action} in ${e.limit}`;
}

export const note = (e) => (e.role && e.role !== e.who ? `${e.who} (${e.role})` : e.who) + (e.note ? `: “${e.note}”` : "");

export function eventsOf({limits, changes, of, start, done, news, hour}) {
  const events = [], all = (hour?.shared ? hour.refused.keys : []).filter((k) => (k.key ?? null) === of), several = (k) => (k ? `; ${some(k.count, "call")} in the hour until ${minute(hour.times.at(-1) + 60000)}, of all services` : "");
  for (const k of all.filter((k) => !limits.some((x) => x.limit === k.limit && x.refusals?.last?.length))) {
    events.push({id: "refused-" + k.limit, limit: k.limit, at: hour.times.at(-1), text: html`<span class="refused">Refused</span> in ${k.limit}, by another service`, below: several(k).slice(2)});
  }
  for (const [x, away] of limits.flatMap((x) => [[x, false], [x, true]])) {
    const last = (x.refusals?.last ?? []).filter((r) => (r.source === "fallback-closed") === away);
    if (last.length === 0) continue;
    const n = last.reduce((sum, r) => sum + 1 + r.more, 0), why = away ? " (the store was away)" : last[0].shadow ? " (in shadow: it passed)" : "";
    events.push({id: (away ? "away-" : "refused-") + x.limit, limit: x.limit, at: last[0].at_us / 1000, text: html`${away ? "Not decided" : html`<span class="refused">Refused</span>`} in ${x.limit}, ${n === 1 ? "a call" : some(n, "call") + " since " + past(last.at(-1).at_us / 1000)}${why}`,
      below: `last ${past(last[0].at_us / 1000)}, cost ${last[0].cost}; by ${x.refusals.process}` + several(!away && all.find((k) => k.limit === x.limit))});
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
    events.push({id: e.id, limit: e.limit, at: time, text: wordsOf(e), below: note(e) + (["refund", "reset", "settle"].includes(e.action) ? "; no undo" : ""), same: note(e) + wordsOf(e).replace(` in ${e.limit}`, ""), isNew: news && e === changes[0] && e.id !== news.before,
      struck: e.action === "override" && changes.some((f) => f.action === "end-override" && /^Undo\b/.test(f.note ?? "") && f.limit === e.limit && f.id > e.id && sameNumbers(parse(f.what).set, whole(set))),
      undo: can && html`<${Undo} of=${of} text=${wordsOf(e)} all=${[{e, can, x}]} start=${start} done=${done}/>`, can: can && {e, can, x}});
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

// together joins the same change of several limits. Those of one limit are undone one by one.
export function together(events, more) {
  const out = [];
  for (const v of events) {
    const first = v.same && out.find((g) => g.same === v.same && g.at - v.at < 60000 && g.all.every((w) => w.limit !== v.limit));
    if (first) first.all.push(v);
    else out.push({...v, all: [v]});
  }
  return out.map((g) => (g.all.length === 1 ? g : {...g, text: manyOf(g), below: html`${g.below}<br/>${g.all.map((v) => v.limit).join(", ")}`,
    undo: g.all.every((v) => v.can && !v.can.can.ask) && html`<${Undo} ...${more} text=${manyOf(g)} all=${g.all.map((v) => v.can)}/>`}));
}

const manyOf = (g) => g.text.replace(` in ${g.limit}`, ` in ${g.all.length} limits`);

function Undo({of, text, all, start, done}) {
  const [wrong, say] = useState(""), [busy, set] = useState(false), [{e, can}] = all;
  const undo = async () => {
    if (can.ask) return start("end", e.limit, can.kind);
    set(true);
    const key = of === null ? {} : {key: of};
    try {
      const present = await Promise.all(all.map((one) => lookAt(one.e.limit, of, 1)));
      if (present.some((y, i) => JSON.stringify(y.override) !== JSON.stringify(all[i].x.override))) throw new Error("Somebody was faster: nothing was undone.");
      for (const one of all) {
        if (one.can.put) await call("PUT", limitPath(one.e.limit, "/overrides"), {...key, ...one.can.put});
        else await call("DELETE", limitPath(one.e.limit, "/overrides?" + new URLSearchParams({...key, kind: one.can.kind, note: "Undo: " + text})));
      }
      await done("Undone: " + text);
    } catch (err) {
      say(err.message);
    }
    return set(false);
  };
  return html`<span><button class="link" disabled=${busy} onClick=${undo} aria-label=${"Undo: " + text}>Undo</button>${wrong && html`<small class="fault" role="alert">${wrong}</small>`}</span>`;
}
