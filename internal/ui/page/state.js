// What all views share: who is signed in, the limits, whether the store and the service
// answer, and the address.
import {useEffect, useState} from "./preact.js";
import {call, everyLimit, limitPath, listen} from "./api.js";
import {now, setZone} from "./words.js";

export const shared = {me: null, limits: [], store: {ok: true}, lost: null};
const watchers = new Set();

function change(part) {
  Object.assign(shared, part);
  for (const f of watchers) f();
}

// useShared makes a component follow what is shared.
export function useShared() {
  const [, again] = useState(0);
  useEffect(() => {
    const f = () => again((n) => n + 1);
    watchers.add(f);
    return () => watchers.delete(f);
  }, []);
  return shared;
}

export const limitOf = (name) => shared.limits.find((l) => l.name === name);
export const may = (role) => ["use", "read", "support", "admin"].indexOf(shared.me?.role) >= ["use", "read", "support", "admin"].indexOf(role);

// start asks who is signed in and for the limits, and goes on asking whether the store
// answers.
export async function start() {
  listen((problem) => {
    if (!problem !== !shared.lost) change({lost: problem && {since: now(), why: problem}});
  });
  const me = await call("GET", "/v1/whoami");
  setZone(me.time_zone);
  await limits();
  change({me});
  watch();
}

export async function limits() { change({limits: await everyLimit()}); }

const pause = 5000; // ms between two questions
let asleep;

// again asks at once whether the store answers.
export function again() { asleep?.(); }

async function watch() {
  document.addEventListener("visibilitychange", again); // a hidden page asks nothing
  for (let turn = 1; ; turn++) {
    if (!document.hidden) {
      const was = shared.store, store = await call("GET", "/readyz").then(() => ({ok: true}), (err) => (err.status ? {ok: false, why: err.reason, since: was.since ?? now()} : was));
      if (store.ok !== was.ok || store.why !== was.why) change({store});
      if (turn % 12 === 0 || shared.limits.length === 0) await limits().catch(() => {});
      change({next: now() + pause});
    }
    await new Promise((f) => {
      asleep = f;
      setTimeout(f, pause);
    });
  }
}

const silence = 10000; // ms after which a service without an answer hangs, or the connection is broken

// useAnswer loads what a view shows, and again each so many ms. It returns what was loaded
// last, the error of the last attempt, and a function that loads at once.
export function useAnswer(load, deps, every) {
  const [state, set] = useState({});
  useEffect(() => {
    const leave = new AbortController(), {signal} = leave;
    let wake;
    const run = async () => {
      try {
        const value = await load(AbortSignal.any([signal, AbortSignal.timeout(silence)]));
        if (!signal.aborted) set((s) => ({...s, value, error: undefined}));
      } catch (error) {
        if (!signal.aborted) set((s) => ({...s, error}));
      }
    };
    const loop = async () => {
      while (!signal.aborted) {
        if (!document.hidden) await run();
        await new Promise((f) => {
          wake = f;
          if (every) setTimeout(f, every);
        });
      }
    };
    set((s) => ({...s, reload: () => run()}));
    document.addEventListener("visibilitychange", () => wake?.(), {signal});
    loop();
    return () => {
      leave.abort();
      wake?.();
    };
  }, deps);
  return [state.value, state.error, state.reload ?? (() => {})];
}

// route is the view and the query of the address: #/customer?key=acme.
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return {view: path || "overview", query: new URLSearchParams(query ?? "")};
}

export function useRoute() {
  const [r, set] = useState(route());
  useEffect(() => {
    const f = () => { if (location.hash === "" || location.hash.startsWith("#/")) set(route()); };
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  return r;
}

// customer is the address of a key, or of the bucket of a shared limit.
export const customer = (key, limit) => "#/customer?" + new URLSearchParams(key === null || key === "" ? {limit} : limit ? {key, limit} : {key});
export const limitPage = (name) => "#/limit?" + new URLSearchParams({name});

// lookAt asks what a limit knows of a key, and whether a call of a cost would pass.
export const lookAt = (limit, key, cost, signal) => call("GET", limitPath(limit, "/keys?" + new URLSearchParams({key: key ?? "", cost})), undefined, signal).then((x) => ({...x, now: now()}));
