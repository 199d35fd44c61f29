// What is around every view: the service, the search, the store, the time, who is signed in,
// the tabs, and the banners.
import {html, useEffect, useRef, useState} from "./preact.js";
import {call} from "./api.js";
import {Badge, Icon} from "./parts.js";
import {again, customer, limitPage, limits, useShared} from "./state.js";
import {clock, now, past, shorter, some, span, stores, zoneName} from "./words.js";

const tabs = [["#/overview", "Overview"], ["#/limits", "Limits"], ["#/changes", "Changes"]];
const computed = [["what-if", "What if"], ["playground", "Playground"]];

export function Frame({view}) {
  const {me} = useShared();
  return html`<header class="frame"><div class="frame-top">
      <a class="brand" href="#/overview">dipwell<span>${me ? [me.service.split(":")[0] || "one process", ...Object.values(me.labels ?? {})].join(", ") : ""}</span></a>
      <${Search}/><${Where}/></div>
    <nav class="tabs" aria-label="Views">${tabs.map(([href, text]) => html`<a href=${href} aria-current=${href === "#/" + (view === "limit" || view === "draft" ? "limits" : view) ? "page" : undefined}>${text}</a>`)}
      ${document.documentElement.dataset.computed === "no" ? html`<a href="playground">More views: make build</a>` : computed.map(([href, text]) => html`<a href=${href}>${text}</a>`)}</nav>
  </header><${Banners}/>`;
}

function Where() {
  const {me, store, lost} = useShared(), [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  if (!me) return html`<div class="where"></div>`;
  const state = lost ? html`<b class="fault"><span class="dot"></span>No answer</b>` : store.ok ? html`<span><span class="good"><span class="dot"></span></span>${stores[me.store] ?? me.store}</span>` : html`<b class="fault"><span class="dot"></span>Store away</b>`;
  return html`<div class="where">${state}<span><span class="wide">${clock(now())} </span>${zoneName()}</span><span class="wide"><b>${me.name}</b>, role ${me.role}</span></div>`;
}

// Banners say that the page has lost the service, or the service its store.
function Banners() {
  const {me, store, lost, next} = useShared();
  if (lost) {
    return html`<div class="banner" role="alert"><${Icon} name="fault"/><p><b>No answer from the service since ${past(lost.since)}.</b> You see the state of that time.</p>
      <button onClick=${() => { again(); limits().catch(() => {}); }}>Try now</button></div>`;
  }
  if (store.ok) return "";
  const wait = next && Math.max(1, Math.ceil((next - now()) / 1000));
  return html`<div class="banner" role="alert"><${Icon} name="fault"/><p><b>The store is away since ${past(store.since)}, for ${span((now() - store.since) * 1000)}.</b> ${stores[me?.store] ?? "It"}: ${store.why}. Changes cannot be saved until it is back.</p>
    ${wait && html`<small>Next try in ${wait} s</small>`}<button onClick=${again}>Try now</button></div>`;
}

const shown = 8; // results

// Search finds keys that begin with what is typed, and limits whose names have it.
function Search() {
  const {limits: all} = useShared();
  const [text, type] = useState(keyOfAddress()), [open, setOpen] = useState(false), [found, setFound] = useState(null), [chosen, choose] = useState(0);
  const box = useRef();
  useEffect(() => {
    const key = (e) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName) || document.querySelector("dialog[open]")) return;
      e.preventDefault();
      box.current.focus();
      box.current.select();
    };
    const moved = () => {
      type(keyOfAddress());
      setOpen(false);
    };
    addEventListener("keydown", key);
    addEventListener("hashchange", moved);
    return () => {
      removeEventListener("keydown", key);
      removeEventListener("hashchange", moved);
    };
  }, []);
  useEffect(() => {
    if (!open || text.trim() === "") {
      setFound(null);
      return undefined;
    }
    const leave = new AbortController(), wait = setTimeout(() => look(text.trim(), leave.signal).then((f) => { setFound(f); choose(0); }, (err) => { if (!leave.signal.aborted) setFound({error: err}); }), 120);
    return () => {
      clearTimeout(wait);
      leave.abort();
    };
  }, [text, open]);
  const q = text.trim(), lines = found && !found.error ? [...found.keys.map((k) => ({href: customer(k.key), key: k.key, about: some(k.limits.length, "limit"), state: k.state})),
    ...all.filter((l) => l.name.includes(q)).slice(0, 4).map((l) => ({href: l.shared ? customer("", l.name) : limitPage(l.name), key: l.name, about: l.shared ? "a shared limit" : "a limit"}))] : [];
  const go = (href) => {
    setOpen(false);
    location.hash = href;
  };
  const key = (e) => {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      choose((n) => Math.max(0, Math.min(lines.length - 1, n + (e.key === "ArrowDown" ? 1 : -1))));
    } else if (e.key === "Escape") {
      setOpen(false);
    }
  };
  const submit = (e) => {
    e.preventDefault();
    if (q === "") return;
    go(lines[chosen] && found?.for === q ? lines[chosen].href : customer(q));
  };
  const list = open && q !== "" && found;
  return html`<form class="search" role="search" onSubmit=${submit} onfocusout=${(e) => { if (!e.currentTarget.contains(e.relatedTarget)) setOpen(false); }}>
    <${Icon} name="find"/><input id="search" ref=${box} type="search" role="combobox" aria-expanded=${list ? "true" : "false"} aria-controls="results" aria-autocomplete="list" aria-activedescendant=${list && lines.length > 0 ? "result-" + chosen : undefined}
      aria-label="Find a customer or key" placeholder="Find a customer or key" autocomplete="off" spellcheck=${false} maxlength="512" value=${text} onInput=${(e) => { type(e.target.value); setOpen(true); }} onFocus=${() => text && text !== keyOfAddress() && setOpen(true)} onKeyDown=${key}/><kbd>/</kbd>
    ${list && html`<div class="found" data-of=${found.for}>${found.error ? html`<p class="empty" role="alert">${found.error.message}</p>` : html`
      ${lines.length > 0 ? html`<ul class="results" id="results" role="listbox" aria-label="Found">${lines.map((l, i) => html`<li class=${i === chosen && "at"} role="option" aria-selected=${i === chosen ? "true" : "false"} id=${"result-" + i} onPointerDown=${(e) => { e.preventDefault(); go(l.href); }}>
        <span class="key"><${Marked} text=${shorter(l.key)} part=${q}/></span><span class="quiet">${l.about}</span>${l.state ? html`<${Badge} kind="refuses">${l.state}<//>` : html`<span></span>`}</li>`)}</ul>`
      : html`<div class="empty" id="results"><b>No key begins with “${shorter(q)}”.</b><br/>A key is known while a limit counts it, or has an override of it.<br/><a href=${customer(q)} tabindex="0">Show ${shorter(q)} as a new customer</a></div>`}
      ${found.more && html`<p class="aside">More keys begin with it: type more.</p>`}
      ${found.unlisted.length > 0 && html`<p class="aside">${some(found.unlisted.length, "limit")} cannot be searched: ${found.unlisted.slice(0, 6).join(", ")}${found.unlisted.length > 6 ? " …" : ""}. They keep no key text (keys: list). Press Enter on the whole key to see it.</p>`}`}</div>`}
  </form>`;
}

const keyOfAddress = () => (location.hash.startsWith("#/customer?") ? new URLSearchParams(location.hash.split("?")[1]).get("key") ?? "" : "");

// look finds keys, and asks of the first of them how many limits refuse them.
async function look(q, signal) {
  const f = await call("GET", "/v1/keys?" + new URLSearchParams({prefix: q, n: shown}), undefined, signal);
  const keys = f.keys.slice(0, shown);
  if (f.unlisted.length > 0 && !keys.some((k) => k.key === q)) { // a limit that cannot be searched may know it
    const one = await call("GET", "/v1/keys?" + new URLSearchParams({key: q}), undefined, signal).catch(() => null);
    if (one?.limits.length > 0) keys.unshift({key: q, limits: one.limits.map((l) => l.limit), answer: one});
  }
  await Promise.all(keys.slice(0, 4).map(async (k) => {
    const a = k.answer ?? await call("GET", "/v1/keys?" + new URLSearchParams({key: k.key}), undefined, signal);
    const n = a.limits.filter((l) => !l.allowed || l.limits?.some((p) => !p.allowed)).length;
    k.limits = k.limits.length > a.limits.length ? k.limits : a.limits;
    k.state = n === 0 ? "" : a.limits.length === 1 ? "Refuses" : n + " refuse";
  }));
  return {...f, keys, for: q};
}

// Marked shows a text with the part that was typed marked.
function Marked({text, part}) {
  const i = text.indexOf(part);
  return i < 0 ? text : html`${text.slice(0, i)}<mark>${part}</mark>${text.slice(i + part.length)}`;
}
