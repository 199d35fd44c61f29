// The panel of a customer: what can be done about a limit, what will happen then, and a note.
import {html, useEffect, useRef, useState} from "./preact.js";
import {call, limitPath} from "./api.js";
import {Choice, Field, Icon, Outcome} from "./parts.js";
import {limitOf, lookAt, may, shared} from "./state.js";
import {at, count, fromZone, length, now, numbers, per, shorter, some, span, zoneName} from "./words.js";
import {b, baseOf, debt, held, layersOf, nameOf, numbersOf, outlook, standing, temporary, windows} from "./why.js";

// Panel asks what to do about a limit, or is the form of one action.
export function Panel({of, target, states, doing, act, start, done, preview}) {
  const close = () => {
    act(null);
    preview(null);
    setTimeout(() => document.querySelector(`#do [data-action="${doing?.action}"]`)?.focus()); // once it is drawn
  };
  if (!may("support")) {
    return html`<section class="panel" id="do"><header><h2>What can be done</h2></header><div class="panel-body"><p>You are <b>${shared.me?.name}</b>, role ${shared.me?.role}: you see everything and change nothing. Role support may raise, block and forgive; role admin may change limits.</p></div></section>`;
  }
  const def = limitOf(target);
  if (!def) return "";
  if (doing) return html`<${Form} key=${doing.action + doing.limit} of=${of} def=${limitOf(doing.limit)} doing=${doing} known=${states.find(({x}) => x.limit === doing.limit)?.x} close=${close} done=${done} preview=${preview}/>`;
  const names = [...states.map(({x}) => x.limit), ...shared.limits.filter((l) => !l.shared && of !== null && !states.some(({x}) => x.limit === l.name)).map((l) => l.name)];
  return html`<${Actions} def=${def} names=${names} states=${states} start=${start}/>`;
}

const blockingPlan = (def) => Object.entries(def.plans ?? {}).find(([, p]) => p.mode === "blocked")?.[0];

function Actions({def: first, names, states, start}) {
  const [limit, choose] = useState(first.name), def = limitOf(limit) ?? first, x = states.find((s) => s.x.limit === limit)?.x;
  useEffect(() => choose(first.name), [first.name]);
  const top = x?.override, plans = Object.values(def.plans ?? {}).filter((p) => p.mode !== "blocked").length, line = (action, title, about) => html`<li><button data-action=${action} onClick=${() => start(action, limit)}>
    <span>${title}</span><small>${about}</small><${Icon} name="open"/></button></li>`;
  const ending = top && (x.mode === "blocked" ? ["End the block", "Calls are decided as before it"] : top.until ? ["End " + nameOf(def, top), "What lies below it decides again"] : ["Take " + nameOf(def, top) + " away", "The base decides again"]);
  const blocked = x?.mode === "blocked";
  return html`<section class="panel" id="do"><header><h2>What do you want to do?</h2>${names.length > 1 ? html`<label class="quiet in">in <select id="in" onChange=${(e) => choose(e.target.value)}>${names.map((n) => html`<option value=${n} selected=${n === limit}>${n}</option>`)}</select></label>` : html`<small>in ${limit}</small>`}</header>
    <ul class="actions">
      ${ending && blocked && line("end", ...ending)}
      ${line("raise", "Raise for a time", `${blocked ? "In place of the block" : `More than ${x ? layersOf(x, def)[0].what : "the base"}`}, ends by itself`)}
      ${plans > 0 && line("plan", "Give another plan", top?.plan && !top.until ? `In place of plan ${top.plan}, until changed` : "Until changed, or for a time")}
      ${!held(def) && line("forgive", "Forgive", "Give tokens back, or fill the bucket; no undo")}
      ${x?.holds?.length > 0 && line("holds", "End holds", `${some(x.holds.length, "live hold")}, ${count(x.holds.reduce((n, h) => n + h.tokens, 0))} ${held(def) ? "held" : "tokens"}; no undo`)}
      ${ending && !blocked && line("end", ...ending)}
      ${blockingPlan(def) && !blocked && line("block", "Block", "Refuse every call until a time you choose")}
    </ul>${!blockingPlan(def) && html`<p class="aside">To block in ${limit}, it needs a plan with <code>mode: blocked</code>.</p>`}</section>`;
}

const titles = {raise: "Raise", plan: "Give a plan to", forgive: "Forgive", holds: "End holds of", block: "Block", end: "End for"};

// Form is one action. One that takes something away asks twice.
function Form({of, def, doing, known, close, done, preview}) {
  const [x, setX] = useState(known), [wrong, setWrong] = useState({}), [busy, setBusy] = useState(false), [sure, setSure] = useState(false), [faster, setFaster] = useState(null);
  const form = useRef(), [seen, setSeen] = useState(known?.override), name = shorter(of ?? "the shared bucket"), action = doing.action;
  useEffect(() => {
    if (!x) lookAt(def.name, of, 1).then((y) => { setX(y); setSeen(y.override); }, (err) => setWrong({form: err.message}));
  }, []);
  useEffect(() => { form.current?.querySelector("input, select")?.focus({preventScroll: matchMedia("(min-width: 900px)").matches}); }, [!x]);
  const now0 = x && layersOf(x, def)[0], n = x && (now0.numbers.mode ? numbersOf(def, standing(x) ?? {}) : now0.numbers);
  const [v, setV] = useState({for: action === "plan" ? "" : "1h", note: "", until: "", plan: "", amount: "", how: "back", holds: {}});
  const f = {...(n && {rate: String(2 * (n.rate ?? 0)), burst: String(2 * (n.burst ?? n.rate ?? 0))}), ...v};
  const set = (field) => (value) => {
    setV((old) => ({...old, [field]: value}));
    setWrong({});
  };
  const spec = x && forms[action]({of, name, def, x, n, f, set, wrong, kind: doing.kind});
  useEffect(() => preview(spec?.raise ?? null), [JSON.stringify(spec?.raise ?? null)]);
  const send = async (e) => {
    e.preventDefault();
    const bad = spec.check?.() ?? {};
    if (f.note.trim() === "") bad.note = "Write a note: the timeline shows it.";
    if (Object.keys(bad).length > 0) {
      setWrong({...bad, form: `${some(Object.keys(bad).length, "field needs", "fields need")} a change. Nothing was saved.`});
      return;
    }
    if (spec.twice && !sure) {
      setSure(true);
      return;
    }
    setBusy(true);
    try {
      const present = (await lookAt(def.name, of, 1)).override;
      if (JSON.stringify(present) !== JSON.stringify(seen)) {
        setFaster(present ?? null);
        setSeen(present);
        setSure(false);
      } else {
        await spec.send();
        await done(spec.said());
        return;
      }
    } catch (err) {
      const field = {for: "for", until: "until", rate: "rate", per: "rate", burst: "burst", note: "note", plan: "plan", cost: "amount"}[err.field];
      setWrong(field ? {[field]: err.reason, form: "Nothing was saved."} : {form: err.message});
      setSure(false);
    }
    setBusy(false);
  };
  const title = `${spec?.title ?? titles[action]} ${name} in ${def.name}${sure ? "?" : ""}`;
  const key = (e) => { if (e.key === "Escape") close(); };
  return html`<section class="panel" id="do" onKeyDown=${key}><header><h2>${title}</h2><button class="link" aria-label="Close" onClick=${close}><${Icon} name="close"/></button></header>
    ${faster !== null && html`<div class="banner notice" role="alert"><${Icon} name="fault"/><p><b>Somebody was faster:</b> ${faster.plan ? "plan " + faster.plan : numbers(numbersOf(def, faster), def.algorithm)}${faster.until ? " until " + at(Date.parse(faster.until)) : ""}${faster.note ? `, “${faster.note}”` : ""}. Yours would replace it.</p><button onClick=${() => { setFaster(null); lookAt(def.name, of, x.cost || 1).then(setX); }}>Look again</button></div>`}
    ${!spec ? html`<div class="panel-body">${wrong.form ? html`<p class="fault" role="alert">${wrong.form}</p>` : html`<p class="quiet">…</p>`}</div>` : html`<form ref=${form} id=${"do-" + action} onSubmit=${send} novalidate>
      ${!sure && spec.fields}
      ${(sure || !spec.twice) && html`${spec.layers && html`<${Stack} lines=${spec.layers}/>`}<${Outcome} lines=${spec.lines}>${spec.link}<//>`}
      <${Field} id="note" label="Why, and for whom" aside="the timeline shows it" value=${f.note} set=${set("note")} error=${wrong.note} maxlength="1024"/>
      <footer><button class=${spec.twice ? "danger" : "primary"} disabled=${busy}>${sure || !spec.twice ? spec.button : spec.button + " …"}</button><button type="button" onClick=${sure ? () => setSure(false) : close}>${sure ? "Back" : "Cancel"}</button>
        <small>${spec.undo}</small>${wrong.form && html`<small class="fault" role="alert">${wrong.form}</small>`}</footer></form>`}</section>`;
}

const Stack = ({lines}) => html`<div class="stack-s"><h3>What decides, the one on top first</h3><ol class="layers compact">
  ${lines.map(([what, aside], i) => html`<li class=${i === 0 ? "decides" : "under"}>${i === 0 ? html`<b>${what}</b>` : html`<span>${what}</span>`}<small>${aside}</small></li>`)}</ol></div>`;

const lasts = {"15m": 9e5, "1h": 36e5, "4h": 144e5, "1d": 864e5};

// endOf is when an action ends, in ms, or nothing.
const endOf = (f) => (f.for === "until" ? (f.until ? fromZone(f.until) : undefined) : lasts[f.for] && Math.ceil((now() + lasts[f.for]) / 1000) * 1000);
const lasting = (f) => (f.for === "" ? {} : {until: new Date(endOf(f)).toISOString()}); // the very second that the button says

const Length = ({f, set, wrong, options}) => html`<${Choice} id="for" label="For" value=${f.for} set=${set("for")} options=${[...options, ["until", "until …"]]}/>
  ${f.for === "until" && html`<${Field} id="until" label="Until" aside=${zoneName()} type="datetime-local" value=${f.until} set=${set("until")} error=${wrong.until}/>`}
  ${wrong.for && html`<p class="fault">${wrong.for}</p>`}`;
const checkEnd = (f) => (f.for === "until" && !(endOf(f) > now()) ? {until: "Choose a time that is still to come."} : {});
const overridePath = (def, query) => limitPath(def.name, "/overrides" + (query ? "?" + new URLSearchParams(query) : ""));
const keyOf = (of) => (of === null ? {} : {key: of});
const describe = (def, o) => (o.plan ? "plan " + o.plan + ": " : "") + numbers(numbersOf(def, o), def.algorithm);

// whatStays are the layers below a temporary override.
const whatStays = (def, x) => [...(standing(x) ? [[describe(def, standing(x)), "stays"]] : []), ["base: " + numbers(baseOf(def), def.algorithm), "stays"]];

const whole = (text) => Number(String(text).replace(/[^\d]/g, ""));

// forms are the actions: each returns what Form shows, what it sends, and what it then says.
const forms = {
  raise({of, def, x, n, f, set, wrong}) {
    const rate = whole(f.rate), burst = whole(f.burst), slots = held(def), slides = def.algorithm === "sliding_window", even = def.algorithm === "leaky_bucket", below = standing(x), then = below ? numbersOf(def, below) : baseOf(def);
    const to = slots ? {burst} : slides || even ? {rate, per: n.per, burst: slides ? rate : n.burst} : {rate, per: n.per, burst}, end = endOf(f), replaced = temporary(x), out = outlook(x, def, to, then);
    const less = slots ? burst < n.burst : rate < n.rate, until = end ? at(end) : "…", thenName = below ? nameOf(def, below) : "the base";
    const full = out.free !== undefined && !slots && !windows.includes(def.algorithm) ? Math.max(0, to.burst - out.free) * length(to.per) * 1000 / to.rate : undefined;
    return {
      title: less ? "Lower" : "Raise", raise: !slots && out.free !== undefined && to.burst > 0 ? {free: out.free, burst: to.burst, full} : null, undo: "Can be undone",
      fields: html`<div class="pair">${!slots && html`<${Field} id="rate" label=${per(n.per).replace(/^./, (c) => c.toUpperCase())} aside=${"now " + count(n.rate)} inputmode="numeric" value=${f.rate} set=${set("rate")} error=${wrong.rate}/>`}
        ${!slides && !even && html`<${Field} id="burst" label=${slots ? "At a time" : "Burst"} aside=${"now " + count(n.burst)} inputmode="numeric" value=${f.burst} set=${set("burst")} error=${wrong.burst}/>`}</div>
        <${Length} f=${f} set=${set} wrong=${wrong} options=${[["15m", "15 min"], ["1h", "1 hour"], ["4h", "4 hours"]]}/>`,
      layers: [[numbers(to, def.algorithm), "until " + until], ...whatStays(def, x)],
      lines: [
        out.free !== undefined && ["at once", slots ? `${count(Math.max(0, burst - (x.capacity - x.remaining)))} more can be held.` : `${some(out.free, "token is", "tokens are")} free.${!x.allowed && x.cost <= out.free ? ` A call of ${count(x.cost)} passes.` : ""}`],
        replaced && ["replaces", `${cap(nameOf(def, replaced))} until ${at(Date.parse(replaced.until))} ends now.`],
        end && [at(end), `Ends by itself: ${thenName} again.`],
        out.wait > 0 ? ["at worst", `If all ${count(to.burst)} are used by then, calls are refused for ${span(out.wait * 1000)}, until ${at((end ?? now()) + out.wait)}.`]
          : out.over > 0 && windows.includes(def.algorithm) ? ["at worst", `If more than ${count(then.burst)} are used by then, calls are refused until the window ends.`]
            : out.over > 0 && slots ? ["at worst", `If more than ${count(then.burst)} are held then, calls are refused until enough have ended.`] : null,
      ],
      link: !slots && document.documentElement.dataset.computed !== "no" && html`<a href=${"what-if#" + new URLSearchParams({a: text(def, n), b: text(def, to)})}>What would this have done to yesterday's log?</a>`,
      check: () => ({...(!slots && !(rate >= 1) && {rate: "0 would refuse every call. To refuse all, block instead."}), ...(slots && !(burst >= 1) && {burst: "0 would refuse every call. To refuse all, block instead."}), ...checkEnd(f)}),
      button: `${less ? "Lower" : "Raise"} until ${until}`,
      send: () => call("PUT", overridePath(def), {...keyOf(of), ...(slots ? {burst} : {rate, ...(!windows.includes(def.algorithm) && {per: n.per}), ...(!slides && !even && {burst})}), ...lasting(f), note: f.note}),
      said: () => `${less ? "Lowered" : "Raised"} in ${def.name} to ${numbers(to, def.algorithm)} until ${until}.`,
    };
  },
  plan({of, def, x, f, set, wrong}) {
    const plans = Object.entries(def.plans ?? {}).filter(([, p]) => p.mode !== "blocked"), chosen = f.plan && numbersOf(def, {plan: f.plan}), end = endOf(f), replaced = end ? temporary(x) : standing(x), out = chosen && chosen.burst ? outlook(x, def, chosen, chosen) : {};
    const over = !end && temporary(x);
    return {
      title: "Give a plan to", undo: "Can be undone",
      fields: html`<label class=${"field" + (wrong.plan ? " wrong" : "")}><span>Plan</span><select id="plan" onChange=${(e) => set("plan")(e.target.value)} aria-invalid=${wrong.plan ? "true" : undefined}><option value="" selected=${f.plan === ""}>choose a plan</option>${plans.map(([p]) => html`<option value=${p} selected=${p === f.plan}>${p}</option>`)}</select>${wrong.plan && html`<span class="error">${wrong.plan}</span>`}</label>
        <table class="plans"><thead><tr><th scope="col">Plan</th><th scope="col">Rule</th></tr></thead><tbody>
          ${[["base", baseOf(def)], ...plans.map(([p]) => [p, numbersOf(def, {plan: p})])].map(([p, m]) => html`<tr class=${p === f.plan ? "at" : ""}><td>${p}${p === (standing(x)?.plan ?? (standing(x) ? "" : "base")) && html` <small>now</small>`}</td><td>${numbers(m, def.algorithm)}</td></tr>`)}</tbody></table>
        <${Length} f=${f} set=${set} wrong=${wrong} options=${[["", "no end"], ["1d", "1 day"]]}/>`,
      layers: f.plan && [[`plan ${f.plan}: ${numbers(chosen, def.algorithm)}`, end ? "until " + at(end) : "until changed"], ...(end ? whatStays(def, x) : [["base: " + numbers(baseOf(def), def.algorithm), "stays"]])],
      lines: [
        !f.plan && ["", "Choose a plan to see it."],
        f.plan && over && ["at once", `Nothing: ${nameOf(def, over)} decides until ${at(Date.parse(over.until))}.`],
        f.plan && !over && out.free !== undefined && ["at once", `${count(out.free)} of ${count(chosen.burst)} are free.`],
        !over && out.free === 0 && out.used > chosen.burst && ["at worst", `${count(out.used - chosen.burst)} more than its burst are used: calls are refused until they have come back.`],
        f.plan && replaced && ["replaces", `${cap(nameOf(def, replaced))}${replaced.until ? " until " + at(Date.parse(replaced.until)) : ""} ends now.`],
        f.plan && end && [at(end), `Ends by itself: ${standing(x) ? nameOf(def, standing(x)) : "the base"} again.`],
      ],
      check: () => ({...(!f.plan && {plan: "Choose a plan."}), ...checkEnd(f)}),
      button: f.plan ? `Give plan ${f.plan}` : "Give a plan",
      send: () => call("PUT", overridePath(def), {...keyOf(of), plan: f.plan, ...lasting(f), note: f.note}),
      said: () => `Gave plan ${f.plan} in ${def.name}${end ? " until " + at(end) : ""}.`,
    };
  },
  forgive({of, name, def, x, f, set, wrong}) {
    const fill = f.how === "fill", amount = whole(f.amount), row = x.row ?? x, over = debt(x, def, {free: row.remaining, of: row.capacity}, layersOf(x, def)[0]), used = row.capacity - row.remaining + over, holds = x.holds?.length ?? 0;
    return {
      title: fill ? "Fill the bucket of" : "Give tokens back to", twice: fill, undo: "Cannot be undone",
      fields: html`<${Choice} id="how" label="How" value=${f.how} set=${set("how")} options=${[["back", "Give tokens back"], ["fill", "Fill the bucket"]]}/>
        ${!fill && html`<${Field} id="amount" label="Tokens" aside=${`${count(used)} used`} inputmode="numeric" value=${f.amount} set=${set("amount")} error=${wrong.amount}/>`}`,
      lines: fill ? [["at once", `${count(used)} used tokens are forgotten: ${b(count(row.capacity))} are free.`], holds > 0 && ["ends", `${some(holds, "live hold")} of ${count(x.holds.reduce((sum, h) => sum + h.tokens, 0))} tokens, and reservations.`], x.mode === "blocked" && ["but", "The block stays: every call is refused until it ends."]]
        : [["at once", amount > 0 ? `${count(Math.min(row.capacity, row.capacity - used + amount) < 0 ? 0 : Math.min(row.capacity, row.capacity - used + amount))} of ${count(row.capacity)} are free.${amount > used ? ` Only ${count(used)} are used: no more can come back.` : ""}` : "Say how many tokens."],
          (x.limits?.length ?? 0) > 1 && ["also", `The parents ${x.limits.slice(1).map((p) => p.limit).join(", ")} get as many back.`], x.mode === "blocked" && ["but", "The block stays: every call is refused until it ends."]],
      check: () => (fill || amount >= 1 ? {} : {amount: "How many tokens? At least 1."}),
      button: fill ? "Fill" + (holds > 0 ? `, and end ${some(holds, "hold")}` : "") : amount > 0 ? `Give ${count(amount)} back` : "Give back",
      send: () => call("POST", fill ? "/v1/reset" : "/v1/refund", {limit: def.name, ...keyOf(of), ...(!fill && {cost: amount}), note: f.note}),
      said: () => (fill ? `Filled the bucket of ${name} in ${def.name}.` : `Gave ${some(amount, "token")} back in ${def.name}.`),
    };
  },
  holds({of, name, def, x, f, set}) {
    const holds = x.holds ?? [], chosen = holds.filter((h) => f.holds[h.hold]), all = chosen.length === holds.length && held(def), sum = chosen.reduce((n, h) => n + h.tokens, 0);
    return {
      title: "End holds of", twice: true, undo: "Cannot be undone",
      fields: html`<fieldset class="holds"><legend>Live holds</legend>${holds.length > 1 && html`<label><input type="checkbox" id="hold-all" checked=${chosen.length === holds.length} onChange=${(e) => set("holds")(e.target.checked ? Object.fromEntries(holds.map((h) => [h.hold, true])) : {})}/> all ${count(holds.length)}</label>`}
        ${holds.slice(0, 50).map((h, i) => html`<label><input type="checkbox" id=${"hold-" + i} checked=${!!f.holds[h.hold]} onChange=${(e) => set("holds")({...f.holds, [h.hold]: e.target.checked})}/> <code>${h.hold}</code> ${count(h.tokens)}, ends by ${at(h.expires_us / 1000)}</label>`)}</fieldset>`,
      lines: [["at once", `${count(sum)} ${held(def) ? "of " + count(x.capacity) + " can be held again" : "tokens come back"}.`], ["then", "Whoever works under a hold is not told before it settles: it gets an error."]],
      check: () => (chosen.length > 0 ? {} : {holds: "Choose a hold."}),
      button: chosen.length > 0 ? `End ${some(chosen.length, "hold")}` : "End holds",
      send: async () => {
        if (all) await call("POST", "/v1/reset", {limit: def.name, ...keyOf(of), note: f.note});
        else for (const h of chosen) await call("POST", "/v1/settle", {hold: h.hold, cost: 0, note: f.note});
      },
      said: () => `Ended ${some(chosen.length, "hold")} of ${name} in ${def.name}.`,
    };
  },
  block({of, name, def, x, f, set, wrong}) {
    const end = endOf(f), replaced = temporary(x), plan = blockingPlan(def), low = standing(x), then = low ? nameOf(def, low) : "the base";
    return {
      title: "Block", twice: true, undo: "Can be undone" + (replaced && replaced.kind !== "automatic" ? `: ${nameOf(def, replaced)} comes back` : ""),
      fields: html`<${Length} f=${f} set=${set} wrong=${wrong} options=${[["1h", "1 hour"], ["1d", "1 day"], ["", "no end"]]}/>`,
      lines: [["at once", `Every call is refused${end ? " until " + b(at(end)) : ", until somebody ends it"}, whatever is free.`], end && replaced && ["replaces", `${cap(nameOf(def, replaced))} until ${at(Date.parse(replaced.until))} ends now.`],
        !end && low && ["replaces", `${cap(nameOf(def, low))} ends now.`], end && ["after", `${cap(then)} again, ${numbers(low ? numbersOf(def, low) : baseOf(def), def.algorithm)}.`]],
      check: () => checkEnd(f), button: `Block ${name.length > 24 ? name.slice(0, 23) + "…" : name}`,
      send: () => call("PUT", overridePath(def), {...keyOf(of), plan, ...lasting(f), note: f.note}),
      said: () => `Blocked in ${def.name}${end ? " until " + at(end) : ""}.`,
    };
  },
  end({of, def, x, f, kind}) {
    const o = kind === "standing" ? standing(x) : x.override, blocked = x.mode === "blocked" && o === x.override, below = o === x.override && o?.until ? standing(x) : undefined, then = below ? nameOf(def, below) : "the base", n = below ? numbersOf(def, below) : baseOf(def);
    if (!o) return {title: "Nothing to end for", lines: [["", "It has ended already."]], button: "End", check: () => ({note: "It has ended already."}), undo: ""};
    const out = blocked && !x.row ? {} : outlook(x, def, n, n), what = blocked ? "the block" : nameOf(def, o);
    return {
      title: `End ${what} of`, twice: !blocked && !o.until, undo: o.kind === "automatic" ? "Cannot be undone" : "Can be undone",
      lines: [["at once", `${cap(then)} decides again: ${numbers(n, def.algorithm)}.${out.free !== undefined && n.burst && !held(def) ? ` ${count(out.free)} of ${count(n.burst)} are free.` : ""}`],
        out.free === 0 && out.used > n.burst && ["at worst", `${count(out.used - n.burst)} more than its burst are used: calls are refused until they have come back.`]],
      button: blocked ? "End the block" : "End " + what,
      send: () => call("DELETE", overridePath(def, {...keyOf(of), kind: o.kind, note: f.note})),
      said: () => `Ended ${what} in ${def.name}.`,
    };
  },
};

const cap = (t) => t[0].toUpperCase() + t.slice(1);

// text is a limit as What if reads it.
export const text = (def, n) => `${def.name}=${n.rate}/${n.per}` + (def.algorithm ? ",algorithm=" + def.algorithm : "") + (!["sliding_window", "leaky_bucket"].includes(def.algorithm) && n.burst !== n.rate ? ",burst=" + n.burst : "") + (def.start ? ",start=" + def.start : "");
