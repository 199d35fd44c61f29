// The view Overview: is it healthy? One sentence, the last hour by the minute, the limits
// with calls, who was refused most, and what ends or was changed.
import {html, useState} from "./preact.js";
import {call} from "./api.js";
import {Spark} from "./charts.js";
import {Calls} from "./limit.js";
import {note, wordsOf} from "./history.js";
import {Badge, Empty, Head, Icon, KeyLink, LimitLink, Loaded, Table, Timeline} from "./parts.js";
import {limitOf, useAnswer, useShared} from "./state.js";
import {at, count, day, minute, numbers, now, rule, share, some, span} from "./words.js";
import {nameOf, numbersOf} from "./why.js";

const kept = 60; // minutes

// hourOf asks what was decided in each minute of the last hour.
export async function hourOf(signal, limit) {
  const h = await call("GET", "/v1/top?" + new URLSearchParams({minutes: kept, ...(limit && {limit})}), undefined, signal), from = Date.parse(h.from);
  const first = Math.min(...h.processes.map((p) => Date.parse(p.first))), n = h.processes.length;
  return {...h, times: Array.from({length: h.minutes}, (_, i) => from + i * 60000), first,
    about: `last hour, ${h.shared ? (n === 1 ? "one service" : n === 2 ? "both services" : some(n, "service")) : "this service alone"}, by the minute`,
    empty: "Nothing is known yet: a minute is here once it has ended."};
}

// series are the counts of one limit or all by the minute; null before the first known one.
export function series(h, name) {
  const out = {known: Number.isFinite(h.first)}, list = name === undefined ? h.limits : h.limits.filter((l) => l.limit === name);
  for (const kind of ["allowed", "refused", "shadow", "fallback"]) out[kind] = h.times.map((t, i) => (t < h.first ? null : list.reduce((sum, l) => sum + (l[kind]?.[i] ?? 0), 0)));
  out.allowed = out.allowed.map((n, i) => (n === null ? null : n + out.shadow[i])); // shadow lets calls pass
  return out;
}

const total = (list) => (list ?? []).reduce((a, n) => a + n, 0);

// sums are the counts of each limit in the hour, by its name, and in how many minutes.
export function sums(h) {
  const minutes = Math.max(1, h.times.filter((t) => t >= h.first).length);
  return Object.fromEntries(h.limits.map((l) => {
    const one = {allowed: total(l.allowed), refused: total(l.refused), shadow: total(l.shadow), closed: total(l.closed), fallback: total(l.fallback), customers: l.customers, minutes};
    return [l.limit, {...one, calls: one.allowed + one.refused + one.shadow + one.closed}];
  }));
}

// useUsual returns the text of which share of the calls of a limit, or of all under "", was
// refused at this hour of the last days. Each hour is asked for alone, and rarely, and for all
// limits, because the service reads a day's reports for it and keeps the answer for all viewers.
// Who may ask about a limit alone gets that.
export function useUsual(limit) {
  const ask = (d, signal, of) => call("GET", "/v1/top?" + new URLSearchParams({n: 1, hour: new Date(now() - d * 864e5).toISOString(), ...of}), undefined, signal);
  const [days] = useAnswer((signal) => Promise.all([1, 2, 3, 4, 5, 6, 7].map((d) => ask(d, signal).catch((err) => {
    if (err.status !== 403 || !limit) throw err;
    return ask(d, signal, {limit});
  }).then((h) => h.counts))), [limit], 6e5);
  return (name, least = 0) => {
    const sums = (days ?? []).map((d) => Object.entries(d).filter(([l]) => name === "" || l === name).reduce((sum, [, n]) => [sum[0] + n[0], sum[1] + n[1]], [0, 0]));
    const shares = sums.filter(([calls]) => calls > 0).map(([calls, refused]) => 100 * refused / calls), [low, high] = [Math.min(...shares), Math.max(...shares)].map((n) => n.toFixed(1));
    return shares.length === 0 || high < least ? "" : `; at this hour ${shares.length === 7 ? "of" : `on ${shares.length} of`} the last 7 days it was ${low === high ? "" : low + " to "}${high} %`;
  };
}

export const perMinute = (d) => count(Math.max(1, Math.round(d.calls / d.minutes)));

export function Overview() {
  const {limits, store, me} = useShared();
  const answer = useAnswer((signal) => hourOf(signal), [], 20000);
  if (!me) return "";
  return html`<${Loaded} answer=${answer}>${(hour) => {
    const did = sums(hour);
    return html`<div class=${answer[1] ? "stale" : ""}><${Sentence} hour=${hour} did=${did} limits=${limits} store=${store} me=${me}/>
      <div class="columns"><div class="stack">${!store.ok && html`<${Without} limits=${limits} did=${did}/>`}
        <section><${Head} title="Calls">${hour.about}<//>${hour.processes.length > 0 && html`<${Facts} hour=${hour}/>`}<${Calls} hour=${hour}/></section>
        <${WithCalls} hour=${hour} did=${did} limits=${limits}/></div>
      <aside class="stack"><${Most} refused=${hour.refused}/>
        <${Ends}/><${Changed}/></aside></div></div>`;
  }}<//>`;
}

function Sentence({hour, did, limits, store, me}) {
  const usually = useUsual(), all = Object.values(did), calls = total(all.map((d) => d.calls)), refused = total(all.map((d) => d.refused)), fallback = total(hour.limits.map((l) => total((l.fallback ?? []).slice(-2))));
  const drift = hour.gauges.dipwell_config_drift ?? 0, silent = hour.processes.filter((p) => Date.parse(p.last) < hour.times.at(-2));
  const closed = limits.filter((l) => (l.on_store_error ?? "closed") === "closed").length, open = limits.filter((l) => l.on_store_error === "open").length;
  let bad, why;
  if (!store.ok) {
    bad = closed > 0 ? `${some(closed, "limit refuses", "limits refuse")} every call${open > 0 ? `, ${open} let every call pass` : ""}` : open > 0 ? `${some(open, "limit lets", "limits let")} every call pass` : "Each service counts alone";
    why = "As their limits say for a store that is away. None of this counts as refused by a limit.";
  } else if (fallback > 0) {
    bad = `${some(fallback, "call was", "calls were")} decided without the store`;
    why = "In the last two minutes. The store answers now.";
  } else if (silent.length > 0 && hour.processes.length > silent.length) {
    bad = `${silent.length} of ${some(hour.processes.length, "service")} ${silent.length === 1 ? "is" : "are"} silent since ${at(Date.parse(silent[0].last) + 60000)}`;
    why = `The limits hold, as the store counts. Calls since then are those of ${hour.processes.filter((p) => !silent.includes(p)).map((p) => p.process).join(", ")}.`;
  } else if (drift > 0) {
    bad = `${some(drift, "limit differs", "limits differ")} from the configuration file`;
    why = "Another service or program has changed them: dipwell doctor says which.";
  }
  const spike = worst(hour, did), during = hour.first > hour.times[0] && Number.isFinite(hour.first) ? `the time since ${minute(hour.first)}` : `the hour until ${minute(hour.times.at(-1) + 60000)}`; // the present minute has not ended
  return html`<div class="sentence"><span class=${bad ? "fault" : "good"}><${Icon} name=${bad ? "fault" : "good"}/></span><div><h1 id="sentence">${bad ?? (limits.length === 0 ? "No limit is defined" : limits.length === 1 ? "The only limit is healthy" : `All ${limits.length} limits are healthy`)}</h1>
    <p>${why ?? html`The store answers${hour.shared && hour.processes.length > 1 ? ` and ${hour.processes.length === 2 ? "both services" : "all services"} report` : ""}. ${calls === 0 ? `No call in ${during}.` : refused === 0 ? html`None of the ${some(calls, "call")} in ${during} was refused${usually("", 0.1)}.` : html`<b>${share(refused, calls)}</b> of the calls in ${during} were refused${usually("")}.`}`}</p>
    ${!bad && spike && html`<p><b>${spike.limit}</b> refuses ${spike.now}${spike.since ? ` since ${at(spike.since)}, before it ${spike.before || "nothing"}` : ""}${usually(spike.limit)}${spike.key !== undefined ? html`; mostly <${KeyLink} of=${spike.key} limit=${spike.limit}/>` : ""}.</p>`}
    ${hour.shed > 0 && html`<p>${some(hour.shed, "call")} got 503 since the start, because too many were under way.</p>`}
    ${!hour.shared && html`<p>${me.store === "memory" ? `The store is the memory of this process: what you see is its own hour${Number.isFinite(hour.first) ? ", since " + at(hour.first) : ""}. Other processes count apart.` : "These are the calls of this service alone: the store keeps no minutes."}</p>`}</div></div>`;
}

// worst finds the limit whose share refused has risen the most in the hour, and since when.
function worst(hour, did) {
  let found;
  for (const l of hour.limits) {
    const d = did[l.limit];
    if (!l.refused || d.refused < 5 || d.refused * 50 < d.calls) continue; // at least 2 %
    const s = series(hour, l.limit), known = s.allowed.map((n, i) => i).filter((i) => s.allowed[i] !== null);
    let best;
    for (const i of known.slice(5, -2)) { // the minute that parts the hour best
      const side = (list) => list.reduce((o, j) => ({r: o.r + s.refused[j], n: o.n + s.refused[j] + s.allowed[j]}), {r: 0, n: 0}), a = side(known.filter((j) => j < i)), b = side(known.filter((j) => j >= i));
      const rise = (b.r / Math.max(1, b.n)) - (a.r / Math.max(1, a.n));
      if (a.n > 0 && b.r > 2 * a.r * b.n / Math.max(1, a.n) && (!best || rise > best.rise)) best = {rise, since: hour.times[i], now: share(b.r, b.n), before: share(a.r, a.n)};
    }
    const key = hour.refused.keys.find((k) => k.limit === l.limit && k.count * 2 > d.refused), one = {limit: l.limit, share: d.refused / d.calls, now: share(d.refused, d.calls), ...best, key: key?.key};
    if (!found || one.share > found.share) found = one;
  }
  return found;
}

function Facts({hour}) {
  const s = series(hour), took = (part) => {
    const all = total(hour.took);
    let sum = 0;
    return all === 0 ? "" : span(Math.max(1, Math.round(0.256 * 2 ** hour.took.findIndex((n) => (sum += n) >= all * part))));
  };
  const facts = [["Allowed now", s.allowed.at(-1), "a minute"], s.refused.at(-1) > 0 && ["Refused now", s.refused.at(-1), "a minute", "refused"], total(hour.took) > 0 && ["Half of the decisions within", took(0.5)], total(hour.took) > 0 && ["99 % within", took(0.99)]];
  return html`<dl class="facts">${facts.filter(Boolean).map(([name, n, unit, kind]) => html`<div><dt>${name}</dt><dd class=${kind ?? ""}>${typeof n === "number" ? count(n) : n} ${unit && html`<small>${unit}</small>`}</dd></div>`)}</dl>`;
}

// customers is how many a limit has refused, or in shadow would have.
export const customers = (hour, d) => (d.customers ? count(d.customers) + (hour.more_customers ? "+" : "") : "");

// WithCalls are the limits that had calls, what is wrong first.
function WithCalls({hour, did, limits}) {
  const rows = limits.filter((l) => did[l.name]).map((l) => ({l, d: did[l.name]})).sort((a, b) => b.d.refused / b.d.calls - a.d.refused / a.d.calls || b.d.calls - a.d.calls), quiet = limits.length - rows.length;
  const of = (l) => { const s = series(hour, l.name); return s.refused.map((r, i) => (r ? r / Math.max(1, r + s.allowed[i]) : 0)); };
  const sparks = new Map(rows.filter(({d}) => d.refused > 0).map(({l}) => [l.name, of(l)])), most = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1].find((m) => [...sparks.values()].every((list) => Math.max(...list) <= m)) ?? 1;
  return html`<section id="with-calls"><${Head} title="Limits with calls">last hour, the most refused first<//>
    ${rows.length === 0 ? html`<${Empty} title=${limits.length === 0 ? "No limit is defined yet." : "No calls in the last hour."}>${limits.length === 0 ? html`Add one to the configuration file, or <a href="playground">try numbers in the Playground</a>.` : hour.empty}<//>`
    : html`<div class="scroll"><table><thead><tr><th scope="col">Limit</th><th class="wide" scope="col">Rule</th><th class="n" scope="col">Calls a minute</th><th class="n" scope="col">Refused</th><th class="n wide" scope="col">Calls refused</th><th class="wide" scope="col">Refused, 0 to ${most * 100} %</th><th class="n wide" scope="col">Customers</th></tr></thead><tbody>
      ${rows.slice(0, 30).map(({l, d}) => html`<tr key=${l.name}><td><${LimitLink} name=${l.name}/> ${l.mode === "shadow" && html`<${Badge} kind="shadow">Shadow<//>`}</td><td class="quiet wide">${rule(l)}${l.plans ? `; ${some(Object.keys(l.plans).length, "plan")}` : ""}</td><td class="n">${perMinute(d)}</td>
        <td class="n">${l.mode === "shadow" ? html`<span class="shadow">${share(d.shadow, d.calls)}</span>` : share(d.refused, d.calls)}</td><td class="n wide">${l.mode === "shadow" ? d.shadow > 0 && html`<span class="shadow">${count(d.shadow)} would be</span>` : d.refused > 0 && count(d.refused)}</td><td class="wide">${sparks.has(l.name) && html`<${Spark} values=${sparks.get(l.name)} most=${most}/>`}</td><td class=${"n wide" + (l.mode === "shadow" ? " shadow" : "")}>${customers(hour, d)}</td></tr>`)}</tbody></table></div>`}
    ${quiet > 0 && rows.length > 0 && html`<p class="quiet"><a href="#/limits">${some(quiet, "limit")} without calls in the last hour</a></p>`}</section>`;
}

export const hourMS = 36e5;
export const week = 168; // hours

// Most are the customers that were refused most, or called most, in an hour.
function Most({refused}) {
  const [chosen, choose] = useState(""), start = Math.floor(now() / hourMS);
  const [of, error] = useAnswer((signal) => (chosen === "" ? null : call("GET", "/v1/top?" + new URLSearchParams({hour: chosen}), undefined, signal)), [chosen]);
  const list = (l, counted, none) => html`<${Table} columns=${[["Customer", ""], ["Limit", ""], [counted, "n"]]} empty=${none} rows=${l.keys.slice(0, 8).map((k) => [html`<${KeyLink} of=${k.key} limit=${k.limit}/>`, html`<span class="cut">${k.limit}</span>`, count(k.count) + (k.error > 0 ? ` (−${count(k.error)})` : "")])}/>
    ${l.keys.some((k) => k.error > 0) && html`<p class="quiet">In parentheses: by how much a count may be too high.</p>`}`;
  return html`<section id="most"><div class="section-head"><h2>Refused most</h2><select id="hour" aria-label="In which hour" onChange=${(e) => choose(e.target.value)}><option value="" selected=${chosen === ""}>last hour</option>
      ${Array.from({length: week}, (_, i) => start - 1 - i).map((h) => html`<option value=${new Date(h * hourMS).toISOString()} selected=${chosen === new Date(h * hourMS).toISOString()}>${[day(h * hourMS), minute(h * hourMS)].filter(Boolean).join(" ")}</option>`)}</select></div>
    ${chosen === "" ? list(refused, "Calls refused", "Nobody was refused in the last hour.") : error ? html`<p class="empty">${error.message}</p>` : of && (of.processes.length === 0 ? html`<p class="empty">Nothing is kept of this hour. An hour is there once it has ended.</p>`
      : html`${list(of.refused, "Calls refused", "Nobody was refused in this hour.")}<h3>Called most</h3>${list(of.busiest, "Calls", "Nobody called.")}<p class="quiet">Counted by ${of.processes.join(", ")}.</p>`)}</section>`;
}

const states = {closed: ["Refuses all", "away"], open: ["Passes all", ""], local: ["Counts by itself", ""]};

// Without are the limits while the store is away, those that refuse first.
function Without({limits, did}) {
  const order = ["closed", "open", "local"];
  const rows = [...limits].sort((a, b) => order.indexOf(a.on_store_error ?? "closed") - order.indexOf(b.on_store_error ?? "closed") || (did[b.name]?.calls ?? 0) - (did[a.name]?.calls ?? 0));
  return html`<section><${Head} title="Limits without the store">those that refuse first<//><${Table} columns=${[["Limit", ""], ["Now", ""], ["By its setting", "quiet wide"], ["Decided without the store", "n"]]} rows=${rows.slice(0, 30).map((l) => {
    const how = l.on_store_error ?? "closed";
    return [html`<${LimitLink} name=${l.name}/>`, html`<${Badge} kind=${states[how][1]}>${states[how][0]}<//>`, "on_store_error: " + how + (how === "local" ? ", each service gives the full limit" : ""), did[l.name]?.fallback ? count(did[l.name].fallback) : ""];
  })}/></section>`;
}

// Ends are temporary overrides, the next to end first.
function Ends() {
  const [all] = useAnswer((signal) => call("GET", "/v1/overrides", undefined, signal).catch(() => null), [], 30000), list = (all?.ends ?? []).filter((o) => Date.parse(o.until) > now());
  if (list.length === 0) return "";
  return html`<section id="ends"><${Head} title="Ends by itself">the next first${all.next !== null && ", of the first 1,000 limits"}<//><ol class="timeline">${list.slice(0, 6).map((o) => {
    const def = limitOf(o.limit), blocked = def?.plans?.[o.plan]?.mode === "blocked", lower = def && nameOf(def, o) === "the cut";
    return html`<li><time>${day(Date.parse(o.until)).split(" ").slice(0, 2).join(" ") || minute(Date.parse(o.until))}</time><div><${KeyLink} of=${o.key} limit=${o.limit}/> ${blocked ? "blocked" : o.plan ? "plan " + o.plan : lower ? "lowered" : "raised"} in ${o.limit}<small>${day(Date.parse(o.until)) && `until ${minute(Date.parse(o.until))}, `}${def ? `${blocked ? "" : numbers(numbersOf(def, o, o.under && numbersOf(def, o.under)), def.algorithm) + "; "}then ${o.under ? nameOf(def, o.under) : "the base"}` : ""}${o.note ? `: “${o.note}”` : ""}</small></div></li>`;
  })}</ol></section>`;
}

function Changed() {
  const [list] = useAnswer((signal) => call("GET", "/v1/audit?n=30", undefined, signal).then((p) => p.entries, () => []), [], 30000);
  const today = (list ?? []).filter((e) => day(Date.parse(e.at)) === "");
  if (today.length === 0) return "";
  return html`<section><div class="section-head"><h2>Changed today</h2><a href="#/changes">All changes</a></div><${Timeline} flat events=${today.slice(0, 6).map((e) => ({id: e.id, at: Date.parse(e.at), text: e.key === undefined ? wordsOf(e) : html`<${KeyLink} of=${e.key} limit=${e.limit}/>: ${wordsOf(e)[0].toLowerCase() + wordsOf(e).slice(1)}`, below: note(e)}))}/></section>`;
}
