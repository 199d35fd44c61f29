// The view of a customer: everything that a key has under all limits.
import {html, useEffect, useMemo, useState} from "./preact.js";
import {call, limitPath} from "./api.js";
import {Panel} from "./actions.js";
import {Bucket, Holds, Panes} from "./charts.js";
import {eventsOf, together} from "./history.js";
import {hourMS, hourOf, week} from "./overview.js";
import {Badge, Empty, Head, Icon, KeyLink, LimitLink, Loaded, Rich, Timeline} from "./parts.js";
import {limitOf, lookAt, may, shared, useAnswer} from "./state.js";
import {at, brief, count, day, length, minute, now, numbers, shorter, some, span, unlimited} from "./words.js";
import {debt, held, layersOf, plain, stateOf, summary, unit, windows} from "./why.js";

const again = 5000; // ms between two looks
const few = 12; // limits that pass and are shown at first

// load asks what all limits know of the key, and the one that is named.
async function load(key, limit, signal) {
  let limits = [];
  if (key !== null) {
    for (let after = "", pages = 0; after !== null && pages < 10; pages++) {
      const page = await call("GET", "/v1/keys?" + new URLSearchParams({key, ...(after && {after})}), undefined, signal);
      limits = limits.concat(page.limits);
      after = page.next;
    }
  }
  if (limit && limitOf(limit) && !limits.some((x) => x.limit === limit)) limits.push(await lookAt(limit, key, 1, signal));
  limits = await Promise.all(limits.map((x) => recalled(x, key, signal)));
  const changes = may("read") ? await call("GET", "/v1/audit?" + new URLSearchParams({key: key ?? "", ...(key === null && {limit}), n: 200}), undefined, signal).then((p) => p.entries, () => []) : [];
  for (const x of limits) x.now ??= now();
  return {limits: limits.filter((x) => limitOf(x.limit)), changes};
}

const told = new Map(); // the newest refusals of a limit and a key

// recalled is what a limit knows, with the refusals that another service has told before if
// they are newer: each service remembers its own, and they may answer in turn.
async function recalled(x, key, signal) {
  const name = x.limit + "\0" + key, old = told.get(name), last = x.refusals?.last?.[0];
  if (last && !(old?.last[0].at_us > last.at_us)) told.set(name, x.refusals);
  else if (old && old.process !== x.refusals?.process) return {...await lookAt(x.limit, key, old.last[0].cost, signal), refusals: old};
  return x;
}

export function Customer({query}) {
  const key = query.get("key"), limit = query.get("limit");
  const answer = useAnswer((signal) => load(key, limit, signal), [key, limit], again);
  if (key === null && !limitOf(limit)?.shared) return html`<${Empty} title="Which customer?">Press / and type a key, or the beginning of one.<//>`;
  return html`<${Loaded} answer=${answer}>${(value, reload) => html`<${Known} key=${(key ?? "") + "\0" + limit} of=${key} named=${limit} value=${value} reload=${reload} error=${answer[1]}/>`}<//>`;
}

const order = ["away", "blocked", "refuses"];

function Known({of, named, value, reload, error}) {
  const {limits, changes} = value, name = of ?? "the shared bucket of " + named, short = shorter(name);
  const states = useMemo(() => limits.map((x) => ({x, def: limitOf(x.limit), s: stateOf(x, limitOf(x.limit), changes)}))
    .sort((a, b) => rank(a) - rank(b) || (a.x.limit < b.x.limit ? -1 : 1)), [limits, changes]);
  const [opened, setOpened] = useState(() => ({[named ?? states.find(({s}) => order.includes(s.kind))?.x.limit ?? (states.length === 1 ? states[0].x.limit : "")]: true}));
  const [doing, act] = useState(null), [raise, setRaise] = useState(null), [news, setNews] = useState(null), [all, showAll] = useState(false), [filter, setFilter] = useState("");
  const target = doing?.limit ?? named ?? states[0]?.x.limit ?? shared.limits.find((l) => !l.shared)?.name;
  const refusing = states.filter(({s}) => order.includes(s.kind)).length;
  const shown = all ? states : states.slice(0, Math.max(few, refusing));
  const done = async (said) => {
    await reload();
    act(null);
    setRaise(null);
    setNews({said, before: changes[0]?.id});
  };
  const start = (action, limit, kind) => {
    setOpened((o) => ({...o, [limit]: true}));
    act({action, limit, kind});
  };
  const [hour] = useAnswer((signal) => hourOf(signal), [], 30000), events = eventsOf({limits, changes, of, start, done, news, hour});
  return html`<div class=${error ? "stale" : ""}><div class="sentence"><div><div class="title"><h1 class=${of === null ? "" : of === short ? "key" : "key long"}>${of ?? "Shared bucket of " + named}</h1><small>${some(states.length, "limit")}</small></div>
      <p class="answer" id="answer"><${Rich} text=${summary(short, states)}/><button class="link" onClick=${() => navigator.clipboard?.writeText(plain(summary(name, states)) + " (" + at(states[0]?.x.now ?? now()) + ")")}>Copy</button></p></div></div>
    <div class="columns act"><div class="stack"><section>
        ${shown.map(({x, def, s}) => html`<${LimitState} key=${x.limit} x=${x} def=${def} s=${s} of=${of} changes=${changes} open=${!!opened[x.limit]} toggle=${() => setOpened((o) => ({...o, [x.limit]: !o[x.limit]}))}
          start=${start} raise=${doing?.limit === x.limit && doing.action === "raise" ? raise : null}/>`)}
        ${shown.length < states.length && html`<p><button class="link" onClick=${() => showAll(true)}>${some(states.length - shown.length, "more limit")}, which let it pass</button></p>`}
        ${states.length === 0 && html`<${Empty} title="New here">No limit has counted ${short}, and none has an override of it. What you do on the right is in force from its first call on.<//>`}
      </section>${of !== null && html`<${Below} of=${of}/>`}</div>
    <aside class="stack"><${Panel} of=${of} target=${target} states=${states} doing=${doing} act=${act} start=${start} done=${done} preview=${setRaise}/>
      <section><div class="section-head"><h2>What happened</h2>${limits.length > 1 && html`<select aria-label="Show limits" onChange=${(e) => setFilter(e.target.value)}><option value="" selected=${filter === ""}>all limits</option>${limits.map((x) => html`<option value=${x.limit} selected=${filter === x.limit}>${x.limit}</option>`)}</select>`}</div>
        <p class="sr" role="status" aria-live="polite" id="said">${news?.said ?? ""}</p>
        <${Timeline} events=${together(events.filter((e) => filter === "" || e.limit === filter), {of, start, done}).slice(0, 60)} none=${"Nothing was changed for " + short + ", and this service remembers no refusal."}/></section></aside></div></div>`;
}

const rank = ({x, s}) => (s.kind === "refuses" ? 0 : order.includes(s.kind) ? 1 : x.override ? 2 : s.kind === "shadow" ? 3 : 4);

// LimitState is one limit: its sentence, and opened the bucket, what decides, and the usage.
function LimitState({x, def, s, of, changes, open, toggle, start, raise}) {
  const level = s.of >= unlimited ? 1 : Math.max(0, Math.min(1, s.free / Math.max(1, s.of)));
  const quick = !may("support") ? "" : s.kind === "blocked" && x.override ? html`<button class="link" onClick=${() => start("end", x.limit)}>End the block</button>`
    : s.kind === "refuses" && !x.never ? html`<button class="link" onClick=${() => start("raise", x.limit)}>Raise for a time</button>` : "";
  return html`<article class="limit-state" id=${"limit-" + x.limit}><header><button class="link" aria-expanded=${open ? "true" : "false"} aria-label=${"Details of " + x.limit} onClick=${toggle}><${Icon} name="open"/></button>
      <${Badge} kind=${s.kind}>${s.badge}<//><h2><${LimitLink} name=${x.limit}/></h2><p class="why"><${Rich} text=${s.text}/></p>
      <div class="level"><span>${s.of >= unlimited ? html`<b>no limit</b>` : x.mode === "blocked" ? html`<b>0</b> ${x.blocked_until_us ? "until " + at(x.blocked_until_us / 1000) : "free"}` : html`<b>${count(s.free)}</b> of ${count(s.of)} free`}</span>
        ${x.mode !== "blocked" && html`<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect width=${(100 * level).toFixed(1)} height="6"/></svg>`}${quick}</div></header>
    ${open && html`<div class="body"><div class="side-by-side"><div class="stack-s"><${Level} x=${x} def=${def} s=${s} of=${of} raise=${raise}/></div><${Layers} x=${x} def=${def} changes=${changes}/></div>
      ${def.usage ? html`<${Usage} def=${def} of=${of} top=${layersOf(x, def)[0]}/>` : html`<p class="quiet">${x.limit} keeps no usage. With <code>usage: true</code> the hours are kept from then on, for a month.</p>`}</div>`}</article>`;
}

// Level is the bucket, or the holds, and when a call of a cost passes.
function Level({x, def, s, of, raise}) {
  const [cost, setCost] = useState(x.cost || 1), [ask, setAsk] = useState(null);
  useEffect(() => {
    if (!(cost >= 1) || cost === x.cost) {
      setAsk(null);
      return undefined;
    }
    const leave = new AbortController(), wait = setTimeout(() => lookAt(x.limit, of, cost, leave.signal).then(setAsk, () => {}), 150);
    return () => {
      clearTimeout(wait);
      leave.abort();
    };
  }, [cost, x]);
  const a = cost === x.cost ? x : ask?.cost === cost ? ask : null, stairs = windows.includes(def.algorithm);
  const when = !a ? "…" : a.allowed ? a.delay_us > 0 ? html`at <b>${at(a.now + a.delay_us / 1000)}</b>, behind those before it` : html`<b>now</b>` : a.never ? html`<b>never</b>: no wait helps` : html`at <b>${at(a.blocked_until_us && Math.abs(a.now + (a.retry_after_us - a.blocked_until_us) / 1000) < 1000 ? a.blocked_until_us / 1000 : a.now + a.retry_after_us / 1000)}</b>, in ${span(a.retry_after_us)}${a.retry_is_bound ? ", or sooner" : ""}`;
  const raised = raise?.free !== undefined && (cost <= raise.free ? html`; raised: <b>at once</b>` : html`; raised: not at once`);
  return html`${held(def) ? html`<${Holds} x=${x}/>${!x.holds?.length && html`<p class="quiet">None is held.</p>`}`
    : x.mode === "blocked" && !x.row ? "" : html`<${Bucket} x=${{...x, stairs}} free=${s.free} of=${s.of} owed=${debt(x, def, s, layersOf(x, def)[0])} unit=${unit(def)} need=${a && !a.allowed ? cost : 0} needAt=${a?.retry_after_us} raise=${raise}/>`}
    ${x.mode !== "unlimited" && html`<p class="ask"><label>A call of <input id=${"cost-" + x.limit} class="short" inputmode="numeric" value=${count(cost)} onInput=${(e) => setCost(Number(e.target.value.replace(/\D/g, "")) || 0)}/></label> ${held(def) ? "" : cost === 1 ? "token" : "tokens"} passes ${when}${raised}</p>`}
    ${!held(def) && x.holds?.length > 0 && html`<h3>Live holds</h3><${Holds} x=${x}/>`}`;
}

// Layers says what decides, the one on top first, and the parents that are asked too.
function Layers({x, def, changes}) {
  const layers = layersOf(x, def, changes);
  return html`<ol class="layers">${layers.map((l, i) => html`<li class=${i === 0 ? "decides" : "under"}><span class="tag">${i === 0 ? html`<b>Decides</b>` : "Below"}<span>${l.kind}</span></span>
      <span>${l.what === "the base" ? "" : html`<b>${l.what}</b>: `}${numbers(l.numbers, def.algorithm)}</span>
      ${(l.change || l.override?.note) && html`<small>${l.change ? `${l.change.who}, ${day(Date.parse(l.change.at)) || minute(Date.parse(l.change.at))}${l.change.note ? ": " + l.change.note : ""}` : l.override.kind === "automatic" ? "begun by a refusal" : l.override.note}</small>`}</li>`)}
    ${(x.limits ?? []).slice(1).map((p) => html`<li><span class="tag">Asked too<span>parent</span></span><span><${LimitLink} name=${p.limit}/> ${p.key && html`<${KeyLink} of=${p.key} limit=${p.limit}/>`}${p.allowed ? "passes" : html`<b class="refused">refuses</b>`}, ${Math.floor(100 * p.remaining / Math.max(1, p.capacity))} % free</span></li>`)}</ol>`;
}

// Usage is what a key used by the hour in the last week.
function Usage({def, of, top}) {
  const answer = useAnswer((signal) => call("GET", limitPath(def.name, "/usage?" + new URLSearchParams({...(of !== null && {key: of}), from: new Date(now() - (week - 1) * hourMS).toISOString()})), undefined, signal), [def.name, of], 60000);
  const from = (Math.floor(now() / hourMS) - week + 1) * hourMS, times = Array.from({length: week}, (_, i) => from + i * hourMS);
  return html`<section><${Head} title="Usage by the hour">7 days<//><${Loaded} answer=${answer}>${(u) => {
    const at0 = new Map(u.hours.map((h) => [Date.parse(h.hour), h])), high = times.map((t) => at0.get(t)?.tokens ?? 0), low = times.map((t) => at0.get(t)?.refused ?? 0);
    if (u.hours.length === 0) return html`<${Empty}>Nothing was used in the last week. What is used is stored each minute.<//>`;
    const n = top.numbers, hourly = n.rate && !windows.includes(def.algorithm) && !n.mode ? n.rate * hourMS / length(n.per) : NaN, most = Math.max(...high);
    return html`<${Panes} label="Tokens used and calls refused by the hour, seven days" times=${times} step=${hourMS} bars wide=${760} high=${{label: "tokens used an hour", values: high}} low=${{label: "calls refused", values: low}}
      most=${hourly > 0 && hourly < most * 4 ? {value: hourly, text: `${top.what} refills ${brief(hourly)} an hour`} : undefined}
      tick=${(t) => (minute(t) === "00:00" ? day(t, true).split(" ").slice(0, 2).join(" ") : "")} read=${(i) => `${day(times[i], true)} ${minute(times[i])}: ${some(high[i], "token")} used, ${some(low[i], "call")} refused`}/>`;
  }}<//></section>`;
}

// Below are the keys whose first parts are this key.
function Below({of}) {
  const [n, more] = useState(5);
  const [value] = useAnswer(async (signal) => {
    const f = await call("GET", "/v1/keys?" + new URLSearchParams({prefix: of + "/", n: 200}), undefined, signal);
    return {...f, keys: await Promise.all(f.keys.map(async (k, i) => {
      if (i >= 20) return {...k, states: []};
      const a = await call("GET", "/v1/keys?" + new URLSearchParams({key: k.key}), undefined, signal);
      return {...k, states: a.limits.filter((x) => limitOf(x.limit)).map((x) => ({x, s: stateOf({...x, now: now()}, limitOf(x.limit))}))};
    }))};
  }, [of], 15000);
  if (!value || value.keys.length === 0) return "";
  const bad = (k) => k.states.find(({s}) => order.includes(s.kind)), list = [...value.keys.filter(bad), ...value.keys.filter((k) => !bad(k))];
  return html`<section><${Head} title=${"Keys below " + shorter(of)}>${value.more ? "more than " : ""}${some(list.length, "key")}, those that refuse first<//>
    <table><tbody>${list.slice(0, n).map((k) => {
      const one = bad(k) ?? k.states[0];
      return html`<tr><td><${KeyLink} of=${k.key}/></td><td>${one && html`<${Badge} kind=${one.s.kind}>${one.s.badge}<//>`}</td><td class=${bad(k) ? "" : "quiet"}>${one ? html`${one.x.limit}: <${Rich} text=${one.s.text}/>` : k.limits.join(", ")}</td></tr>`;
    })}</tbody></table>${list.length > n && html`<p><button class="link" onClick=${() => more(n + 50)}>${some(list.length - n, "more key")}</button></p>`}</section>`;
}
