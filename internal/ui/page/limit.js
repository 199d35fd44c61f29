// The view of one limit: its rule, what it did, its overrides and its versions; and a draft
// of a limit.
import {html, useState} from "./preact.js";
import {call, limitPath} from "./api.js";
import {Panes, minutes} from "./charts.js";
import {customers, hourOf, series, sums, useUsual} from "./overview.js";
import {Empty, Field, Head, KeyLink, LimitLink, Loaded, Outcome, Table, Timeline} from "./parts.js";
import {customer, limitOf, limitPage, limits, may, shared, useAnswer, useShared} from "./state.js";
import {at, count, kinds, minute, numbers, past, per, rule, share, some, span} from "./words.js";
import {baseOf, held, nameOf, numbersOf, without} from "./why.js";
import {note} from "./history.js";
import {text} from "./actions.js";
import {owners} from "./limits.js";

export function Limit({query}) {
  useShared();
  const name = query.get("name"), l = limitOf(name);
  if (!shared.me) return "";
  if (!l) return html`<${Empty} title=${`There is no limit ${name}.`}>It was dropped, or another service defines it. <a href="#/limits">All limits</a><//>`;
  return html`<${Defined} key=${name} l=${l}/>`;
}

function Defined({l}) {
  const [hour] = useAnswer((signal) => hourOf(signal, l.name), [l.name], 20000), [top] = useAnswer((signal) => call("GET", "/v1/top?" + new URLSearchParams({limit: l.name}), undefined, signal), [l.name], 5000);
  const [audit] = useAnswer((signal) => call("GET", "/v1/audit?" + new URLSearchParams({limit: l.name, n: 200}), undefined, signal).catch(() => ({entries: []})), [l.name, l.version, l.mode], 0);
  const versions = (audit?.entries ?? []).filter((e) => e.action === "define" || e.action === "drop"), given = useOverrides(l), usually = useUsual(l.name), [doing, act] = useState(null), parents = [], d = hour && sums(hour)[l.name], children = shared.limits.filter((c) => c.parent === l.name), mine = l.owner === "api" && may("admin");
  for (let p = limitOf(l.parent); p && parents.length < 4; p = limitOf(p.parent)) parents.unshift(p);
  return html`<p class="breadcrumb"><a href="#/limits">Limits</a>${parents.map((p) => html` / <${LimitLink} name=${p.name}/>`)}</p>
    <div class="title"><h1 class="key">${l.name}</h1><span class=${"badge" + (l.mode === "shadow" ? " shadowed" : "")}>${l.mode === "shadow" ? "Shadow" : "Enforced"}, version ${l.version}</span><small>defined in ${owners[l.owner] ?? "the configuration " + l.owner}</small>
      ${mine && html`<span class="buttons"><button onClick=${() => act(l.mode === "shadow" ? "enforce" : "shadow")}>${l.mode === "shadow" ? "Enforce …" : "Put in shadow …"}</button><button onClick=${() => act("change")}>Change …</button><button onClick=${() => act("drop")}>Drop …</button></span>`}</div>
    <p class="lead">${sentence(l)}${d && d.refused > 0 ? ` ${share(d.refused, d.calls)} of the calls of the last hour were refused${usually(l.name)}.` : ""}</p>
    ${l.warning && html`<p class="fault">${l.warning}</p>`}
    ${!mine && may("admin") && html`<p class="quiet">${l.owner === "code" || l.owner === "sql" ? `The numbers of ${l.name} are in ${owners[l.owner]}, and are changed there.` : `The numbers of ${l.name} are in the configuration file (owner ${l.owner === "file" ? "main" : l.owner}), and are changed there.`} Overrides of customers can be set here.</p>`}
    ${doing && html`<${Change} key=${doing} l=${l} action=${doing} close=${() => act(null)} d=${d} top=${top}/>`}
    <div class="columns"><div class="stack">
      ${l.mode === "shadow" && html`<${Would} l=${l} hour=${hour} d=${d} top=${top} versions=${versions}/>`}
      <section><${Head} title="Calls">${hour ? hour.about : ""}<//>${hour ? html`<${Calls} hour=${hour} name=${l.name}/>` : ""}</section>
      <${Overrides} l=${l} answer=${given}/>${l.block && html`<${Automatic} l=${l}/>`}</div>
    <aside class="stack">${l.plans && html`<${Plans} l=${l} page=${given[0]}/>`}
      <${Rule} l=${l} children=${children}/>
      <section><${Head} title="Refused most">last hour<//><${Table} columns=${[["Customer", ""], ["Calls refused", "n"]]} empty="Nobody was refused in the last hour." rows=${(hour?.refused.keys ?? []).slice(0, 10).map((k) => [html`<${KeyLink} of=${k.key} limit=${l.name}/>`, count(k.count) + (k.error > 0 ? ` (−${count(k.error)})` : "")])}/></section>
      <${Keys} l=${l}/><section><h2>Versions</h2><${Timeline} none=${`Version ${l.version}. Changes by the page, the API and SQL are listed here.`} events=${versions.slice(0, 10).map((e) => ({id: e.id, at: Date.parse(e.at), text: e.action === "drop" ? "Dropped" : e.what ?? "Defined", below: note(e)}))}/></section></aside></div>`;
}

const callable = (p) => (p.callable === false ? "; by overrides alone" : p.callable === "children" ? "; for children" : "");

// Plans are those of a limit, with how many customers have an override that gives one.
function Plans({l, page}) {
  const has = (p) => page?.overrides.filter((o) => o.plan === p || o.under?.plan === p).length || 0;
  return html`<section id="plans"><h2>Plans</h2><${Table} columns=${[["Plan", ""], ["Rule", ""], ["Customers", "n"]]} rows=${[["base", rule(l), "all others"],
    ...Object.entries(l.plans).map(([p, plan]) => [p, numbers(numbersOf(l, {plan: p}), l.algorithm) + callable(plan), has(p) ? count(has(p)) + (page.next === null ? "" : "+") : callable(plan) || plan.mode === "blocked" ? "" : "as callers name it"])]}/></section>`;
}

// sentence says what each customer may do.
function sentence(l) {
  const whose = l.shared ? "All customers together" : "Each customer", n = baseOf(l);
  if (held(l)) return html`${whose} may hold <b>${count(l.capacity)} at a time</b>, each for at most ${l.ttl ?? "its time"}.`;
  return html`${whose} may use <b>${count(l.rate)} ${per(l.per)}${n.burst !== l.rate && l.algorithm !== "leaky_bucket" ? `, ${count(n.burst)} at once` : ""}</b>${l.parent ? html`, and what <${LimitLink} name=${l.parent}/> has left` : ""}.${l.mode === "shadow" ? " In shadow: it refuses nobody." : ""}`;
}

function Rule({l, children}) {
  const rows = [["Kind", kinds[l.algorithm ?? "token_bucket"]], l.start && ["Begins", l.start], l.parent && ["Parent", html`<${LimitLink} name=${l.parent}/>, asked in the same step`],
    children.length > 0 && ["Below it", html`${children.map((c, i) => html`${i > 0 && ", "}<${LimitLink} name=${c.name}/>`)}`], ["Without the store", without[l.on_store_error ?? "closed"].replace("This limit ", "").replace(/\.$/, "")],
    l.max_debt !== undefined && ["Debt", l.max_debt === 0 ? "none" : "at most " + (l.max_debt === "unlimited" ? l.max_debt : count(l.max_debt))], ["Usage", l.usage ? "by the hour, kept a month" : "not kept"], ["Keys", l.shared ? "none: one bucket for all" : l.keys === "list" ? "can be searched" : "cannot be searched in every store"],
    ...Object.entries(l).filter(([k]) => !known.has(k)).map(([k, v]) => [k, typeof v === "object" ? Object.entries(v).map(([a, c]) => `${a} ${c}`).join(", ") : k === "rate_changed_us" ? past(v / 1000) : String(v)])];
  return html`<section><h2>Rule</h2><dl class="settings">${rows.filter(Boolean).map(([k, v]) => html`<dt>${k}</dt><dd>${v}</dd>`)}</dl>${l.shared && html`<p><a href=${customer("", l.name)}>Its bucket</a></p>`}</section>`;
}

const known = new Set(["name", "algorithm", "rate", "per", "burst", "start", "parent", "on_store_error", "max_debt", "usage", "shared", "keys", "plans", "owner", "version", "capacity", "mode", "warning"]);

export function Calls({hour, name}) {
  const s = series(hour, name);
  if (!s.known) return html`<${Empty}>${hour.empty}<//>`;
  return html`<${Panes} label="Calls a minute in the last hour: allowed, and refused on a scale of its own" times=${hour.times} step=${60000} high=${{label: "allowed a minute", values: s.allowed}} low=${{label: "refused a minute", values: s.refused}} tick=${minutes(hour.times)}
    read=${(i) => `${minute(hour.times[i])}: ${s.allowed[i] === null ? "nothing is known" : `${count(s.allowed[i])} allowed, ${count(s.refused[i])} refused${s.shadow[i] ? `, ${count(s.shadow[i])} would be refused` : ""}${s.fallback[i] ? `, ${count(s.fallback[i])} decided without the store` : ""}`}`}/>`;
}

// Would is what a limit in shadow mode would have refused.
function Would({l, hour, d, top, versions}) {
  const c = top?.limits[0], all = c ? c.allowed + c.shadow : 0, before = enforcedBefore(versions);
  return html`<section id="would"><${Head} title=${`Version ${l.version} runs in shadow`}>it refuses nobody<//>${before && html`<${Both} l=${l} before=${before} hour=${hour}/>`}
    <p>${d && d.calls > 0 ? html`<b class="shadow">${share(d.shadow, d.calls) || "0 %"}</b> of the calls of the last hour would be refused${d.customers ? `, of ${customers(hour, d)} ${d.customers === 1 ? "customer" : "customers"}` : ""}. ` : ""}It would have refused ${count(c?.shadow ?? 0)} of ${some(all, "call")}${all ? ` (${(100 * c.shadow / all).toFixed(1)} %)` : ""} since this service started.</p>
    <p>${hour?.refused.keys.length > 0 ? html`In the last hour: ${hour.refused.keys.slice(0, 5).map((k, i) => html`${i > 0 && ", "}<${KeyLink} of=${k.key} limit=${l.name}/> (${some(k.count, "call")})`)}.` : "Nobody in the last hour."} ${document.documentElement.dataset.computed !== "no" && !held(l) && html`<a href=${"what-if#" + new URLSearchParams({b: text(l, baseOf(l))})}>What would it have done to yesterday's log?</a>`}</p></section>`;
}

// enforcedBefore returns what the audit knows of the definition in shadow and of the one that was
// enforced before it, and when that ended; nothing if there was none.
function enforcedBefore(versions) {
  for (const e of versions) {
    const [is, was] = (e.what ?? "").split("; was ");
    if (!was || !is.includes(",mode=shadow") || e.what.length > 1000) return undefined; // the audit cuts longer ones
    if (!was.includes(",mode=shadow")) return {is: versions[0].what.split("; was ")[0], was, at: Date.parse(e.at)};
  }
  return undefined;
}

// settingsOf returns the settings of a limit in the audit, "login=5/1m,burst=20", by their names.
function settingsOf(text) {
  const words = (t) => t.replaceAll(";", ", ").replaceAll("=", " "), [head, ...rest] = text.slice(text.indexOf("=") + 1).split(/,(?=[a-z_]+=)/), [rate, per] = head.split("/");
  const {burst = rate, plans = "", mode: _, ...others} = Object.fromEntries(rest.map((s) => s.split(/=(.*)/)));
  return {Rule: numbers({rate: +rate, per, burst: +burst}, others.algorithm), ...others, ...Object.fromEntries(plans.split("|").filter(Boolean).map((p) => ["plan " + p.split(":")[0], words(p.split(/:(.*)/)[1])]))};
}

// Both shows what differs between the version in shadow and the one that was enforced before, and what each refuses.
function Both({l, before, hour}) {
  const [old] = useAnswer((signal) => call("GET", "/v1/top?" + new URLSearchParams({n: 1, limit: l.name, hour: new Date(before.at - 36e5).toISOString()}), undefined, signal).then((h) => h.counts[l.name], () => null), [l.name, before.at], 0);
  const was = settingsOf(before.was), is = settingsOf(before.is), names = Object.keys({...was, ...is}).filter((k) => k === "Rule" || was[k] !== is[k]), s = hour && series(hour, l.name);
  const sum = (kind, is) => (s?.[kind] ?? []).reduce((n, v, i) => n + (is(hour.times[i]) ? v ?? 0 : 0), 0), then = (t) => t + 60000 <= before.at, since = (t) => t >= before.at;
  const refused = sum("refused", then), calls = refused + sum("allowed", then), would = sum("shadow", since), passed = sum("allowed", since);
  const did = ["Refused", calls > 0 ? `${share(refused, calls) || "0 %"} of ${some(calls, "call")}, last hour` : old ? `${share(old[1], old[0]) || "0 %"} of ${some(old[0], "call")}, the hour from ${minute(Math.floor(before.at / 36e5 - 1) * 36e5)}` : "", passed > 0 ? `${share(would, passed) || "0 %"} of ${some(passed, "call")} would be` : ""];
  return html`<${Table} columns=${[["Setting", "quiet"], ["Enforced until " + past(before.at), ""], [`Version ${l.version}, in shadow`, "shadow"]]} rows=${[...names.map((k) => [k, was[k] ?? "", is[k] ?? ""]), ...(did[1] || did[2] ? [did] : [])]}/>`;
}

const useOverrides = (l, kind) => useAnswer((signal) => call("GET", limitPath(l.name, "/overrides?" + new URLSearchParams({n: 500, ...(kind && {kind})})), undefined, signal), [l.name], 10000);
const Automatic = ({l}) => html`<${Overrides} l=${l} kind="automatic" answer=${useOverrides(l, "automatic")}/>`;

// Overrides are those in force, temporary ones first.
function Overrides({l, kind, answer}) {
  const [n, more] = useState(20);
  return html`<section id=${kind ?? "overrides"}><${Loaded} answer=${answer}>${(page) => {
    const list = [...page.overrides].sort((a, b) => (b.until !== null) - (a.until !== null) || Date.parse(a.until ?? 0) - Date.parse(b.until ?? 0));
    return html`<${Head} title=${kind ? "Blocked after a refusal" : "Overrides in force"}>${list.length > 0 ? `${page.next === null ? "" : "more than "}${list.length}${kind ? "" : "; temporary ones first"}` : ""}<//>
      <${Table} columns=${[["Customer", ""], ["Has", ""], ["Kind", "wide"], ["Until", ""], ["Why", "quiet wide"]]} empty=${kind ? "Nobody is blocked." : "No customer has one."} rows=${list.slice(0, n).map((o) => [html`<${KeyLink} of=${o.key} limit=${l.name}/>`,
        o.plan ? "plan " + o.plan + (l.plans?.[o.plan]?.mode === "blocked" ? " (blocked)" : "") : o.kind === "automatic" ? nameOf(l, o) : numbers(numbersOf(l, o), l.algorithm), o.kind, o.until === null ? "" : at(Date.parse(o.until)), o.kind === "automatic" ? "" : o.note ?? ""])}/>
      ${list.length > n && html`<p><button class="link" onClick=${() => more(n + 100)}>${list.length - n} more</button></p>`}`;
  }}<//></section>`;
}

// Keys are live keys of a limit that keeps their text.
function Keys({l}) {
  const [prefix, set] = useState(""), [page, error] = useAnswer((signal) => (l.shared ? null : call("GET", limitPath(l.name, "/keys?" + new URLSearchParams({n: 20, prefix})), undefined, signal)), [l.name, prefix], 10000);
  if (l.shared) return "";
  return html`<section><h2>Customers</h2>${error?.status === 409 || error?.status === 501 ? html`<p class="quiet">Keys are not listed: set <code>keys: list</code> on this limit.</p>` : html`
    <input id="prefix" type="search" aria-label="Keys that begin with" placeholder="Keys that begin with …" value=${prefix} onInput=${(e) => set(e.target.value)} autocomplete="off"/>
    ${page && !error && html`<${Table} columns=${[["Customer", ""], ["Free", "n"], ["Full in", "n"]]} empty="No live keys." rows=${page.keys.map((k) => [html`<${KeyLink} of=${k.key} limit=${l.name}/>`, count(k.remaining), k.reset_after_us ? span(k.reset_after_us) : ""])}/>
    ${page.next !== null && html`<p class="quiet">and more: type how they begin</p>`}`}`}</section>`;
}

const readOnly = ["owner", "version", "capacity", "warning", "present_rate", "rate_reason", "rate_changed_us"];

// Change changes the mode or the numbers of a limit, or drops it. Each asks for a note, and
// says before what it does.
function Change({l, action, close, d, top}) {
  const [v, setV] = useState({rate: String(l.rate ?? ""), burst: String(l.burst ?? ""), note: ""}), [wrong, setWrong] = useState({}), [sure, setSure] = useState(false), [busy, setBusy] = useState(false);
  const set = (f) => (value) => { setV((old) => ({...old, [f]: value})); setWrong({}); };
  const slots = held(l), bursts = !["sliding_window", "leaky_bucket"].includes(l.algorithm), rate = Number(v.rate.replace(/\D/g, "")), burst = v.burst.trim() === "" ? undefined : Number(v.burst.replace(/\D/g, ""));
  const to = {rate: slots ? undefined : rate, per: l.per, burst: slots ? burst : burst ?? rate}, same = to.burst === l.capacity && (slots || rate === l.rate), draft = {change: `Change ${l.name}`, enforce: `Enforce ${l.name}`, shadow: `Put ${l.name} in shadow`, drop: `Drop ${l.name}`}[action];
  const lines = {
    change: same ? [["", "Type other numbers to see it."]] : [["at once", `${numbers(baseOf(l), l.algorithm)} becomes ${numbers(to, l.algorithm)}, as version ${l.version + 1}.`], ["used", (l.on_change ?? "keep") === "keep" ? "What they have used stays used." : l.on_change === "reset" ? "All buckets become full." : "What they have used is scaled."]],
    enforce: [["at once", "Calls above the limit are refused."], d?.shadow > 0 ? ["expect", `${share(d.shadow, d.calls)} of the calls of the last hour would have been refused.`] : top?.limits[0]?.shadow > 0 && ["expect", `${count(top.limits[0].shadow)} calls since this service started would have been refused.`]],
    shadow: [["at once", "It refuses nobody, and counts what it would refuse."]],
    drop: [["at once", "Calls that name it get 404."], ["gone", "Its buckets, overrides and usage."]],
  }[action];
  const send = async (e) => {
    e.preventDefault();
    const bad = v.note.trim() === "" ? {note: "Write a note: the versions show it."} : {};
    if (action === "change" && !slots && !(rate >= 1)) bad.rate = "At least 1.";
    if (action === "change" && same) bad[slots ? "burst" : "rate"] = "These numbers are in force already.";
    if (Object.keys(bad).length > 0) return setWrong({...bad, form: "Nothing was saved."});
    if ((action === "drop" || action === "enforce") && !sure) return setSure(true);
    setBusy(true);
    try {
      if (action === "drop") {
        await call("DELETE", limitPath(l.name, "?" + new URLSearchParams({note: v.note})));
        await limits();
        location.hash = "#/limits";
        return undefined;
      }
      const settings = await call("GET", limitPath(l.name)); // the present settings, because somebody else may have changed them
      if (settings.version !== l.version) {
        await limits();
        throw new Error("Somebody was faster: it is version " + settings.version + " now. Look again.");
      }
      for (const r of readOnly) delete settings[r];
      if (action === "change") Object.assign(settings, slots ? {burst} : {rate, ...(bursts && {burst})});
      else settings.mode = action === "shadow" ? "shadow" : "enforce";
      if (settings.burst === undefined) delete settings.burst;
      await call("PUT", limitPath(l.name), {...settings, note: v.note});
      await limits();
      close();
    } catch (err) {
      setWrong(err.field === "rate" || err.field === "burst" || err.field === "note" ? {[err.field]: err.reason, form: "Nothing was saved."} : {form: err.message});
      setSure(false);
      setBusy(false);
    }
    return undefined;
  };
  return html`<section class="panel one" id="change"><header><h2>${draft}${sure ? "?" : ""}</h2></header><form onSubmit=${send} novalidate>
    ${action === "change" && !sure && html`<div class="pair">${!slots && html`<${Field} id="change-rate" label=${per(l.per)} aside=${"now " + count(l.rate)} inputmode="numeric" value=${v.rate} set=${set("rate")} error=${wrong.rate}/>`}${bursts && html`<${Field} id="change-burst" label=${slots ? "At a time" : "Burst"} aside=${"now " + count(l.capacity)} placeholder="as the rate" inputmode="numeric" value=${v.burst} set=${set("burst")} error=${wrong.burst}/>`}</div>`}
    <${Outcome} lines=${lines}>${action === "change" && !slots && document.documentElement.dataset.computed !== "no" && html`<a href=${"what-if#" + new URLSearchParams({a: text(l, baseOf(l)), b: text(l, to)})}>What would this have done to yesterday's log?</a>`}<//>
    <${Field} id="change-note" label="Why" aside="the versions show it" value=${v.note} set=${set("note")} error=${wrong.note} maxlength="1024"/>
    <footer><button class=${action === "drop" || action === "enforce" ? "danger" : "primary"} disabled=${busy}>${draft}${(action === "drop" || action === "enforce") && !sure ? " …" : ""}</button><button type="button" onClick=${close}>Cancel</button><small class=${wrong.form ? "fault" : ""} role=${wrong.form ? "alert" : undefined}>${wrong.form ?? (action === "drop" ? "Cannot be undone" : "Can be changed back")}</small></footer></form></section>`;
}

const drafted = [["name", "Name", {maxlength: 128}], ["rate", "Rate", {inputmode: "numeric"}], ["per", "Per", {placeholder: "1m"}], ["burst", "Burst", {inputmode: "numeric", placeholder: "as the rate"}]];

// Draft lets somebody write a limit. It is in the address and nowhere else, until it is
// defined in shadow mode.
export function Draft({query}) {
  const [v, setV] = useState(() => Object.fromEntries([["algorithm", "token_bucket"], ...query])), [wrong, setWrong] = useState({});
  const set = (f) => (value) => {
    const next = {...v, [f]: value};
    setV(next);
    setWrong({});
    history.replaceState(null, "", "#/draft?" + new URLSearchParams(Object.entries(next).filter(([, x]) => x !== "")));
  };
  const send = async (e) => {
    e.preventDefault();
    const bad = Object.fromEntries([["name", v.name], ["rate", v.rate], ["per", v.per], ["note", v.note]].filter(([, x]) => !x?.trim()).map(([f]) => [f, f === "note" ? "Write a note: the versions show it." : "is missing"]));
    if (limitOf(v.name)) bad.name = "There is a limit of this name.";
    if (Object.keys(bad).length > 0) return setWrong({...bad, form: "Nothing was saved."});
    try {
      const {name, ...body} = Object.fromEntries(Object.entries(v).filter(([, x]) => x !== ""));
      await call("PUT", limitPath(name), {...body, mode: "shadow"});
      await limits();
      location.hash = limitPage(name);
    } catch (err) {
      setWrong(err.field ? {[err.field]: err.reason, form: "Nothing was saved."} : {form: err.message});
    }
    return undefined;
  };
  return html`<p class="breadcrumb"><a href="#/limits">Limits</a></p><h1>Draft of a limit</h1>
    <p class="lead quiet">The draft is stored only in the address of this page: send the address to somebody who should review it. In shadow mode the limit allows every call and counts those that it would have refused. When the numbers are right, enforce it.</p>
    <section class="panel one"><form id="draft" onSubmit=${send} novalidate>
      <label class="field"><span>Kind</span><select id="draft-algorithm" onChange=${(e) => set("algorithm")(e.target.value)}>${Object.entries(kinds).filter(([k]) => k !== "concurrency").map(([k, t]) => html`<option value=${k} selected=${k === v.algorithm}>${t}</option>`)}</select></label>
      <div class="pair">${drafted.map(([f, label, props]) => html`<${Field} id=${"draft-" + f} label=${label} value=${v[f] ?? ""} set=${set(f)} error=${wrong[f]} ...${props}/>`)}</div>
      <${Field} id="draft-note" label="Why" aside="the versions show it" value=${v.note ?? ""} set=${set("note")} error=${wrong.note} maxlength="1024"/>
      <footer><button class="primary">Define in shadow mode</button><a class="button" href=${"playground#" + new URLSearchParams({algorithm: v.algorithm, rate: v.rate ?? "", per: v.per ?? "1m", burst: v.burst ?? ""})}>Try it in the Playground</a><small class=${wrong.form ? "fault" : ""} role=${wrong.form ? "alert" : undefined}>${wrong.form ?? "It refuses nobody"}</small></footer></form></section>`;
}
